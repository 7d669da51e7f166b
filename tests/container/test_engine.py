"""The image built by a real engine from `make dist`, and run by it.

The base image of the Dockerfile is in no registry that a test could count on, so a base is made of Debian's packages, with the Python of the same minor version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
from scripts import dist
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.program import run_program

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (shutil.which("buildah") and shutil.which("mmdebstrap") and os.geteuid() == 0),
        reason="buildah, mmdebstrap and root are needed: scripts/setup.sh --long",
    ),
]

BASE = "localhost/base"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Whom this machine trusts; the build fetches what the lock names."""
BASEFILE = f"""\
FROM scratch
ADD base.tar /
COPY ca.crt {CERTIFICATES}
RUN ["ln", "-s", "/usr/bin/python3.11", "/usr/local/bin/python3.11"]
RUN ["rm", "/usr/lib/python3.11/EXTERNALLY-MANAGED"]
ENV SSL_CERT_FILE={CERTIFICATES} PIP_CERT={CERTIFICATES}
"""


def run(*command: str) -> str:
    done = run_program(command)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("engine")
    storage = folder / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", os.fspath(storage))
        patch.setenv("BUILDAH_ISOLATION", "chroot")
        needed = "python3,python3-pip,python3-venv,ca-certificates"
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={needed}", "bookworm", f"{folder}/base.tar")
        (folder / "ca.crt").write_bytes(CERTIFICATES.read_bytes())
        (folder / "Basefile").write_text(BASEFILE)
        run("buildah", "build", "--quiet", "--tag", BASE, "--file", f"{folder}/Basefile", os.fspath(folder))
        out = folder / "dist"
        assert dist.main(["--out", os.fspath(out), "--engine", "buildah", "--base", BASE]) == 0
        (saved,) = (out / "image").iterdir()
        yield saved


def test_the_image_is_what_the_dockerfile_says_and_serves(archive: Path, tmp_path: Path) -> None:
    version = dist.version()
    box = run("buildah", "from", f"docker-archive:{archive}").strip()
    config = json.loads(run("buildah", "inspect", "--type", "container", box))["Docker"]["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] + config["Cmd"] == ["lowwater", "serve", "--data", "/data", "--listen", "0.0.0.0:7420"]
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["Labels"]["org.opencontainers.image.version"] == version
    assert run("buildah", "run", box, "--", "lowwater", "--version") == f"lowwater {version}\n"
    missing = "import importlib.util; print([n for n in ('pip', 'setuptools', 'ensurepip', 'pyspark') if importlib.util.find_spec(n)])"
    assert run("buildah", "run", box, "--", "/opt/lowwater/bin/python", "-c", missing) in ("[]\n", "['ensurepip']\n")

    port = free_port()
    flags = ("--listen", f"127.0.0.1:{port}", "--http", "off", "--page", "off")
    command = ("buildah", "run", box, "--", *config["Entrypoint"], *config["Cmd"], *flags)
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as serving:
        try:
            with lowwater.connect(f"127.0.0.1:{port}") as lw:
                eventually(lambda: lw.register("enriched").name, "it serves")
        finally:
            serving.terminate()
    run("buildah", "rm", box)
