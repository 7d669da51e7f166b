"""Who looks at the page, its API and /metrics, once ``--access`` says who may.

Programs present their token with each request (``Authorization: Bearer``). A browser cannot, above all not for a stream of events, so a person
signs in once: the token is exchanged for a cookie that this process alone has signed and alone takes, for ``SESSION_SECONDS`` at most. It
holds the digest of the token, from which nobody can make the token. Whose that is is looked up anew with every request, so it ends when the token
leaves the access file.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from lowwater import errors
from lowwater_authority.access.audit import Audit
from lowwater_authority.access.identity import bearer, is_token
from lowwater_authority.access.policy import ANONYMOUS, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowwater import Identity
    from lowwater_authority.web.rights import Rights

SESSION_SECONDS: Final = 12 * 3600
"""A working day: how long a sign-in counts."""

SESSION: Final = "/session"
"""Where one signs in (POST), out (DELETE), and asks whether one has (GET)."""

METRICS: Final = "/metrics"

OPEN: Final = frozenset({"/", "/static/{path}", "/healthz", SESSION})
"""Routes for everybody: the files of the page are the same for all, and show nothing."""

MOST_TOKEN_BYTES: Final = 4096
"""Of the request that signs in."""

TOKEN_SECONDS: Final = 10.0
"""How long it may take to arrive: a connection that is being answered is cut off by nobody else."""

TRIES: Final = 10
AGAIN_SECONDS: Final = 1.0
"""So many wrong tokens may come from one address at once, then one in this time; what is wrong meanwhile is told to come later.

A right one is let in all the same: there is nothing to guess (see ``digest``), and everybody behind one proxy has its address.
"""

MOST_ADDRESSES: Final = 1000
"""Addresses that are told apart; what is beyond them counts as one more."""

_OTHERS: Final = ""


class Denied(Exception):
    """A request is refused for who makes it. The message says what to do, and holds nothing that was presented."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


class WrongTokens:
    """How often each address has been wrong lately. O(1), but O(addresses) when there are many; times are seconds of any clock."""

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


class Visitors:
    """Lets everybody in: without ``--access`` nobody knows who is who."""

    async def check(self, request: web.Request) -> None:
        """Return when a request may be answered. Raises Denied, and LowwaterError when nobody can tell."""

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
        """Return where one signs in and out."""
        return [web.get(SESSION, self.session)]

    async def session(self, request: web.Request) -> web.Response:
        """Tell a page whether one has to sign in, and who has."""
        found = {"required": False, "name": None}
        return web.json_response(found, headers={hdrs.CACHE_CONTROL: "no-store"})


EVERYBODY: Final = Visitors()


class KnownVisitors(Visitors):
    """Lets in those whom the access rules know, and everybody where there are none. For the one event loop it is used in.

    ``rights`` says whose a token is. ``secure``: whether the page is served over TLS. ``port`` tells the cookies of two processes on one
    host apart, which browsers do not. ``clock`` gives seconds since the Unix epoch, ``monotonic`` seconds of any clock.
    """

    def __init__(
        self,
        rights: Rights,
        *,
        secure: bool,
        port: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._rights = rights
        self._secure = secure
        self._cookie = f"lowwater_{port}"
        self._clock = clock
        self._monotonic = monotonic
        self._key = secrets.token_bytes(32)
        """Ends with the process, and all sign-ins with it."""
        self._wrong = WrongTokens()
        self._audit = Audit(monotonic)

    async def check(self, request: web.Request) -> None:
        """See Visitors. What is not named as open is not: that goes for whatever is served here in future."""
        resource = request.match_info.route.resource
        route = "" if resource is None else resource.canonical
        if route in OPEN or not await self._rights.controlled():
            return
        act = "metrics" if route == METRICS else "page"
        principal = await self._who(request, act)
        if not (principal.metrics if act == "metrics" else principal.page):
            self._audit.refused(act, principal.name, _peer(request), "", errors.PermissionDenied.reason)
            raise Denied(403, _lacks(principal, act))

    def routes(self) -> list[web.RouteDef]:
        """See Visitors."""
        return [*super().routes(), web.post(SESSION, self.sign_in), web.delete(SESSION, self.sign_out)]

    async def session(self, request: web.Request) -> web.Response:
        """See Visitors."""
        principal = await self._signed_in(request)
        found = {"required": await self._rights.controlled(), "name": None if principal is None else principal.name}
        return web.json_response(found, headers={hdrs.CACHE_CONTROL: "no-store"})

    async def sign_in(self, request: web.Request) -> web.Response:
        """Exchange a token for a cookie. Raises Denied."""
        _check_site(request)
        principal, token_digest = await self._by_token(await _token(request), request, "sign_in")
        if not principal.page:
            self._audit.refused("sign_in", principal.name, _peer(request), "", errors.PermissionDenied.reason)
            raise Denied(403, _lacks(principal, "page"))
        until = int(self._clock()) + SESSION_SECONDS
        value = f"{until}.{self._seal(until, token_digest)}.{token_digest}"
        self._audit.done("sign_in", principal.name, _peer(request))
        response = _no_content()
        response.set_cookie(
            self._cookie,
            value,
            max_age=SESSION_SECONDS,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._secure,
        )
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """Have the browser forget its cookie. Raises Denied."""
        _check_site(request)
        principal = None
        with suppress(errors.LowwaterError):  # who wants to go may go, whether or not somebody can tell who that was
            principal = await self._signed_in(request)
        if principal is not None:
            self._audit.done("sign_out", principal.name, _peer(request))
        response = _no_content()
        response.del_cookie(self._cookie, path="/", httponly=True, samesite="Strict", secure=self._secure)
        return response

    async def _who(self, request: web.Request, act: str) -> Identity:
        headers = request.headers.getall(hdrs.AUTHORIZATION, ())
        if headers:
            try:
                token = bearer(headers)
            except ValueError as error:
                raise self._unknown(request, act, str(error)) from None
            return (await self._by_token(token, request, act))[0]
        principal = await self._signed_in(request)
        if principal is None:
            raise self._unknown(request, act, "sign in at the page, or send 'Authorization: Bearer TOKEN'")
        return principal

    async def _by_token(self, token: str, request: web.Request, act: str) -> tuple[Identity, str]:
        """Return whose token it is, and its digest. Raises Denied."""
        token_digest = digest(token)
        principal = await self._rights.whose(token_digest)
        if not principal.name:
            peer, now = _peer(request), self._monotonic()
            wait = self._wrong.wait(peer, now)
            if wait:
                self._audit.refused(act, ANONYMOUS, peer, "", errors.Overloaded.reason)
                again: dict[str, str] = {hdrs.RETRY_AFTER: str(int(wait) + 1)}
                raise Denied(
                    429, "this token is nobody's, and too many such came from your address: try again later", again
                )
            self._wrong.count(peer, now)
            raise self._unknown(request, act, "this token is nobody's: it is wrong, or was removed")
        return principal, token_digest

    async def _signed_in(self, request: web.Request) -> Identity | None:
        until, _, rest = request.cookies.get(self._cookie, "").partition(".")
        seal, _, token_digest = rest.partition(".")
        if not (until.isascii() and until.isdecimal() and rest.isascii()) or len(until) > len(str(2**63)):
            return None
        if not hmac.compare_digest(seal, self._seal(int(until), token_digest)) or int(until) <= self._clock():
            return None
        principal = await self._rights.whose(token_digest)
        return principal if principal.name else None

    def _seal(self, until: int, token_digest: str) -> str:
        return hmac.digest(self._key, f"{until} {token_digest}".encode(), "sha256").hex()

    def _unknown(self, request: web.Request, act: str, sentence: str) -> Denied:
        self._audit.refused(act, ANONYMOUS, _peer(request), "", errors.Unauthenticated.reason)
        return Denied(401, sentence, {hdrs.WWW_AUTHENTICATE: 'Bearer realm="lowwater"'})


def _peer(request: web.Request) -> str:
    return request.remote or "unknown"


def _lacks(principal: Identity, right: str) -> str:
    what = "scrape /metrics" if right == "metrics" else "see the page: it shows every namespace"
    return f"{principal.name!r} may not {what}. {right} = true in the access file allows it"


def _check_site(request: web.Request) -> None:
    """Refuse what another site has a browser do. The first header no page can forge; browsers leave it out over plain HTTP."""
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get(hdrs.ORIGIN)
    if site is not None:
        same = site in {"same-origin", "none"}
    else:
        same = origin is None or _host(origin) == request.host
    if not same:
        raise Denied(403, "another site may not sign anybody in or out here: open the page itself")


def _host(origin: str) -> str | None:
    """Return whose page an origin is; None when it is none at all."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _token(request: web.Request) -> str:
    """Return the token that is to be exchanged. Raises Denied."""
    refused = Denied(400, 'send {"token": "..."} as application/json')
    # Other content types a page of another site could send without having asked first.
    if request.content_type != "application/json":
        raise refused
    if (request.content_length or 0) > MOST_TOKEN_BYTES:
        raise Denied(413, f"a token has at most {MOST_TOKEN_BYTES} bytes")
    try:
        async with asyncio.timeout(TOKEN_SECONDS):
            found = json.loads(await request.content.readexactly(request.content_length or 0))
    except TimeoutError:
        raise Denied(408, f"the token did not arrive within {TOKEN_SECONDS:g} s") from None
    except (ValueError, EOFError, RecursionError):  # the last of [[[[...
        raise refused from None
    token = found.get("token") if isinstance(found, dict) else None
    if not isinstance(token, str) or not is_token(token.strip()):
        raise refused
    return token.strip()


def _no_content() -> web.Response:
    return web.Response(status=204, headers={hdrs.CACHE_CONTROL: "no-store"})
