"""The certificates of a server, as they stand in their files now.

Whoever renews certificates writes the files; nobody tells this process. So it looks at them, not
into them, before every handshake, and reads those that have changed. What cannot be used is refused
in whole and told once: the pair before stays in force, so that a file which is half written, or
belongs to another key, cuts nobody off.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import grpc

from lowwater.core.events import event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ROUNDED_SECONDS: Final = 2.0
"""How old a file must be for its time of change to tell it from what is written there next: file
systems round, up to this much."""

_FLAGS: Final = ("--tls-cert", "--tls-key", "--tls-client-ca", "--peer-ca")
"""In the order of the fields of Files."""

READABLE_BY_ALL: Final = 0o004

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the ssl module has no name for: an expired certificate
shall be refused by its date."""

_MOST_STEPS: Final = 10
"""Of a handshake in memory; TLS 1.3 takes two of each side."""

log = logging.getLogger(__name__)


class BadCertificate(Exception):
    """A certificate, a key, or what they are to be checked by cannot be used; the message names the flag, and what to do."""


class _Changing(BadCertificate):
    """The files were replaced while they were read."""


class _TooEarly(BadCertificate):
    """It does not count yet; the clock of whoever signed it is some seconds ahead."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where certificates stand."""

    chain: Path
    key: Path
    client_ca: Path | None = None
    """What clients must be signed by, under mutual TLS."""
    peer_ca: Path | None = None
    """What other shards must be signed by; the system's roots without."""

    @classmethod
    def of(cls, chain: Path | None, key: Path | None, client_ca: Path | None, peer_ca: Path | None) -> Files | None:
        """Return those that flags name; None when they name none.

        Raises BadCertificate for some that encrypt nothing.
        """
        if chain is not None and key is not None:
            return cls(chain, key, client_ca, peer_ca)
        needs = dict(zip(_FLAGS, (chain, key, client_ca, peer_ca), strict=True))
        given = next((flag for flag, path in needs.items() if path is not None), None)
        if given is None:
            return None
        missing = " and ".join(flag for flag in ("--tls-cert", "--tls-key") if needs[flag] is None)
        raise BadCertificate(f"{given} needs {missing}: without a certificate and its key nothing is encrypted")

    @property
    def given(self) -> Sequence[tuple[str, Path]]:
        """The flag and the path of each."""
        every = zip(_FLAGS, (self.chain, self.key, self.client_ca, self.peer_ca), strict=True)
        return [(flag, path) for flag, path in every if path is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A certificate with its key, and whom it trusts: checked, and never changed."""

    chain: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None
    peer_ca: bytes | None
    context: ssl.SSLContext
    """To serve HTTP with. Browsers bring no certificates, so it asks for none."""
    not_before: float
    not_after: float
    """Until when the certificate counts, seconds since the Unix epoch."""

    @property
    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """The same for gRPC."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], root_certificates=self.client_ca)

    def check_dates(self, now: float) -> None:
        """Raise BadCertificate for one that does not count at a time."""
        if now < self.not_before:
            msg = f"--tls-cert counts only from {_moment(self.not_before)} on: is the clock of this machine right?"
            raise _TooEarly(msg)
        if now >= self.not_after:
            raise BadCertificate(f"--tls-cert has expired at {_moment(self.not_after)}: renew it")


class Certificates:
    """The pair in force.

    Safe for threads; ``current`` costs a look at each file (some microseconds), and a read of those
    that changed.

    ``clock`` gives seconds since the Unix epoch. Raises BadCertificate when made of files that
    cannot be used.
    """

    def __init__(self, files: Files, *, clock: Callable[[], float] = time.time) -> None:
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._refused = ""
        """Why the files were refused when they were read last; empty when they were not."""
        self._seen: object = _stamp(files, clock())
        self._pair = read(files)
        self._pair.check_dates(clock())
        if files.key.stat().st_mode & READABLE_BY_ALL:
            log.warning(
                "--tls-key %s can be read by every user of this machine: chmod 600",
                files.key,
                extra=event("key_readable", path=str(files.key)),
            )
        self._tell()

    def current(self) -> Pair:
        """Return the pair in force, read anew when its files have changed."""
        with self._lock:
            now = self._clock()
            stamp = _stamp(self._files, now)
            if stamp is None or stamp != self._seen:
                self._seen = stamp
                self._read(now)
            return self._pair

    @property
    def not_after(self) -> float:
        """Until when the certificate in force counts, seconds since the Unix epoch."""
        return self.current().not_after

    @property
    def refused(self) -> bool:
        """Whether the files as they are now cannot be used, and those of before are in force."""
        self.current()
        return bool(self._refused)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that show each new connection the pair in force, and take client certificates by what is trusted then."""
        told = self._pair

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal told
            pair = self.current()
            if pair is told:
                return None
            told = pair
            return pair.for_grpc

        mutual = self._files.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(
            told.for_grpc,
            fetch,  # type: ignore[arg-type]  # the stub leaves out None, which says that nothing has changed
            require_client_authentication=mutual,
        )

    def check_as_client(self) -> None:
        """Warn when shards that trust what this one trusts would refuse it: under mutual TLS it shows them its own certificate."""
        pair = self.current()
        if pair.client_ca is None:
            return
        asked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        asked.verify_mode = ssl.CERT_REQUIRED
        asked.verify_flags |= _NO_CHECK_TIME
        asked.load_verify_locations(cadata=_text(pair.client_ca))
        asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        asking.check_hostname = False
        asking.verify_mode = ssl.CERT_NONE
        try:
            for context in (asked, asking):
                context.load_cert_chain(self._files.chain, self._files.key, password=_no_passphrase)
            _shake_hands(asking, asked)
        except ssl.SSLError as error:
            reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error.reason)
            log.warning(
                "other shards that trust the same --tls-client-ca will refuse this one, whose --tls-cert is no client certificate for them: %s",
                reason,
                extra=event("certificate_not_for_clients", reason=reason),
            )

    def _read(self, now: float) -> None:
        try:
            pair = read(self._files)
            if _same(pair, self._pair):
                self._refused = ""
                return
            pair.check_dates(now)
        except _Changing:
            self._seen = None  # the next one who asks reads them again
        except BadCertificate as error:
            if isinstance(error, _TooEarly):
                self._seen = None
            if str(error) != self._refused:
                self._refused = str(error)
                log.error(
                    "the certificates on disk are refused, and those before stay in force until %s: %s",
                    _moment(self._pair.not_after),
                    error,
                    extra=event("certificate_refused", reason=str(error), until=_moment(self._pair.not_after)),
                )
        else:
            self._pair, self._refused = pair, ""
            self._tell()

    def _tell(self) -> None:
        until = _moment(self._pair.not_after)
        log.info(
            "new connections are shown a certificate that counts until %s",
            until,
            extra=event("certificate_in_force", until=until),
        )


def read(files: Files) -> Pair:
    """Read and check all files, but for their dates. Raises BadCertificate."""
    found = {flag: _content(flag, path) for flag, path in files.given}
    for flag, mark in (("--tls-cert", b"CERTIFICATE-----"), ("--tls-key", b"PRIVATE KEY-----")):
        if mark not in found[flag]:
            what = "certificate" if flag == "--tls-cert" else "private key"
            raise BadCertificate(f"{flag}: the file has no {what} in PEM (-----BEGIN ...)")
    for flag in ("--tls-client-ca", "--peer-ca"):
        if flag in found:
            _trusted(flag, found[flag])
    context = _context(files)
    again = _content("--tls-cert", files.chain), _content("--tls-key", files.key)
    if (found["--tls-cert"], found["--tls-key"]) != again:
        raise _Changing("--tls-cert and --tls-key were replaced while they were read: start again")
    not_before, not_after = _dates(context, found["--tls-cert"])
    return Pair(
        chain=found["--tls-cert"],
        key=found["--tls-key"],
        client_ca=found.get("--tls-client-ca"),
        peer_ca=found.get("--peer-ca"),
        context=context,
        not_before=not_before,
        not_after=not_after,
    )


def _content(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        msg = f"{flag} {path} cannot be read: {error.strerror}"
        raise BadCertificate(msg) from error


def _trusted(flag: str, content: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_text(content))
    except (ssl.SSLError, ValueError) as error:
        msg = f"{flag}: the file has no certificates in PEM (-----BEGIN CERTIFICATE-----) that can be read"
        raise BadCertificate(msg) from error


def _context(files: Files) -> ssl.SSLContext:
    """Return a context to serve HTTP with.

    OpenSSL reads the files itself, and checks that they belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.chain, files.key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            msg = "--tls-cert and --tls-key do not belong together: the key is another one's"
        else:
            msg = f"--tls-cert and --tls-key cannot be used: {error.reason or error}"
        raise BadCertificate(msg) from error
    except OSError as error:
        msg = f"--tls-cert and --tls-key cannot be read: {error.strerror}"
        raise BadCertificate(msg) from error
    return context


def _no_passphrase() -> str:
    """OpenSSL would ask at the terminal."""
    msg = "--tls-key is encrypted, and nobody is there to type its passphrase: give the key without one, readable by this user only"
    raise BadCertificate(msg)


def _dates(context: ssl.SSLContext, chain: bytes) -> tuple[float, float]:
    """Return from when and until when the certificate counts, by a handshake in memory, in which a client trusts just that certificate.

    So the standard library is enough to read it, and it is known that this certificate works, and is one for servers. Raises BadCertificate.
    """
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False  # which names it is for is up to those who connect
    asking.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        asking.load_verify_locations(cadata=_text(chain))
        client = _shake_hands(asking, context)
    except ssl.SSLCertVerificationError as error:
        raise BadCertificate(f"--tls-cert cannot be used by a server: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise BadCertificate(f"--tls-cert cannot be used: {error.reason or error}") from error
    found: Any = client.getpeercert()
    return float(ssl.cert_time_to_seconds(found["notBefore"])), float(ssl.cert_time_to_seconds(found["notAfter"]))


def _shake_hands(asking: ssl.SSLContext, asked: ssl.SSLContext) -> ssl.SSLObject:
    """Have two contexts talk in memory; returns the end of the one that asks.

    Raises SSLError, BadCertificate.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server)
    left = [client, asked.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(_MOST_STEPS):
        for side in tuple(left):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(side)
        if not left:
            return client
    raise BadCertificate("--tls-cert cannot be used: a handshake with it does not end")


def _stamp(files: Files, now: float) -> object:
    """Return what tells the files as they are from any others; None while one has just changed, and may again within its time of change.

    One that bears a time to come says nothing of when it changed, and is taken as it is: else it would be read at every handshake until then.
    """
    try:
        states = [path.stat() for _, path in files.given]
    except OSError as error:
        return type(error), error.filename
    if any(0.0 <= now - each.st_mtime < ROUNDED_SECONDS for each in states):
        return None
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in states)


def _same(one: Pair, other: Pair) -> bool:
    return (one.chain, one.key, one.client_ca, one.peer_ca) == (other.chain, other.key, other.client_ca, other.peer_ca)


def _text(content: bytes) -> str:
    return content.decode("ascii", "replace")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
