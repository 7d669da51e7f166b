"""The visitors of the page and its API, if ``--access`` has rules for them.

A program presents its token with each request. A browser cannot do so for a stream of events, so a
person signs in once, and the page exchanges the token for a cookie. Only this process signs and
accepts the cookie, for ``SESSION_SECONDS`` at most. The cookie holds the digest of the token, from
which the token cannot be computed. The rights of the digest are looked up with every request, so a
session ends when the token leaves the access file.
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
"""Longest session in seconds: a working day."""

NONCE_DIGITS: Final = 16
"""Random hexadecimal digits at the beginning of a seal, different for two sessions of a token."""

SESSION: Final = "/session"
"""Path to sign in (POST), to sign out (DELETE), and to ask for the state of the session (GET)."""

MOST_TOKEN_BYTES: Final = 4096
"""Most bytes of a request that signs in."""

TOKEN_SECONDS: Final = 10.0
"""Longest time in seconds for such a request to arrive.

The HTTP server does not cut off a connection whose request is being handled."""

log = logging.getLogger(__name__)


class _Session(NamedTuple):
    """The content of a cookie."""

    until: int
    """End of the session, in seconds since the Unix epoch."""
    seal: str
    token_digest: str


class SignedIn(KnownVisitors):
    """Visitors who present a token or sign in.

    ``secure``: whether the page is served over TLS. ``port`` stands in the name of the cookie,
    because browsers share cookies between the ports of a host. ``clock`` gives seconds since the
    Unix epoch, ``monotonic`` seconds of any clock. ``hosts``: the names by which browsers may reach
    the page.
    """

    open = frozenset({"/", "/static/{path}", HEALTH, SESSION})
    """Paths without access control. The files of the page are the same for all and show no data."""

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
        """Key of the seals. It ends with the process, and so do all sessions."""
        self._ended: dict[str, int] = {}
        """Seals of signed-out sessions, each with the end of the session as in _Session.until."""

    async def check(self, request: web.Request) -> None:
        """See Visitors. The name in the Host header is checked even without access rules."""
        host_headers = request.headers.getall(hdrs.HOST, ())
        if request.path != HEALTH and not self._hosts.take(host_headers):
            self._log_refused_host(shortened(", ".join(host_headers)))
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
        """Answer whether visitors must sign in, and who has signed in."""
        visitor = await self.signed_in(request)
        state = {
            "required": await self._rights.controlled(),
            "name": None if visitor is None else visitor[0].name,
        }
        return web.json_response(state, headers={hdrs.CACHE_CONTROL: "no-store"})

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
        """End the session and delete its cookie. Raises Denied."""
        _check_site(request)
        visitor = None
        with suppress(errors.LowwaterError):  # signing out needs no answer of the authority
            visitor = await self.signed_in(request)
        if visitor is not None:
            self._audit.done("sign_out", actor(*visitor, request))
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
        # The session may have been signed out meanwhile.
        return (principal, session.token_digest) if principal.name and session.seal not in self._ended else None

    def _session(self, request: web.Request) -> _Session | None:
        """Return the session of a validly sealed cookie that has not ended by itself, or None."""
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
        """End the session of a request, also for copies of its cookie.

        O(sessions that were signed out and have not ended by themselves).
        """
        now = self._clock()
        self._ended = {seal: until for seal, until in self._ended.items() if until > now}
        session = self._session(request)
        if session is not None:
            self._ended[session.seal] = session.until

    def _seal(self, until: int, token_digest: str, nonce: str) -> str:
        return nonce + hmac.digest(self._key, f"{until} {token_digest} {nonce}".encode(), "sha256").hex()


def _check_site(request: web.Request) -> None:
    """Refuse a request that another site makes a browser send. Raises Denied.

    No page can forge the header Sec-Fetch-Site. Browsers leave it out over plain HTTP.
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
    """Return the host and port of an origin; None when it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _token(request: web.Request) -> str:
    """Return the token of a request that signs in. Raises Denied."""
    refused = Denied(400, 'send {"token": "..."} as application/json')
    # A page of another site could send other content types without a preflight request.
    if request.content_type != "application/json":
        raise refused
    if (request.content_length or 0) > MOST_TOKEN_BYTES:
        raise Denied(413, f"a token has at most {MOST_TOKEN_BYTES} bytes")
    try:
        async with asyncio.timeout(TOKEN_SECONDS):
            message = json.loads(await request.content.readexactly(request.content_length or 0))
    except TimeoutError:
        raise Denied(408, f"the token did not arrive within {TOKEN_SECONDS:g} s") from None
    except (ValueError, EOFError, RecursionError):  # the last of [[[[...
        raise refused from None
    token = message.get("token") if isinstance(message, dict) else None
    if not isinstance(token, str) or not is_token(token.strip()):
        raise refused
    return token.strip()


def _no_content() -> web.Response:
    return web.Response(status=204, headers={hdrs.CACHE_CONTROL: "no-store"})
