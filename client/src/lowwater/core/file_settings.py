"""Settings with certificates and token in files, so that a long process uses renewed ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowwater import errors
from lowwater.core.settings import Settings

if TYPE_CHECKING:
    from typing import Self

    import grpc

__all__ = ["FileSettings"]


@dataclass(frozen=True, slots=True)
class FileSettings(Settings):
    """Settings with files; channels are opened again when the certificates change.

    The certificates are read for every new channel. A pickled copy has the names of the files and
    not their content.
    """

    ca: str = ""
    """PEM file of the authorities to trust; with any of the three files, the channel uses TLS."""
    certificate: str = ""
    """PEM file of this client's certificates, for a server that requires them."""
    key: str = ""
    """PEM file of this client's key; needed with ``certificate``."""
    token_file: str = ""
    """File with the token; it overrides ``token``. Each call reads it, so a new token is used at
    once."""
    _newest_token: list[str | None] = field(default_factory=list, init=False, repr=False, compare=False)
    """Last usable token that a call read, as the only element; empty while ``token`` is used. A
    list, because the dataclass is frozen."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """See Settings. While the file has no usable token, the last one that was read is used.

        The token of the start would be wrong: after a rotation it may be revoked.
        """
        with suppress(OSError, ValueError, errors.InvalidArgument):
            self._newest_token[:] = [replace(self, token=self._token(), token_file="").token]
        token = self._newest_token[0] if self._newest_token else self.token
        return (("authorization", f"Bearer {token}"),) if token else ()

    @property
    def encrypted(self) -> bool:
        """See Settings. Names of files count: an empty file never makes a channel unencrypted."""
        return any((self.ca, self.certificate, self.key))

    @property
    def edition(self) -> object:
        """See Settings. A file that is away while it is replaced is another edition as well."""
        return tuple(self._stamp(file) for file in (self.ca, self.certificate, self.key) if file)

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """See Settings. While a file is unreadable or empty, the content read before is used."""
        try:
            return self.read().credentials
        except (OSError, errors.InvalidArgument):
            return self.credentials

    def read(self) -> Self:
        """Return the settings with the files' content. Raises OSError, InvalidArgument."""
        return replace(
            self,
            token=self._token(),
            root_certificates=self.content("ca", self.ca),
            private_key=self.content("key", self.key),
            certificate_chain=self.content("certificate", self.certificate),
        )

    def _token(self) -> str | None:
        content = self.content("tokenFile", self.token_file)
        if content is None:
            return self.token
        token = content.decode("ascii", "replace").strip()
        if not (token.isascii() and token.isprintable()):
            fix = "write one token into it, of printable ASCII"
            msg = f"{self.token_file} has no usable token: {fix}"
            raise errors.InvalidArgument(msg, metadata={"file": self.token_file, "fix": fix})
        return token

    def content(self, name: str, file: str) -> bytes | None:
        """Return a setting's file content; None without file. Raises OSError, InvalidArgument."""
        if not file:
            return None
        content = self.locate(file).read_bytes()
        if not content.strip():
            fix = "write one token into it" if file == self.token_file else "name a PEM file"
            raise errors.InvalidArgument(f"{file} is empty: {fix}", metadata={"file": file, "fix": fix})
        return content

    def locate(self, file: str) -> Path:
        """Return the path of a file on this machine."""
        return Path(file)

    def __reduce__(self) -> tuple[Any, ...]:
        token = None if self.token_file else self.token
        bare = replace(self, token=token, root_certificates=None, private_key=None, certificate_chain=None)
        return type(self), tuple(getattr(bare, field.name) for field in fields(bare) if field.init)

    def _stamp(self, file: str) -> tuple[int, ...]:
        """Return values that change when a file is replaced; none while it is away."""
        try:
            state = self.locate(file).stat()
        except OSError:
            return ()
        return state.st_ino, state.st_size, state.st_mtime_ns
