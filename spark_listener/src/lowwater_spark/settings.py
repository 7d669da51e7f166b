"""How driver and tasks reach the authority: arguments, else ``spark.lowwater.*``, else environment.

Address, token and names of files travel to the tasks in their closures; the files' contents do not.
Each machine reads its own copy, so that no private key passes through Spark's blocks and logs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

import lowwater
from lowwater import errors
from lowwater.core.file_settings import FileSettings

__all__ = ["SparkSettings", "connection"]

_CONF: Final = "spark.lowwater."

_FILES: Final = ("ca", "key", "certificate", "tokenFile")
"""Settings that name files."""


@dataclass(frozen=True, slots=True)
class SparkSettings(FileSettings):
    """Settings whose certificates, and maybe token, are files on every machine of the application.

    A file is named by its absolute path, the same everywhere (a mounted secret), or by the bare
    name under which ``spark.files`` ships it.
    """

    def content(self, name: str, file: str) -> bytes | None:
        """See FileSettings. Raises only InvalidArgument."""
        try:
            return FileSettings.content(self, name, file)
        except OSError as failure:
            msg = (
                f"{_CONF}{name} is {file!r}, which cannot be read here ({failure}): ship it with spark.files and give its bare name, or "
                "mount it at the same absolute path on every machine"
            )
            raise errors.InvalidArgument(msg, metadata={"setting": _CONF + name, "file": file}) from failure

    def locate(self, file: str) -> Path:
        """Return a file's path on this machine. OSError: a bare name needs a running Spark."""
        if PurePath(file).is_absolute():
            return Path(file)
        from py4j.protocol import Py4JError
        from pyspark import SparkFiles

        try:
            return Path(SparkFiles.get(file))
        except (AssertionError, Py4JError):
            msg = "no Spark application runs here"
            raise OSError(msg) from None


def connection(conf: Callable[[str], str | None], address: str | None = None) -> SparkSettings:
    """Return the settings of the connection; ``conf`` returns a session's setting by full name.

    The address is the argument, else ``spark.lowwater.address``, else ``LOWWATER_ADDRESS``, else
    ``localhost:7420``. Raises ValueError for contradictory settings, InvalidArgument when this
    process cannot read a file.
    """

    def setting(name: str) -> str:
        return conf(_CONF + name) or ""

    files = {name: setting(name) for name in _FILES}
    for name, file in files.items():
        if file and not PurePath(file).is_absolute() and PurePath(file).name != file:
            msg = f"{_CONF}{name} is {file!r}; give the bare name of a file that spark.files ships, or an absolute path"
            raise ValueError(msg)
    if bool(files["key"]) != bool(files["certificate"]):
        msg = f"{_CONF}key and {_CONF}certificate belong together: set both, or neither"
        raise ValueError(msg)
    # connect() sends nothing. The client only shows which address it takes when none is given, so
    # that a query reaches the same authority as the user's own lowwater.connect().
    with lowwater.connect(setting("address") or None if address is None else address) as base:
        resolved = base.settings.address
    return SparkSettings(
        address=resolved,
        token=setting("token") or None,
        server_token=setting("serverToken"),
        namespace=setting("namespace"),
        ca=files["ca"],
        key=files["key"],
        certificate=files["certificate"],
        token_file=files["tokenFile"],
    ).read()
