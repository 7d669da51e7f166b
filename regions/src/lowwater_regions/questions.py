"""The server that pipelines ask over HTTP, and its visitors; lowwater.regions is its client.

The server has a thread and an event loop of its own. The agent stays in its first event loop, where
each question is answered.
"""

from __future__ import annotations

import asyncio
import functools
import json
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web

from lowwater import Identity, errors
from lowwater.core.settings import is_loopback
from lowwater.v1 import regions_pb2 as pb
from lowwater_regions.agent import PipelineReport
from lowwater_regions.reference import MOST_POSITIONS, MOST_TEXT
from lowwater_server.http import answer
from lowwater_server.tokens import digest
from lowwater_server.visitors import Denied, KnownVisitors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from lowwater_regions.agent import RegionAgent
    from lowwater_server.visitors import Visitors

ACT: Final = "region"
"""Name of a question in the audit."""

STALLED_SECONDS: Final = 60.0
"""Seconds without a step of the agent, beyond the time between two reports, after which it counts
as hung. A step takes less than 10 s, also while both authorities are away."""

FETCH_SITE: Final = "Sec-Fetch-Site"


_TAKE: Final[dict[str, Callable[[RegionAgent, str, PipelineReport], None]]] = {
    "/committed": lambda agent, reference, report: agent.committed(reference, report),
    "/arrived": lambda agent, reference, report: agent.arrived(reference, report),
    "/mirrored": lambda agent, reference, report: agent.mirrors(reference, report.positions),
}
"""Methods of the agent that take a report, by the path of the request."""


class _Tokens:
    """The tokens of pipelines, any of which may ask."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._digests = frozenset(map(digest, tokens))

    async def controlled(self) -> bool:
        """Return whether callers need a token: whether any is configured."""
        return bool(self._digests)

    async def whose(self, token_sha256: str) -> Identity:
        """See Rights.

        Digests are compared, so the time that a comparison takes does not reveal a token.
        """
        name = "pipelines" if token_sha256 in self._digests else ""
        return Identity(controlled=True, name=name, page=False, metrics=False)

    def close(self) -> None:
        """See Rights."""


class Pipelines(KnownVisitors):
    """Admits visitors with a token, and without tokens programs of this machine.

    A page in a browser is never admitted.
    """

    def __init__(self, tokens: Collection[str], *, monotonic: Callable[[], float]) -> None:
        super().__init__(_Tokens(tokens), monotonic=monotonic)

    async def check(self, request: web.Request) -> None:
        """See Visitors."""
        resource = request.match_info.route.resource
        if resource is not None and resource.canonical in self.open:
            return
        if hdrs.ORIGIN in request.headers or request.headers.get(FETCH_SITE, "none") != "none":
            raise Denied(403, "a page in a browser may not ask the agent of a region: it serves no pages")
        if request.method == hdrs.METH_POST and request.content_type != "application/json":
            raise Denied(415, "send the body as application/json")
        if await self._rights.controlled():
            await self._who(request, ACT)
        elif not is_loopback(request.url.host or ""):
            # A stranger can point any other name at this machine.
            raise Denied(403, "without a token ask by the name localhost, 127.0.0.1 or [::1]")


def _answering(handler: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[web.Response]]:
    """Answer in JSON, and with 409 and the reason where the agent refuses."""

    @functools.wraps(handler)
    async def answered(self: Questions, request: web.Request) -> web.Response:
        try:
            return answer(json.dumps(await handler(self, request)).encode())
        except errors.LowwaterError as error:
            refusal = {"reason": error.reason, "message": error.message, "metadata": dict(error.metadata)}
            return answer(json.dumps(refusal).encode(), 409)

    return answered


class Questions:
    """The questions as a part of a server: see Part. Made in the event loop of the agent."""

    def __init__(self, agent: RegionAgent, every: float = 1.0) -> None:
        self._agent = agent
        self._longest_idle = every + STALLED_SECONDS
        self._loop = asyncio.get_running_loop()

    def begin(self, visitors: Visitors) -> None:
        """See Part."""

    def end(self) -> None:
        """See Part."""

    def health(self) -> Mapping[str, Any]:
        """See Part. Raises Unavailable when the agent hangs: this thread would still answer."""
        idle = self._agent.idle_seconds
        if idle > self._longest_idle:
            raise errors.Unavailable(f"the agent has ended no round and no call for {idle:.0f} s: it hangs; restart it")
        return {"idle_seconds": round(idle, 1)}

    def routes(self) -> list[web.RouteDef]:
        """See Part."""
        return [
            web.get("/", self._status),
            web.get("/token", self._token),
            *(web.post(path, self._report) for path in _TAKE),
            web.post("/raised", self._raised),
        ]

    async def _ask(self, question: Callable[[], Any]) -> Any:
        """Ask the agent in its own event loop.

        The question is finished there also when its caller goes away.
        """

        async def in_agent() -> Any:
            result = question()
            return await result if isawaitable(result) else result

        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(in_agent(), self._loop)))

    @_answering
    async def _status(self, _: web.Request) -> dict[str, Any]:
        status: dict[str, Any] = await self._ask(self._agent.status)
        return status

    @_answering
    async def _token(self, request: web.Request) -> dict[str, Any]:
        reference, fresh = request.query.get("reference", ""), request.query.get("fresh")

        async def token() -> dict[str, Any]:
            view = await self._agent.confirm_owned(reference) if fresh else self._agent.owned(reference)
            return {
                "number": view.number,
                "reference": view.name,
                "incarnation": view.incarnation,
                "stop": bool(view.moving_to),
                "published_micros": view.published_micros,
                "batch": view.batch,
                "digest": view.digest,
                "positions": [[place.cluster, place.topic, place.partition, place.offset] for place in view.positions],
                "stale_seconds": self._agent.stale,
                "linked": self._agent.linked,
            }

        fields: dict[str, Any] = await self._ask(token)
        return fields

    @_answering
    async def _report(self, request: web.Request) -> dict[str, Any]:
        reference, report, _ = await report_in(request)
        await self._ask(lambda: _TAKE[request.path](self._agent, reference, report))
        return {}

    @_answering
    async def _raised(self, request: web.Request) -> dict[str, Any]:
        reference, report, body = await report_in(request)
        sink, cut = body.get("sink"), body.get("cut", "")
        if not isinstance(sink, str) or not isinstance(cut, str) or len(cut) > MOST_TEXT:
            raise errors.InvalidArgument(f"sink and cut must be texts, and cut has at most {MOST_TEXT} characters")
        await self._ask(lambda: self._agent.raised(reference, report.number, sink, cut))
        return {}


async def report_in(request: web.Request) -> tuple[str, PipelineReport, dict[str, Any]]:
    """Return the reference that a request names, its report, and its whole body.

    Raises InvalidArgument.
    """
    try:
        body = await request.json()
        positions = [
            pb.SourcePosition(cluster=cluster, topic=topic, partition=partition, offset=offset)
            for cluster, topic, partition, offset in body.get("positions", ())
        ]
        report = PipelineReport(
            int(body.get("number", 0)),
            int(body.get("batch", -1)),
            str(body.get("digest", "")),
            positions,
            bool(body.get("stopped")),
        )
        # A value that fits no message would end the reports of all references, so try it here.
        pb.ReferenceProgress(number=report.number, batch=report.batch, digest=report.digest)
        texts = [report.digest, *(text for place in positions for text in (place.cluster, place.topic))]
        if len(positions) > MOST_POSITIONS or max(map(len, texts)) > MOST_TEXT:
            raise ValueError(f"more than {MOST_POSITIONS} positions, or a text of more than {MOST_TEXT} characters")
        if not isinstance(body["reference"], str):
            raise TypeError("reference is no text")
        return body["reference"], report, body
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise errors.InvalidArgument(f"the body of the request is malformed ({error!r})") from None
