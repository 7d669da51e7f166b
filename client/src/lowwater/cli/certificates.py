"""Certificates of the command, which stand in files: a command that runs for days takes those that are renewed meanwhile."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowwater._core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc

__all__ = ["FileSettings", "files_of"]


@dataclass(frozen=True, slots=True)
class FileSettings(Settings):
    """Settings whose certificates are read from files for every new channel, and channels are made anew when these change."""

    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def edition(self) -> object:
        """See Settings. A file that is away for a moment, while it is replaced, is another edition as well."""
        return tuple(map(_stamp, (self.ca, self.certificate, self.key)))

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """See Settings. While a file cannot be read, those from the start are used."""
        try:
            return self.read().credentials
        except OSError:
            return self.credentials

    def read(self) -> FileSettings:
        """Return the settings with what stands in the files now. Raises OSError, InvalidArgument."""
        return replace(
            self,
            root_certificates=_read(self.ca),
            private_key=_read(self.key),
            certificate_chain=_read(self.certificate),
        )


def files_of(given: Mapping[str, Path | None]) -> dict[str, str]:
    """Return the files that the arguments ``ca``, ``cert`` and ``key`` name, else ``LOWWATER_CA``, ``LOWWATER_CERT`` and ``LOWWATER_KEY``."""
    return {name: str(path or os.environ.get(f"LOWWATER_{name.upper()}", "")) for name, path in given.items()}


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _stamp(path: str) -> tuple[int, ...]:
    try:
        state = Path(path).stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns
