"""The rules of the file of ``--access``: principals, what each may do, and limits.

A file is parsed whole or refused. What no rule allows is refused; no rule forbids anything.
docs/operate/security.md shows a file. This module reads no clock and no network.
"""

from __future__ import annotations

import hmac
import math
import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lowwater_authority.files.table import BadFile, Table, bytes_of, parsed
from lowwater_server.audit import ANONYMOUS
from lowwater_server.tokens import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


EVERYTHING: Final = "*"
"""Pattern for all: every namespace, the empty one too, or every name within a namespace."""


class Action(StrEnum):
    """Actions that a rule can allow on a computation."""

    REPORT = "report"
    """Register it; claim and release its ranges; report and commit for them."""
    READ = "read"
    """Read its watermarks, ranges and history, and its place in the graph."""
    OPERATE = "operate"
    """Set its inputs; reset, adopt, retire and drop it; cut its slices. On everything: pin and
    drain."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The computations of a namespace on which actions are allowed, by name or pattern."""

    namespace: str
    names: dict[Action, tuple[str, ...]]
    """Names by action; a name that ends in ``*`` stands for all that begin so."""

    def covers(self, action: Action, namespace: str, name: str) -> bool:
        """Return whether this allows an action on a computation."""
        if self.namespace not in (EVERYTHING, namespace):
            return False
        return any(_matches(pattern, name) for pattern in self.names.get(action, ()))


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that the rules name. ``name`` is in logs and refusals; it is no secret."""

    name: str
    allow: tuple[Allowance, ...] = ()
    page: bool = False
    """True: the principal may open the status page and its API, which show every namespace."""
    metrics: bool = False
    """True: the principal may scrape /metrics."""
    regions: tuple[str, ...] = ()
    """Names of the regions that the principal speaks for at a global authority. The token of one
    region must not move or stop what another region owns."""
    shard: bool = False
    """True: the principal is a shard, which claims and reports for its slices at their roots. No
    file sets it."""
    digests: tuple[str, ...] = field(default=(), repr=False)
    """SHA-256 of each of its tokens, in 64 lower-case hexadecimal digits."""
    expires: Mapping[str, float] = field(default_factory=dict, repr=False, hash=False)
    """Time from which a token does not count, by its digest, in seconds since the Unix epoch. A
    token without an entry never expires."""
    certificates: tuple[str, ...] = ()
    """Names of its client certificates: URI or DNS names, or the common name of a certificate
    without these."""

    @property
    def ends(self) -> float | None:
        """Time at which its last token expires, in seconds since the Unix epoch.

        None: one of its tokens never expires, or it has a certificate.
        """
        if self.certificates or len(self.expires) < len(self.digests):
            return None
        return max(self.expires.values(), default=None)

    def may(self, action: Action, namespace: str, name: str) -> bool:
        """Return whether it may act on the computation ``[namespace/]name``. O(its rules)."""
        return any(allowance.covers(action, namespace, name) for allowance in self.allow)

    def may_some(self, action: Action) -> bool:
        """Return whether it may act on any computation at all."""
        return any(allowance.names.get(action) for allowance in self.allow)

    def may_all(self, action: Action) -> bool:
        """Return whether it may act on all computations, and on all that will be registered."""
        return any(
            allowance.namespace == EVERYTHING and EVERYTHING in allowance.names.get(action, ())
            for allowance in self.allow
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one principal, one namespace and the deployment; None: only the server's bounds."""

    streams: int | None = None
    """Most streams of a principal that are open at once at this process."""
    calls_per_second: float | None = None
    """Most calls and streams of a principal that begin in a second. They may begin all at once."""
    ranges: int | None = None
    """Most key ranges of one computation."""
    computations: int | None = None
    """Most computations of one namespace, counting slices."""
    message_bytes: int | None = None
    """Most bytes of one message to this process."""
    all_computations: int | None = None
    """Most computations of the deployment, counting slices."""

    def over(self, others: Limits) -> Limits:
        """Return these limits, filled up with those of ``others`` where there are none."""
        missing = {
            limit.name: getattr(others, limit.name) for limit in fields(self) if getattr(self, limit.name) is None
        }
        return replace(self, **missing)


DEFAULT_LIMITS: Final = Limits(streams=8192, calls_per_second=2000.0, computations=1000, all_computations=10_000)
"""Limits where neither the access file nor ``--limit`` sets one. Each computation makes the next
start and stop of a process longer. One process serves some thousand calls a second."""


class Access:
    """The rules of an access file. Immutable."""

    def __init__(self, principals: Iterable[Principal] = (), limits: Limits | None = None) -> None:
        self.principals: tuple[Principal, ...] = tuple(principals)
        self.limits: Limits = limits or Limits()
        self._digests: tuple[tuple[bytes, Principal], ...] = tuple(
            (token.encode(), principal) for principal in self.principals for token in principal.digests
        )

    @classmethod
    def load(cls, path: Path) -> Access:
        """Read a file, which must have a principal: an empty one is probably still being written.

        Raises BadFile, which names the place in the file and the fix, and quotes no token.
        """
        access = cls.parse(bytes_of(path), str(path))
        if not access.principals:
            fix = "write a [[principal]] with a name and token_sha256 or certificates"
            raise BadFile(f"{path}: principal", "is missing: nobody could do anything", fix)
        return access

    @classmethod
    def parse(cls, data: bytes, source: str) -> Access:
        """Parse the bytes of a file; ``source`` is what errors call it. Raises BadFile."""
        table = parsed(data, source)
        try:
            top = Table("", table, ("principal", "limits"))
            principals = [_principal(principal) for principal in top.tables("principal", PRINCIPAL)]
            _check_distinct(principals)
            limits = top.table("limits", LIMITS)
            return cls(principals, Limits() if limits is None else limits_of(limits))
        except BadFile as error:
            raise error.within(source) from None

    def with_limits(self, others: Limits) -> Access:
        """Return these rules with the limits of ``others`` where the file sets none."""
        return Access(self.principals, self.limits.over(others))

    def with_principals(self, more: Iterable[Principal]) -> Access:
        """Return these rules with further principals, which no file names."""
        return Access([*self.principals, *more], self.limits)

    def whose(self, token_digest: str, now: float) -> Principal | None:
        """Return the principal whose token has this digest.

        None: no principal has such a token, or it has expired by ``now``, in seconds since the Unix
        epoch. The digest is compared with all others, each in constant time. So the time that it
        takes reveals neither how much of a token is right, nor whose it is. O(tokens): some 0.2 us
        each.
        """
        presented = token_digest.encode()
        owner: Principal | None = None
        for token, principal in self._digests:
            if hmac.compare_digest(token, presented):
                owner = principal
        return None if owner is None or owner.expires.get(token_digest, math.inf) <= now else owner

    def certified(self, names: Sequence[str]) -> list[Principal]:
        """Return the principals that a verified certificate with these names belongs to.

        The caller refuses a certificate that belongs to several.
        """
        return [principal for principal in self.principals if any(name in principal.certificates for name in names)]

    def named(self, name: str) -> Principal | None:
        """Return the principal with a name; None: there is none."""
        return next((principal for principal in self.principals if principal.name == name), None)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


PRINCIPAL: Final = ("name", "token_sha256", "token", "certificates", "page", "metrics", "regions", "allow")
TOKEN: Final = ("sha256", "expires")
ALLOW: Final = ("namespace", *(action.value for action in Action))
LIMITS: Final = tuple(limit.name for limit in fields(Limits))

LEAST_MESSAGE: Final = 65_536
"""Least value of ``message_bytes``: a smaller one would end ordinary calls."""

SELF: Final = "self"
PEER: Final = "peer"
"""Names of this process and of other shards in the log, as principals."""

BUILT_IN: Final = frozenset({SELF, PEER})
"""Principals that no file may name."""

EMPTY: Final = digest("")


def insider(name: str, tokens: Iterable[str]) -> Principal:
    """Return a principal of the deployment itself.

    The insider reads everything. All that it changes are the watermarks of slices at their roots.
    """
    reads = Allowance(EVERYTHING, {Action.READ: (EVERYTHING,)})
    return Principal(name, (reads,), shard=True, digests=tuple(map(digest, tokens)))


def _principal(table: Table) -> Principal:
    name = table.text("name", NAME, "1 to 64 of A-Z a-z 0-9 _ . -")
    if name in BUILT_IN | {ANONYMOUS}:
        raise table.bad("name", f"is {name!r}, which the authority uses itself", "choose another")
    # No error quotes a malformed digest: it may be the token itself.
    fix = "64 hexadecimal digits, as `lowwater access token` prints them"
    listed = table.texts("token_sha256", SHA256, fix, secret=True)
    tokens = table.tables("token", TOKEN)
    expires = {token.text("sha256", SHA256, fix, secret=True): token.moment("expires") for token in tokens}
    digests = (*listed, *expires)
    if len(set(digests)) < len(listed) + len(tokens):
        raise table.bad("token", "repeats a digest of this principal", "remove one of the two")
    if EMPTY in digests:
        raise table.bad("token_sha256", "has the digest of an empty token", "make one with `lowwater access token`")
    certificates = table.texts("certificates", CERTIFICATE, "names of certificates, without wildcards")
    if not digests and not certificates:
        fix = "add token_sha256, token or certificates, or remove the principal"
        raise table.bad("", f"{name!r} can be nobody: it has neither tokens nor certificates", fix)
    return Principal(
        name,
        tuple(_allowance(allow) for allow in table.tables("allow", ALLOW)),
        page=table.flag("page"),
        metrics=table.flag("metrics"),
        regions=table.texts(
            "regions", REGION, "names of regions, as `lowwater region --name` has them, without wildcards"
        ),
        digests=digests,
        expires={token: at for token, at in expires.items() if at is not None},
        certificates=certificates,
    )


def _allowance(table: Table) -> Allowance:
    namespace = table.text("namespace", NAMESPACE, 'a namespace, "" for names without one, or "*" for all')
    fix = 'names within the namespace, such as "enriched" or "hour*": A-Z a-z 0-9 _ . - and one * at the end'
    names = {action: table.texts(action.value, PATTERN, fix) for action in Action}
    if not any(names.values()):
        raise table.bad("", "allows nothing", f"add one of {', '.join(action.value for action in Action)}")
    return Allowance(namespace, names)


def limits_of(table: Table) -> Limits:
    """Return the limits that a table sets. Raises BadFile."""
    return Limits(
        streams=table.whole("streams"),
        calls_per_second=table.number("calls_per_second"),
        ranges=table.whole("ranges"),
        computations=table.whole("computations"),
        message_bytes=table.whole("message_bytes", LEAST_MESSAGE),
        all_computations=table.whole("all_computations"),
    )


def _check_distinct(principals: Sequence[Principal]) -> None:
    """Raise BadFile when two principals have the same name, token or certificate."""
    kinds: dict[str, Callable[[Principal], Iterable[str]]] = {
        "name": lambda principal: (principal.name,),
        "token_sha256": lambda principal: principal.digests,
        "certificates": lambda principal: principal.certificates,
    }
    for key, values in kinds.items():
        first_with: dict[str, int] = {}
        for number, principal in enumerate(principals, 1):
            for value in values(principal):
                first = first_with.setdefault(value, number)
                if first != number:
                    shown = f"{value[:8]}..." if key == "token_sha256" else repr(value)
                    place = f"principal[{number}].{key}"
                    raise BadFile(place, f"is {shown}, which principal[{first}] has too", "give each its own")


_PART: Final = r"[A-Za-z0-9_.-]"

NAMESPACE: Final = re.compile(rf"\*|{_PART}{{0,128}}")
PATTERN: Final = re.compile(rf"{_PART}{{0,127}}\*|{_PART}{{1,128}}")
REGION: Final = re.compile(r"[^\s*](?:[^\n*]{0,126}[^\s*])?")
SHA256: Final = re.compile(r"[0-9a-f]{64}")
CERTIFICATE: Final = re.compile(r"[^\s*]{1,256}|[^\s*][^\n*]{0,254}[^\s*]")
NAME: Final = re.compile(rf"{_PART}{{1,64}}")
