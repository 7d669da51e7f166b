"""A real PostgreSQL for a test: a cluster of its own in a temporary directory, on a port of its own, gone afterwards.

PostgreSQL refuses to run as root, and tests may: then it runs as the system's user ``postgres``, or as ``nobody``, in a directory that is theirs.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from tests.kit.ports import free_port
from tests.kit.program import Program, run_program

READY: Final = "database system is ready to accept connections"


def binary(name: str) -> str:
    programs = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    program = str(programs[-1]) if programs else shutil.which(name)
    assert program is not None, "there is no PostgreSQL: run scripts/setup.sh --tests"
    return program


def unprivileged() -> list[str]:
    if os.geteuid():
        return []
    user = _user()
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "env", "HOME=/tmp"]


def _user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


class Postgres(Program):
    """One server, started by ``start``. It survives ``kill`` as a directory, from which ``start`` continues. ``with Postgres() as postgres`` starts it, and removes it at the end."""

    def __init__(self, *settings: str) -> None:
        # Not below the directories of pytest, which are for its own user alone.
        self.home = Path(tempfile.mkdtemp(prefix="lowwater-postgres-"))
        super().__init__(self.home / "data")
        self.port = free_port()
        self.settings = settings
        if not os.geteuid():
            for path in (self.home, self.directory):
                os.chown(path, _user().pw_uid, _user().pw_gid)
        command = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "--pgdata", str(self.directory), *command)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *error: object) -> None:
        self.remove()

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self, ready: str = READY) -> Self:
        command = [*unprivileged(), binary("postgres"), "-D", str(self.directory), "-p", str(self.port)]
        command += ["-h", "127.0.0.1", "-k", str(self.home)]
        for setting in ("shared_buffers=16MB", "max_connections=50", *self.settings):
            command += ["-c", setting]
        return self.run(command, ready)

    def follow(self, primary: Postgres) -> None:
        """Become the standby of another server, with a copy of all that it has; return when it serves readers."""
        self.stop()
        shutil.rmtree(self.directory)
        self._run("pg_basebackup", "-d", primary.dsn, "-D", str(self.directory), "-R", "-c", "fast")
        self.start("ready to accept read-only connections")

    def stop(self) -> None:
        """End it as an operator does, with what it has in memory written."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self.kill()

    def remove(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self.kill()
        shutil.rmtree(self.home)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def _run(self, name: str, *arguments: str) -> None:
        completed = run_program([*unprivileged(), binary(name), *arguments], cwd=self.home)
        assert completed.returncode == 0, f"{name}: {completed.stderr}"
