"""Who looks at what is served over HTTP, once there are rules for that: programs present their token with each request (``Authorization: Bearer``)."""

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
"""So many wrong tokens may come from one address at once, then one in this time; what is wrong
meanwhile is told to come later.

A right one is let in all the same: there is nothing to guess (see ``digest``), and everybody behind
one proxy has its address.
"""

MOST_ADDRESSES: Final = 1000
"""Addresses that are told apart; what is beyond them counts as one more."""

_OTHERS: Final = ""


class Denied(Exception):
    """A request is refused for who makes it.

    The message says what to do, and holds nothing that was presented.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


class WrongTokens:
    """How often each address has been wrong lately.

    O(1), but O(addresses) when there are many; times are seconds of any clock.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """When all that an address got wrong is forgiven."""

    def wait(self, address: str, now: float) -> float:
        """Return after how many seconds an address may try again; 0.0: now."""
        until = self._until.get(self._key(address, now), now)
        return max(0.0, until - now - (TRIES - 1) * AGAIN_SECONDS)

    def count(self, address: str, now: float) -> None:
        """One more was wrong."""
        key = self._key(address, now)
        self._until[key] = max(self._until.get(key, now), now) + AGAIN_SECONDS

    def _key(self, address: str, now: float) -> str:
        if address in self._until or len(self._until) < MOST_ADDRESSES:
            return address
        self._until = {each: until for each, until in self._until.items() if until > now}
        return address if len(self._until) < MOST_ADDRESSES else _OTHERS


class Rights(Protocol):
    """Says whose a token is. For one event loop."""

    async def controlled(self) -> bool:
        """Whether it matters: without access rules everybody may see everything.

        Raises LowwaterError when nobody can tell.
        """
        ...

    async def whose(self, token_sha256: str) -> Identity:
        """Return whose token has a digest; the name is empty when it is nobody's.

        Raises LowwaterError when nobody can tell.
        """
        ...

    def close(self) -> None:
        """Ask nothing more."""


class Visitors:
    """Lets everybody in: without ``--access`` nobody knows who is who."""

    async def check(self, request: web.Request) -> None:
        """Return when a request may be answered.

        Raises Denied, and LowwaterError when nobody can tell.
        """

    async def still(self, request: web.Request) -> bool:
        """Whether a request that was let in would be let in now."""
        try:
            await self.check(request)
        except (Denied, errors.LowwaterError):
            return False
        return True

    @web.middleware
    async def admitting(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        """Answer those who may ask. Raises Denied."""
        await self.check(request)
        response: web.StreamResponse = await handler(request)
        return response

    def routes(self) -> list[web.RouteDef]:
        """Return where visitors say who they are, besides by each request."""
        return []


EVERYBODY: Final = Visitors()


class KnownVisitors(Visitors):
    """Lets in those whom the access rules know, and everybody where there are none.

    For the one event loop it is used in.

    ``rights`` says whose a token is; ``monotonic`` gives seconds of any clock.
    """

    open: frozenset[str] = frozenset({HEALTH})
    """Routes for everybody."""

    how: str = "send 'Authorization: Bearer TOKEN'"
    """What to do to be known."""

    def __init__(self, rights: Rights, *, monotonic: Callable[[], float]) -> None:
        self._rights = rights
        self._monotonic = monotonic
        self._wrong = WrongTokens()
        self._audit = Audit(monotonic)

    async def check(self, request: web.Request) -> None:
        """See Visitors.

        What is not named as open is not: that goes for whatever is served here in future.
        """
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
        """Return who a request without a token is from, and the digest by which that is known; None: nobody knows."""
        del request
        return None

    async def by_token(self, token: str, request: web.Request, act: str) -> tuple[Identity, str]:
        """Return whose token it is, and its digest. Raises Denied."""
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
        found = await self.signed_in(request)
        if found is None:
            raise self._unknown(request, act, self.how)
        return found

    def _unknown(self, request: web.Request, act: str, sentence: str) -> Denied:
        self._audit.refused(act, Actor(ANONYMOUS, peer_of(request)), "", errors.Unauthenticated.reason)
        return Denied(401, sentence, {hdrs.WWW_AUTHENTICATE: 'Bearer realm="lowwater"'})


def peer_of(request: web.Request) -> str:
    """Return from where a request comes, for the log."""
    return request.remote or "unknown"


def actor(principal: Identity, token_digest: str, request: web.Request) -> Actor:
    """Return who makes a request, for the audit."""
    return Actor(principal.name, peer_of(request), fingerprint(token_digest))


def lacks(principal: Identity, right: str) -> str:
    """Return what to do for somebody who may not look."""
    what = "scrape /metrics" if right == "metrics" else "see the page: it shows every namespace"
    return f"{principal.name!r} may not {what}. {right} = true in the access file allows it"
