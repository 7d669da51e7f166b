"""The certificates of a server, as their files have them now.

A renewal replaces the files without a signal to this process. So the process compares the files'
sizes and times before every handshake, and reads the files after a change. If the new files cannot
be used, it refuses them all and logs that once; the former pair stays in force. So a file that is
half written, or belongs to another key, cuts nobody off.
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
"""Age from which a file's time of change identifies its content. File systems round times by up to
this much, so a younger file could change again without another time."""

_FLAGS: Final = ("--tls-cert", "--tls-key", "--tls-client-ca", "--peer-ca")
"""Flags of the fields of Files, in their order."""

READABLE_BY_ALL: Final = 0o004
"""Bit of a file's mode by which all users may read it."""

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which ssl has no name; ``check_dates`` refuses expired
certificates, with a better message."""

_MOST_STEPS: Final = 10
"""Greatest number of steps of a handshake in memory; TLS 1.3 takes two on each side."""

log = logging.getLogger(__name__)


class BadCertificate(Exception):
    """A certificate, key or authority cannot be used; the message names the flag and the fix."""


class _Changing(BadCertificate):
    """The files were replaced while this process read them."""


class _TooEarly(BadCertificate):
    """The certificate is not valid yet; the clock of its authority is some seconds ahead."""


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of certificates and keys."""

    chain: Path
    key: Path
    client_ca: Path | None = None
    """Authorities that must have signed clients, under mutual TLS."""
    peer_ca: Path | None = None
    """Authorities that must have signed other shards; None: the system's roots."""

    @classmethod
    def of(cls, chain: Path | None, key: Path | None, client_ca: Path | None, peer_ca: Path | None) -> Files | None:
        """Return the files of flags; None without any flag.

        Raises BadCertificate if the certificate or its key is missing.
        """
        if chain is not None and key is not None:
            return cls(chain, key, client_ca, peer_ca)
        needs = dict(zip(_FLAGS, (chain, key, client_ca, peer_ca), strict=True))
        first = next((flag for flag, path in needs.items() if path is not None), None)
        if first is None:
            return None
        missing = " and ".join(flag for flag in ("--tls-cert", "--tls-key") if needs[flag] is None)
        raise BadCertificate(f"{first} needs {missing}: without a certificate and its key nothing is encrypted")

    @property
    def flags(self) -> Sequence[tuple[str, Path]]:
        """Flag and path of each file."""
        paths = zip(_FLAGS, (self.chain, self.key, self.client_ca, self.peer_ca), strict=True)
        return [(flag, path) for flag, path in paths if path is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A certificate, its key and the authorities to trust, in PEM, checked but for the dates."""

    chain: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None
    """Authorities of the certificates that clients must show; None: clients show none."""
    peer_ca: bytes | None
    """Authorities to trust when this process calls other shards; None: those of the system."""
    context: ssl.SSLContext
    """TLS settings of HTTP. They ask for no client certificates, because browsers bring none."""
    not_before: float
    """Beginning of the certificate's validity, in seconds since the Unix epoch."""
    not_after: float
    """End of the certificate's validity, in seconds since the Unix epoch."""

    @property
    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """TLS settings of gRPC."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], root_certificates=self.client_ca)

    def check_dates(self, now: float) -> None:
        """Raise BadCertificate if the certificate is not valid at a time."""
        if now < self.not_before:
            msg = f"--tls-cert is valid only from {_moment(self.not_before)} on: is the clock of this machine right?"
            raise _TooEarly(msg)
        if now >= self.not_after:
            raise BadCertificate(f"--tls-cert expired at {_moment(self.not_after)}: renew it")


class Certificates:
    """The pair in force. Safe for threads.

    ``current`` costs a ``stat`` of each file (some microseconds), and after a change a read.
    ``clock`` returns seconds since the Unix epoch. The constructor raises BadCertificate for files
    that cannot be used.
    """

    def __init__(self, files: Files, *, clock: Callable[[], float] = time.time) -> None:
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._refused = ""
        """Reason why the last read refused the files; empty if it did not."""
        self._stamp: object = _stamp(files, clock())
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
        """Return the pair in force, after a read of the files if they have changed."""
        with self._lock:
            now = self._clock()
            stamp = _stamp(self._files, now)
            if stamp is None or stamp != self._stamp:
                self._stamp = stamp
                self._read(now)
            return self._pair

    @property
    def not_after(self) -> float:
        """Until when the certificate in force counts, seconds since the Unix epoch."""
        return self.current().not_after

    @property
    def refused(self) -> bool:
        """True while the files cannot be used and a former pair is in force."""
        self.current()
        return bool(self._refused)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that use the pair in force for each new connection."""
        last_pair = self._pair

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal last_pair
            pair = self.current()
            if pair is last_pair:
                return None
            last_pair = pair
            return pair.for_grpc

        mutual = self._files.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(
            last_pair.for_grpc,
            fetch,  # type: ignore[arg-type]  # the stub leaves out None: no change
            require_client_authentication=mutual,
        )

    def check_as_client(self) -> None:
        """Warn if shards that trust the same authorities would refuse this one as a client."""
        pair = self.current()
        if pair.client_ca is None:
            return
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.verify_mode = ssl.CERT_REQUIRED
        server_side.verify_flags |= _NO_CHECK_TIME
        server_side.load_verify_locations(cadata=_text(pair.client_ca))
        client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client_side.check_hostname = False
        client_side.verify_mode = ssl.CERT_NONE
        try:
            for context in (server_side, client_side):
                context.load_cert_chain(self._files.chain, self._files.key, password=_no_passphrase)
            _shake_hands(client_side, server_side)
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
            self._stamp = None  # the next call reads them again
        except BadCertificate as error:
            if isinstance(error, _TooEarly):
                self._stamp = None
            if str(error) != self._refused:
                self._refused = str(error)
                log.error(
                    "the certificates on disk are refused, and the former ones stay in force until %s: %s",
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
            "new connections get a certificate that is valid until %s",
            until,
            extra=event("certificate_in_force", until=until),
        )


def read(files: Files) -> Pair:
    """Read and check all files, except for their dates. Raises BadCertificate."""
    contents = {flag: _content(flag, path) for flag, path in files.flags}
    for flag, mark in (("--tls-cert", b"CERTIFICATE-----"), ("--tls-key", b"PRIVATE KEY-----")):
        if mark not in contents[flag]:
            what = "certificate" if flag == "--tls-cert" else "private key"
            raise BadCertificate(f"{flag}: the file has no {what} in PEM (-----BEGIN ...)")
    for flag in ("--tls-client-ca", "--peer-ca"):
        if flag in contents:
            _trusted(flag, contents[flag])
    context = _context(files)
    again = _content("--tls-cert", files.chain), _content("--tls-key", files.key)
    if (contents["--tls-cert"], contents["--tls-key"]) != again:
        raise _Changing("--tls-cert and --tls-key were replaced while they were read: start again")
    not_before, not_after = _dates(context, contents["--tls-cert"])
    return Pair(
        chain=contents["--tls-cert"],
        key=contents["--tls-key"],
        client_ca=contents.get("--tls-client-ca"),
        peer_ca=contents.get("--peer-ca"),
        context=context,
        not_before=not_before,
        not_after=not_after,
    )


def _content(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCertificate(f"{flag} {path} cannot be read: {error.strerror}") from error


def _trusted(flag: str, content: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_text(content))
    except (ssl.SSLError, ValueError) as error:
        msg = f"{flag}: the file has no certificates in PEM (-----BEGIN CERTIFICATE-----) that can be read"
        raise BadCertificate(msg) from error


def _context(files: Files) -> ssl.SSLContext:
    """Return the TLS settings of HTTP; OpenSSL checks that certificate and key belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.chain, files.key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            msg = "--tls-cert and --tls-key do not belong together: pass the key of this certificate"
        else:
            msg = f"--tls-cert and --tls-key cannot be used: {error.reason or error}"
        raise BadCertificate(msg) from error
    except OSError as error:
        raise BadCertificate(f"--tls-cert and --tls-key cannot be read: {error.strerror}") from error
    return context


def _no_passphrase() -> str:
    """Refuse an encrypted key, for which OpenSSL would ask at the terminal."""
    msg = "--tls-key is encrypted, and a server cannot type its passphrase: pass the key without one, readable by this user only"
    raise BadCertificate(msg)


def _dates(context: ssl.SSLContext, chain: bytes) -> tuple[float, float]:
    """Return start and end of the certificate's validity. Raises BadCertificate.

    A client that trusts just this certificate makes a handshake in memory. So the standard library
    is enough to read the dates, and the certificate is known to work for servers.
    """
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False  # clients check its names
    client_side.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        client_side.load_verify_locations(cadata=_text(chain))
        client = _shake_hands(client_side, context)
    except ssl.SSLCertVerificationError as error:
        raise BadCertificate(f"--tls-cert cannot be used by a server: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise BadCertificate(f"--tls-cert cannot be used: {error.reason or error}") from error
    certificate: Any = client.getpeercert()
    return float(ssl.cert_time_to_seconds(certificate["notBefore"])), float(
        ssl.cert_time_to_seconds(certificate["notAfter"])
    )


def _shake_hands(client_side: ssl.SSLContext, server_side: ssl.SSLContext) -> ssl.SSLObject:
    """Make a handshake in memory; returns the client's end. Raises SSLError, BadCertificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    unfinished = [client, server_side.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(_MOST_STEPS):
        for side in tuple(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(side)
        if not unfinished:
            return client
    raise BadCertificate("--tls-cert cannot be used: a handshake with it does not end")


def _stamp(files: Files, now: float) -> object:
    """Return an identity of the files' contents; None while one is too young to have an identity.

    A time in the future does not count as young: else the file would be read at every handshake
    until then.
    """
    try:
        states = [path.stat() for _, path in files.flags]
    except OSError as error:
        return type(error), error.filename
    if any(0.0 <= now - state.st_mtime < ROUNDED_SECONDS for state in states):
        return None
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for state in states)


def _same(one: Pair, other: Pair) -> bool:
    return (one.chain, one.key, one.client_ca, one.peer_ca) == (other.chain, other.key, other.client_ca, other.peer_ca)


def _text(content: bytes) -> str:
    return content.decode("ascii", "replace")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
