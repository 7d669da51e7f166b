"""Who looks at the page and its API, once ``--access`` says who may.

Programs present their token with each request. A browser cannot, above all not for a stream of
events, so a person signs in once: the token is exchanged for a cookie that this process alone has
signed and alone takes, for ``SESSION_SECONDS`` at most. It holds the digest of the token, from
which nobody can make the token. Whose that is is looked up anew with every request, so it ends when
the token leaves the access file.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from lowwater import errors
from lowwater.core.events import Limited, event, shortened
from lowwater_page.hosts import Hosts
from lowwater_server.tokens import is_token
from lowwater_server.visitors import HEALTH, Denied, KnownVisitors, actor, lacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater import Identity
    from lowwater_server.visitors import Rights

SESSION_SECONDS: Final = 12 * 3600
"""A working day: how long a sign-in counts."""

NONCE_DIGITS: Final = 16
"""Hexadecimal digits at the beginning of a seal, at random: they tell two sessions of one token
apart."""

SESSION: Final = "/session"
"""Where one signs in (POST), out (DELETE), and asks whether one has (GET)."""

MOST_TOKEN_BYTES: Final = 4096
"""Of the request that signs in."""

TOKEN_SECONDS: Final = 10.0
"""How long it may take to arrive: a connection that is being answered is cut off by nobody else."""

log = logging.getLogger(__name__)


class _Session(NamedTuple):
    """What a cookie holds."""

    until: int
    """The second at which it ends by itself, since the Unix epoch."""
    seal: str
    token_digest: str


class SignedIn(KnownVisitors):
    """Visitors who may sign in, besides presenting a token.

    ``secure``: whether the page is served over TLS. ``port`` tells the cookies of two processes on
    one host apart, which browsers do not. ``clock`` gives seconds since the Unix epoch,
    ``monotonic`` seconds of any clock. ``hosts``: the names by which browsers may reach the page.
    """

    open = frozenset({"/", "/static/{path}", HEALTH, SESSION})
    """The files of the page are the same for all, and show nothing."""

    how = "sign in at the page, or send 'Authorization: Bearer TOKEN'"

    def __init__(
        self,
        rights: Rights,
        *,
        secure: bool,
        port: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        hosts: Hosts | None = None,
    ) -> None:
        super().__init__(rights, monotonic=monotonic)
        self._hosts = hosts or Hosts()
        self._refused_hosts = Limited()
        self._secure = secure
        self._cookie = f"lowwater_{port}"
        self._clock = clock
        self._key = secrets.token_bytes(32)
        """Ends with the process, and all sign-ins with it."""
        self._ended: dict[str, int] = {}
        """Seals of sessions that were signed out, each with the second at which it would have ended
        by itself."""

    async def check(self, request: web.Request) -> None:
        """See Visitors.

        Names count without access rules above all: then the page is for whoever reaches it.
        """
        given = request.headers.getall(hdrs.HOST, ())
        if request.path != HEALTH and not self._hosts.take(given):
            self._log_refused_host(shortened(", ".join(given)))
            raise Denied(
                421, "the page is not served under this name; if it is one of its own, start it with --page-host NAME"
            )
        await super().check(request)

    def _log_refused_host(self, host: str) -> None:
        """Log a refused name. All names share one limit, because anybody can make names up."""
        if count := self._refused_hosts.count("", self._monotonic()):
            log.warning(
                "the page refuses requests for the name %r: if it is one of its own, start it with --page-host NAME",
                host,
                extra=event("page_host_refused", host=host, count=count),
            )

    def routes(self) -> list[web.RouteDef]:
        """See Visitors."""
        return [web.get(SESSION, self.session), web.post(SESSION, self.sign_in), web.delete(SESSION, self.sign_out)]

    async def session(self, request: web.Request) -> web.Response:
        """Tell a page whether one has to sign in, and who has."""
        known = await self.signed_in(request)
        found = {"required": await self._rights.controlled(), "name": None if known is None else known[0].name}
        return web.json_response(found, headers={hdrs.CACHE_CONTROL: "no-store"})

    async def sign_in(self, request: web.Request) -> web.Response:
        """Exchange a token for a cookie. Raises Denied."""
        _check_site(request)
        principal, token_digest = await self.by_token(await _token(request), request, "sign_in")
        who = actor(principal, token_digest, request)
        if not principal.page:
            self._audit.refused("sign_in", who, "", errors.PermissionDenied.reason)
            raise Denied(403, lacks(principal, "page"))
        until = int(self._clock()) + SESSION_SECONDS
        nonce = secrets.token_hex(NONCE_DIGITS // 2)  # two sign-ins within one second are two sessions
        value = f"{until}.{self._seal(until, token_digest, nonce)}.{token_digest}"
        self._audit.done("sign_in", who)
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
        known = None
        with suppress(errors.LowwaterError):  # who wants to go may go, whether or not somebody can tell who that was
            known = await self.signed_in(request)
        if known is not None:
            self._audit.done("sign_out", actor(*known, request))
        self._end(request)
        response = _no_content()
        response.del_cookie(self._cookie, path="/", httponly=True, samesite="Strict", secure=self._secure)
        return response

    async def signed_in(self, request: web.Request) -> tuple[Identity, str] | None:
        """See KnownVisitors."""
        session = self._session(request)
        if session is None or session.seal in self._ended:
            return None
        principal = await self._rights.whose(session.token_digest)
        # It may have been signed out meanwhile.
        return (principal, session.token_digest) if principal.name and session.seal not in self._ended else None

    def _session(self, request: web.Request) -> _Session | None:
        """Return the session of a request's cookie, if this process has sealed it and it has not ended by itself."""
        until, _, rest = request.cookies.get(self._cookie, "").partition(".")
        seal, _, token_digest = rest.partition(".")
        if not (until.isascii() and until.isdecimal() and rest.isascii()) or len(until) > len(str(2**63)):
            return None
        if (
            not hmac.compare_digest(seal, self._seal(int(until), token_digest, seal[:NONCE_DIGITS]))
            or int(until) <= self._clock()
        ):
            return None
        return _Session(int(until), seal, token_digest)

    def _end(self, request: web.Request) -> None:
        """Take the session of a request no more, also from whoever has copied its cookie.

        O(sessions that were signed out lately).
        """
        now = self._clock()
        self._ended = {seal: until for seal, until in self._ended.items() if until > now}
        session = self._session(request)
        if session is not None:
            self._ended[session.seal] = session.until

    def _seal(self, until: int, token_digest: str, nonce: str) -> str:
        return nonce + hmac.digest(self._key, f"{until} {token_digest} {nonce}".encode(), "sha256").hex()


def _check_site(request: web.Request) -> None:
    """Refuse what another site has a browser do.

    The first header no page can forge; browsers leave it out over plain HTTP.
    """
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
