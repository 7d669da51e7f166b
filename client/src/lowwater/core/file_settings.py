"""Settings whose certificates and token stand in files: a process that runs for days takes those that are renewed meanwhile."""

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
    """Settings whose certificates are read from files for every new channel, and channels are made anew when these change.

    Pickled, they lose what stands in the files.
    """

    ca: str = ""
    """PEM of the authorities to trust; with any of the three, the channel uses TLS."""
    certificate: str = ""
    """PEM of this client's certificates, where the server wants them."""
    key: str = ""
    """PEM of this client's key, beside them."""
    token_file: str = ""
    """File with the token; it wins over ``token``. It is read for every call, so a new token counts
    at once."""
    _newest_token: list[str | None] = field(default_factory=list, init=False, repr=False, compare=False)
    """The last token that a call has read, as the one element; empty: ``token`` counts. A list,
    because the dataclass is frozen."""

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
        """See Settings.

        It is the names of files that count, whatever stands in them: nothing ever goes out in the
        clear instead.
        """
        return any((self.ca, self.certificate, self.key))

    @property
    def edition(self) -> object:
        """See Settings.

        A file that is away for a moment, while it is replaced, is another edition as well.
        """
        return tuple(self._stamp(named) for named in (self.ca, self.certificate, self.key) if named)

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """See Settings.

        While a file cannot be read, or is empty because it is being written, those read before are
        used.
        """
        try:
            return self.read().credentials
        except (OSError, errors.InvalidArgument):
            return self.credentials

    def read(self) -> Self:
        """Return the settings with what stands in the files now.

        Raises OSError, InvalidArgument.
        """
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

    def content(self, name: str, named: str) -> bytes | None:
        """Return what stands in the file that the setting ``name`` names; None when it names none.

        Raises OSError, InvalidArgument.
        """
        if not named:
            return None
        content = self.locate(named).read_bytes()
        if not content.strip():
            fix = "write one token into it" if named == self.token_file else "name a PEM file"
            raise errors.InvalidArgument(f"{named} is empty: {fix}", metadata={"file": named, "fix": fix})
        return content

    def locate(self, named: str) -> Path:
        """Return where a file is on this machine."""
        return Path(named)

    def __reduce__(self) -> tuple[Any, ...]:
        token = None if self.token_file else self.token
        bare = replace(self, token=token, root_certificates=None, private_key=None, certificate_chain=None)
        return type(self), tuple(getattr(bare, field.name) for field in fields(bare) if field.init)

    def _stamp(self, named: str) -> tuple[int, ...]:
        """Return what tells a file from the one that replaces it; nothing while it is away."""
        try:
            state = self.locate(named).stat()
        except OSError:
            return ()
        return state.st_ino, state.st_size, state.st_mtime_ns
