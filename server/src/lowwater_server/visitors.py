"""Visitors of an HTTP server, and their rights under access rules.

Programs send their token with each request (``Authorization: Bearer``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import hdrs, web

from lowwater import errors
from lowwater_server.audit import ANONYMOUS, Actor, Audit
from lowwater_server.tokens import bearer, digest, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowwater.views import Identity

METRICS: Final = "/metrics"

HEALTH: Final = "/healthz"

TRIES: Final = 10
AGAIN_SECONDS: Final = 1.0
"""Limits of wrong tokens from one address: this many at once, then one in this time.

A further wrong token is told to come later. A right one is admitted all the same: tokens cannot be
guessed (see ``digest``), and all visitors behind a proxy have the same address.
"""

MOST_ADDRESSES: Final = 1000
"""Greatest number of addresses that are told apart; all further ones count as one."""

_OTHERS: Final = ""


class Denied(Exception):
    """A visitor is refused. The message says what to do, and quotes nothing of the request."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


class WrongTokens:
    """Counts the recent wrong tokens of each address.

    O(1), but O(addresses) when there are many; times are seconds of any clock.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """Time at which all wrong tokens of an address are forgiven."""

    def wait(self, address: str, now: float) -> float:
        """Return the seconds until an address may try again; 0.0: now."""
        until = self._until.get(self._key(address, now), now)
        return max(0.0, until - now - (TRIES - 1) * AGAIN_SECONDS)

    def count(self, address: str, now: float) -> None:
        """Count a wrong token."""
        key = self._key(address, now)
        self._until[key] = max(self._until.get(key, now), now) + AGAIN_SECONDS

    def _key(self, address: str, now: float) -> str:
        if address in self._until or len(self._until) < MOST_ADDRESSES:
            return address
        self._until = {other: until for other, until in self._until.items() if until > now}
        return address if len(self._until) < MOST_ADDRESSES else _OTHERS


class Rights(Protocol):
    """Finds the principals of tokens. For one event loop."""

    async def controlled(self) -> bool:
        """Return True under access rules; without them everybody may see everything.

        Raises LowwaterError while the rules cannot be read.
        """
        ...

    async def whose(self, token_sha256: str) -> Identity:
        """Return the principal of a token by its digest; an empty name for an unknown token.

        Raises LowwaterError while the rules cannot be read.
        """
        ...

    def close(self) -> None:
        """End all questions to the authority."""


class Visitors:
    """Admits everybody: without ``--access`` there are no identities."""

    async def check(self, request: web.Request) -> None:
        """Return if a request may be answered.

        Raises Denied, and LowwaterError while the rules cannot be read.
        """

    async def still(self, request: web.Request) -> bool:
        """Tell whether a request that was admitted would be admitted now."""
        try:
            await self.check(request)
        except (Denied, errors.LowwaterError):
            return False
        return True

    @web.middleware
    async def admitting(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        """Answer a request that may be answered. Raises Denied."""
        await self.check(request)
        response: web.StreamResponse = await handler(request)
        return response

    def routes(self) -> list[web.RouteDef]:
        """Return the routes by which visitors sign in."""
        return []


EVERYBODY: Final = Visitors()


class KnownVisitors(Visitors):
    """Admits those whom the access rules know, and everybody without rules. For one event loop.

    ``monotonic`` returns seconds of any clock.
    """

    open: frozenset[str] = frozenset({HEALTH})
    """Routes that everybody may see."""

    how: str = "send 'Authorization: Bearer TOKEN'"
    """Sentence that tells an unknown visitor what to do."""

    def __init__(self, rights: Rights, *, monotonic: Callable[[], float]) -> None:
        self._rights = rights
        self._monotonic = monotonic
        self._wrong = WrongTokens()
        self._audit = Audit(monotonic)

    async def check(self, request: web.Request) -> None:
        """See Visitors. Only routes in ``open`` are open; a new route is closed by default."""
        resource = request.match_info.route.resource
        route = "" if resource is None else resource.canonical
        if route in self.open or not await self._rights.controlled():
            return
        act = "metrics" if route == METRICS else "page"
        principal, token_digest = await self._who(request, act)
        if not (principal.metrics if act == "metrics" else principal.page):
            self._audit.refused(act, actor(principal, token_digest, request), "", errors.PermissionDenied.reason)
            raise Denied(403, lacks(principal, act))

    async def signed_in(self, request: web.Request) -> tuple[Identity, str] | None:
        """Return the principal of a request that carries no token, and a digest; None: unknown."""
        del request
        return None

    async def by_token(self, token: str, request: web.Request, act: str) -> tuple[Identity, str]:
        """Return the principal of a token, and the digest. Raises Denied."""
        token_digest = digest(token)
        principal = await self._rights.whose(token_digest)
        if not principal.name:
            peer, now = peer_of(request), self._monotonic()
            wait = self._wrong.wait(peer, now)
            if wait:
                self._audit.refused(act, Actor(ANONYMOUS, peer), "", errors.Overloaded.reason)
                again: dict[str, str] = {hdrs.RETRY_AFTER: str(int(wait) + 1)}
                raise Denied(
                    429, "this token is nobody's, and too many such came from your address: try again later", again
                )
            self._wrong.count(peer, now)
            raise self._unknown(request, act, "this token is nobody's: it is wrong, was removed, or has expired")
        return principal, token_digest

    async def _who(self, request: web.Request, act: str) -> tuple[Identity, str]:
        headers = request.headers.getall(hdrs.AUTHORIZATION, ())
        if headers:
            try:
                token = bearer(headers)
            except ValueError as error:
                raise self._unknown(request, act, str(error)) from None
            return await self.by_token(token, request, act)
        identity = await self.signed_in(request)
        if identity is None:
            raise self._unknown(request, act, self.how)
        return identity

    def _unknown(self, request: web.Request, act: str, sentence: str) -> Denied:
        self._audit.refused(act, Actor(ANONYMOUS, peer_of(request)), "", errors.Unauthenticated.reason)
        return Denied(401, sentence, {hdrs.WWW_AUTHENTICATE: 'Bearer realm="lowwater"'})


def peer_of(request: web.Request) -> str:
    """Return the address that a request comes from, for the log."""
    return request.remote or "unknown"


def actor(principal: Identity, token_digest: str, request: web.Request) -> Actor:
    """Return the sender of a request, for the audit log."""
    return Actor(principal.name, peer_of(request), fingerprint(token_digest))


def lacks(principal: Identity, right: str) -> str:
    """Return the sentence for a principal who lacks a right: what is missing, and the fix."""
    what = "scrape /metrics" if right == "metrics" else "see the page: it shows every namespace"
    return f"{principal.name!r} may not {what}. {right} = true in the access file allows it"
