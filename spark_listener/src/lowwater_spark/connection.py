"""How driver and tasks reach the authority: as they are told, by the session's ``spark.lowwater.*`` settings, by the environment.

Address, token and names of files travel to the tasks in their closures; what stands in the files does not. Each machine reads its own
copy, so that no private key passes through Spark's blocks and logs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater import errors

if TYPE_CHECKING:
    import grpc

__all__ = ["SparkSettings", "connection"]

_CONF: Final = "spark.lowwater."

_FILES: Final = ("ca", "key", "certificate")
"""The settings that name files."""


@dataclass(frozen=True, slots=True)
class SparkSettings(lowwater.Settings):
    """Settings whose certificates are files that every machine of the application has. Pickled, it loses what stands in them.

    A file is named by its absolute path, the same everywhere (a mounted secret), or by the bare name under which ``spark.files``
    ships it.
    """

    ca: str = ""
    """PEM of the authorities to trust; with any of the three, the channel uses TLS."""
    key: str = ""
    """PEM of this client's key, where the server wants one."""
    certificate: str = ""
    """PEM of this client's certificates."""

    @property
    def encrypted(self) -> bool:
        """Whether the channel uses TLS: also before the files are read, so that nothing ever goes out in the clear instead."""
        return any((self.ca, self.key, self.certificate))

    @property
    def edition(self) -> object:
        """Changes when a file does: queries run for longer than certificates count."""
        return tuple(_stamp(named) for named in (self.ca, self.key, self.certificate) if named)

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """What the channel to an address encrypts with: what stands in the files now, or stood there before while one cannot be read."""
        try:
            return self.here().credentials
        except errors.InvalidArgument:
            return self.credentials

    def here(self) -> SparkSettings:
        """Return the settings with what stands in the files on this machine. Raises InvalidArgument when one cannot be read."""
        return replace(
            self,
            root_certificates=_read("ca", self.ca),
            private_key=_read("key", self.key),
            certificate_chain=_read("certificate", self.certificate),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        bare = replace(self, root_certificates=None, private_key=None, certificate_chain=None)
        return SparkSettings, tuple(getattr(bare, field.name) for field in fields(bare))


def connection(conf: Callable[[str], str | None], address: str | None = None) -> SparkSettings:
    """Return how to reach the authority. ``conf`` returns a setting of the session by its whole name.

    The address is the one given, else ``spark.lowwater.address``, else ``LOWWATER_ADDRESS``, else ``localhost:7420``. Raises ValueError
    for settings that mean nothing, InvalidArgument when a certificate cannot be read in this process.
    """

    def setting(name: str) -> str:
        return conf(_CONF + name) or ""

    files = {name: setting(name) for name in _FILES}
    for name, named in files.items():
        if named and not PurePath(named).is_absolute() and PurePath(named).name != named:
            msg = (
                f"{_CONF}{name} is {named!r}; give the bare name of a file that spark.files ships, or an absolute path"
            )
            raise ValueError(msg)
    if bool(files["key"]) != bool(files["certificate"]):
        msg = f"{_CONF}key and {_CONF}certificate belong together: set both, or neither"
        raise ValueError(msg)
    # The client knows the environment, and the default.
    with lowwater.connect(setting("address") or None if address is None else address) as base:
        found = base.settings.address
    return SparkSettings(
        address=found,
        token=setting("token") or None,
        server_token=setting("serverToken"),
        namespace=setting("namespace"),
        ca=files["ca"],
        key=files["key"],
        certificate=files["certificate"],
    ).here()


def _read(setting: str, named: str) -> bytes | None:
    """Return what stands in the file that a setting names; None when it names none. Raises InvalidArgument."""
    if not named:
        return None
    try:
        return _locate(named).read_bytes()
    except OSError as failure:
        msg = (
            f"{_CONF}{setting} is {named!r}, which cannot be read here ({failure}): ship it with spark.files and give its bare name, or "
            "mount it at the same absolute path on every machine"
        )
        raise errors.InvalidArgument(msg, metadata={"setting": _CONF + setting, "file": named}) from failure


def _stamp(named: str) -> tuple[int, ...]:
    """Return what tells a file from the one that replaces it; nothing while it is away."""
    try:
        state = _locate(named).stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _locate(named: str) -> Path:
    """Return where a file is on this machine."""
    if PurePath(named).is_absolute():
        return Path(named)
    from pyspark import SparkFiles

    return Path(SparkFiles.get(named))
