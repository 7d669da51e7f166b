"""Who may do what, as the file of ``--access`` says: parsed whole or refused, then only asked.

No clock, no network.

What no rule allows is refused, and there are no rules that forbid. docs/security.md shows a file.
"""

from __future__ import annotations

import hmac
import math
import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lowwater._server.audit import ANONYMOUS
from lowwater._server.tokens import digest
from lowwater_authority.files.table import BadFile, Table, bytes_of, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


EVERYTHING: Final = "*"
"""As a namespace: each of them, and the one without a name. As a name: each within the namespace.
"""


class Action(StrEnum):
    """What a rule can allow."""

    REPORT = "report"
    """Register it, claim its ranges, report and commit for them, give them back."""
    READ = "read"
    """Its watermarks, ranges, history, and its place in the graph."""
    OPERATE = "operate"
    """Set its inputs, reset, adopt, retire, cut its slices and drop. On everything: pin and drain.
    """


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is allowed within a namespace: names, of which the last character may be ``*`` for any ending."""

    namespace: str
    names: dict[Action, tuple[str, ...]]

    def covers(self, action: Action, namespace: str, name: str) -> bool:
        """Whether it allows an action on a computation."""
        if self.namespace not in (EVERYTHING, namespace):
            return False
        return any(_matches(pattern, name) for pattern in self.names.get(action, ()))


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who may do something. ``name`` stands in logs and refusals, and is no secret."""

    name: str
    allow: tuple[Allowance, ...] = ()
    page: bool = False
    """Whether it may open the status page and its API, which show every namespace."""
    metrics: bool = False
    """Whether it may scrape /metrics."""
    regions: tuple[str, ...] = ()
    """Names of the regions that it speaks for at a global authority. A token of one region must not
    move, or stop, what another one owns."""
    shard: bool = False
    """Whether it is a shard, which claims and reports at computations that are cut for the slices
    that it serves. No file says so."""
    digests: tuple[str, ...] = field(default=(), repr=False)
    """SHA-256 of its tokens, 64 lower-case hexadecimal digits each."""
    expires: Mapping[str, float] = field(default_factory=dict, repr=False, hash=False)
    """Second since the Unix epoch from which a token does not count any more, by its digest.

    Tokens that count for ever are missing."""
    certificates: tuple[str, ...] = ()
    """Names of its client certificates: a URI or DNS name, or the common name of one without these.
    """

    @property
    def ends(self) -> float | None:
        """Second since the Unix epoch at which the last token of this principal expires.

        None when a token or a certificate counts for ever.
        """
        if self.certificates or len(self.expires) < len(self.digests):
            return None
        return max(self.expires.values(), default=None)

    def may(self, action: Action, namespace: str, name: str) -> bool:
        """Whether it may do something to the computation ``[namespace/]name``. O(its rules)."""
        return any(allowance.covers(action, namespace, name) for allowance in self.allow)

    def may_some(self, action: Action) -> bool:
        """Whether it may do something to any computation at all."""
        return any(allowance.names.get(action) for allowance in self.allow)

    def may_all(self, action: Action) -> bool:
        """Whether it may do something to everything, also to what does not exist yet."""
        return any(
            allowance.namespace == EVERYTHING and EVERYTHING in allowance.names.get(action, ())
            for allowance in self.allow
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What one principal, one namespace and the deployment may have; None: no limit but those of the server."""

    streams: int | None = None
    """Streams that are open at once, at this process."""
    calls_per_second: float | None = None
    """Calls and streams that begin; a second's worth may come at once."""
    ranges: int | None = None
    """Key ranges of one computation that it reports for."""
    computations: int | None = None
    """Computations of one namespace that it registers in, counting slices."""
    message_bytes: int | None = None
    """Of one message to this process."""
    all_computations: int | None = None
    """Computations of the whole deployment, counting slices."""

    def over(self, others: Limits) -> Limits:
        """Return the same, with the limits of ``others`` where this one has none."""
        missing = {each.name: getattr(others, each.name) for each in fields(self) if getattr(self, each.name) is None}
        return replace(self, **missing)


DEFAULT_LIMITS: Final = Limits(streams=8192, calls_per_second=2000.0, computations=1000, all_computations=10_000)
"""Limits that count where neither the access file nor ``--limit`` sets one. ``computations``: each
computation makes the next start and stop longer. ``calls_per_second``: one process serves some
thousand calls a second."""


class Access:
    """A file of access rules: who calls, and what each may do. Immutable."""

    def __init__(self, principals: Iterable[Principal] = (), limits: Limits | None = None) -> None:
        self.principals: tuple[Principal, ...] = tuple(principals)
        self.limits: Limits = limits or Limits()
        self._digests: tuple[tuple[bytes, Principal], ...] = tuple(
            (each.encode(), principal) for principal in self.principals for each in principal.digests
        )

    @classmethod
    def load(cls, path: Path) -> Access:
        """Read a file, which must name somebody: an empty one is as a rule one that is about to be written.

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
            principals = [_principal(each) for each in top.tables("principal", PRINCIPAL)]
            _check_distinct(principals)
            limits = top.table("limits", LIMITS)
            return cls(principals, Limits() if limits is None else limits_of(limits))
        except BadFile as error:
            raise error.within(source) from None

    def with_limits(self, others: Limits) -> Access:
        """Return the same with the limits of ``others`` where the file sets none."""
        return Access(self.principals, self.limits.over(others))

    def with_principals(self, more: Iterable[Principal]) -> Access:
        """Return the same with principals that no file names."""
        return Access([*self.principals, *more], self.limits)

    def whose(self, token_digest: str, now: float) -> Principal | None:
        """Return whose token has this digest; None: nobody's, or it has expired at ``now``, in seconds since the Unix epoch.

        It is compared with every digest there is, each in constant time, so that the time an answer takes says neither how
        much of a token is right nor whose it is. O(tokens): some 0.2 us each.
        """
        given = token_digest.encode()
        found: Principal | None = None
        for each, principal in self._digests:
            if hmac.compare_digest(each, given):
                found = principal
        return None if found is None or found.expires.get(token_digest, math.inf) <= now else found

    def certified(self, names: Sequence[str]) -> list[Principal]:
        """Return those that a verified certificate with these names stands for.

        One that stands for several stands for none.
        """
        return [principal for principal in self.principals if any(name in principal.certificates for name in names)]

    def named(self, name: str) -> Principal | None:
        """Return the principal of a name; None: there is none."""
        return next((principal for principal in self.principals if principal.name == name), None)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


PRINCIPAL: Final = ("name", "token_sha256", "token", "certificates", "page", "metrics", "regions", "allow")
TOKEN: Final = ("sha256", "expires")
ALLOW: Final = ("namespace", *(action.value for action in Action))
LIMITS: Final = tuple(each.name for each in fields(Limits))

LEAST_MESSAGE: Final = 65_536
"""Bytes; what is smaller would end ordinary calls."""

SELF: Final = "self"
PEER: Final = "peer"
"""What the log calls this process, and other shards."""

BUILT_IN: Final = frozenset({SELF, PEER})
"""Principals that no file names."""

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
    # What stands where a digest should may be the token itself.
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
        tuple(_allowance(each) for each in table.tables("allow", ALLOW)),
        page=table.flag("page"),
        metrics=table.flag("metrics"),
        regions=table.texts(
            "regions", REGION, "names of regions, as `lowwater region --name` has them, without wildcards"
        ),
        digests=digests,
        expires={each: at for each, at in expires.items() if at is not None},
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
    """Refuse what would leave open who calls."""
    kinds: dict[str, Callable[[Principal], Iterable[str]]] = {
        "name": lambda each: (each.name,),
        "token_sha256": lambda each: each.digests,
        "certificates": lambda each: each.certificates,
    }
    for key, values in kinds.items():
        seen: dict[str, int] = {}
        for number, principal in enumerate(principals, 1):
            for value in values(principal):
                first = seen.setdefault(value, number)
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
