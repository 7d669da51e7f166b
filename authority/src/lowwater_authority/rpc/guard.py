"""The guard before all services: who calls, whether that may be, and how often.

It surrounds every method that the server has. A unary call is decided whole, from its request. A
watch is decided when it begins, and again whenever the rules change; a report stream too, and
besides by each claim of each message, in rpc/workers.py.

Who calls is decided before the request is read: gRPC is told of every method that it takes a stream
of requests, of which one is read. Otherwise it would hold and parse a request before anything is
asked, and whoever reaches the port could fill the memory with a thousand of 64 MB. A request may
come long after its call, so that who calls is asked again when it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import grpc.aio

from lowwater import errors
from lowwater._server.audit import ANONYMOUS, Actor, Audit
from lowwater_authority.access.caller import CALLER, Caller
from lowwater_authority.access.identity import Credentials, host_of, presented
from lowwater_authority.access.limits import Usage
from lowwater_authority.access.methods import METHODS, OF_SHARDS, OPEN, REGION_METHODS, Method
from lowwater_authority.access.policy import BUILT_IN, Access, Limits, Principal
from lowwater_authority.rpc.interceptors import reading
from lowwater_authority.rpc.refusals import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from lowwater_authority.access.door import Door
    from lowwater_authority.engine.observer import Observer

    Call = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]
    Context = grpc.aio.ServicerContext[Any, Any]

__all__ = ["DEFAULT_BOUNDS", "Guard", "GuardBounds", "paced_by_host"]

_UNSURE: Final = frozenset(error.reason for error in (errors.ShuttingDown, errors.Unavailable, errors.JournalFailed))
"""Reasons of errors that come after an act as well as before it, or instead of it."""

_CLAIMS: Final = frozenset({"claim", "adopt"})
"""Acts that may be done and then answered with Moved, when another shard has taken the computation
over meanwhile."""


@dataclass(frozen=True, slots=True)
class GuardBounds:
    """What anybody may take of a server before it is known who that is."""

    request_seconds: float = 10.0
    """How long after its beginning a call may have no request."""

    checks_of_connection: int = 4
    checks_of_host: int = 64
    """Health checks whose answers are not taken yet, over one connection and by one host. A probe
    has one. Each may hold the 64 KiB that gRPC lets a call send before any of it is read. There are
    no places for all hosts: so no crowd keeps away what has to know whether this process is well.
    """

    watches: int = 64
    watches_of_host: int = 16
    watches_of_connection: int = 4
    """Health watches at once, by anybody: of all hosts, of one, and over one connection."""

    watch_seconds: float = 30.0
    """After which a health watch ends, and whoever is serious opens another: so that places come
    free. One whose client does not even take what it is told ends with its connection, and has its
    place until then."""


DEFAULT_BOUNDS: Final = GuardBounds()


@dataclass(slots=True, eq=False)
class _Stream:
    """An open stream, to be ended when its caller is removed or may no longer read what it follows."""

    caller: Caller
    credentials: Credentials
    rule: Method
    request: Any
    """None: it has not come yet, or the messages of the stream are decided one by one."""
    task: asyncio.Task[Any]
    inside: bool = True
    """Whether the service is at work, rather than gRPC at writing what it said: a task that is
    cancelled there ends without a status."""
    revoked: errors.LowwaterError | None = None

    def revoke(self, error: errors.LowwaterError) -> None:
        """End it, at once or after the message that is being written."""
        self.revoked = error
        if self.inside:
            self.task.cancel()


class Guard(grpc.aio.ServerInterceptor):
    """Lets through what the access rules allow.

    Cost, measured on one core: a call some 100 us more, of which 0.2 us for each token of the file.
    A report message 0.1 us, and 1 us for each claim in it, however many ranges it has: its names
    are looked up twice, before they are located and when they are taken over.
    """

    def __init__(
        self,
        access: Access,
        *,
        observer: Observer,
        audit: Audit,
        insiders: Iterable[Principal],
        monotonic: Callable[[], float],
        clock: Callable[[], float] = time.time,
        cut: Callable[[str], bool] = lambda _: False,
        bounds: GuardBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Make one; ``clock`` gives seconds since the Unix epoch, ``cut`` says whether the computation of a name is cut into slices."""
        self._insiders = tuple(insiders)
        self._cut = cut
        self._bounds = bounds
        self._access = access.with_principals(self._insiders)
        self._observer = observer
        self._audit = audit
        self._monotonic = monotonic
        self._clock = clock
        self._usage = Usage()
        self._health = Usage(fixed=True)
        self._streams: set[_Stream] = set()

    @classmethod
    def of(cls, door: Door, observer: Observer, registered: Callable[[str], bool], cut: Callable[[str], bool]) -> Guard:
        """Return the guard of a server, which follows the access file of ``door``.

        ``registered`` and ``cut`` say of a name whether a computation has it, and whether that
        computation is cut into slices.
        """
        guard = cls(
            door.access(),
            observer=observer,
            audit=Audit(time.monotonic, registered),
            insiders=door.insiders,
            monotonic=time.monotonic,
            cut=cut,
        )
        door.file.on_change.append(guard.use)
        return guard

    def use(self, access: Access) -> None:
        """Go on with other rules, or with the same once a token has expired, for the calls that come and for the streams that are open.

        On the event loop; O(streams).
        """
        self._access = access.with_principals(self._insiders)
        for stream in self._streams:
            try:
                stream.caller.become(stream.credentials.principal(self._access, self._clock()), self._access.limits)
                if stream.request is not None:
                    stream.rule.check(stream.caller, stream.request)
            except errors.PermissionDenied as error:
                stream.revoke(error)
            except errors.Unauthenticated as error:
                # What it still sends counts no more, even if it reads nothing, so that it hears of
                # its end late.
                stream.caller.become(Principal(stream.caller.principal.name), self._access.limits)
                stream.revoke(error)

    async def intercept_service(
        self, continuation: Call, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor.

        Nothing serves an unknown method, so there is nothing to guard.
        """
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        name, rule = method.rpartition("/")[2], METHODS.get(method) or REGION_METHODS.get(method)
        codecs = {
            "request_deserializer": reading(handler.request_deserializer, method),
            "response_serializer": handler.response_serializer,
        }
        if method in OPEN:
            whole = handler.request_deserializer(b"")
            if handler.response_streaming:
                return grpc.stream_stream_rpc_method_handler(
                    self._health_watch(name, handler.unary_stream, whole), **codecs
                )
            return grpc.stream_stream_rpc_method_handler(self._health_check(name, handler.unary_unary, whole), **codecs)
        if handler.response_streaming:
            serve = handler.stream_stream if handler.request_streaming else handler.unary_stream
            guarded = self._stream(name, rule, serve, one=not handler.request_streaming)
            return grpc.stream_stream_rpc_method_handler(guarded, **codecs)
        # No service here takes a stream and answers once: what does is not listed, and refused.
        rule = None if handler.request_streaming else rule
        return grpc.stream_unary_rpc_method_handler(self._unary(name, rule, handler.unary_unary), **codecs)

    # -- who and whether ---------------------------------------------------------------------------

    def _enter(self, rule: Method | None, context: Context, caller: list[Caller]) -> tuple[Method, Credentials]:
        """Find out who calls, and count the call; ``caller`` gets who it is, as soon as that is known. Raises what the call is refused for."""
        peer, now = host_of(context.peer()), self._monotonic()
        limits = self._access.limits
        try:
            credentials = presented(context.invocation_metadata() or (), context.auth_context())
            principal = credentials.principal(self._access, self._clock())
        except errors.Unauthenticated:
            self._usage.call(f"{peer} without a principal", limits, now)
            raise
        caller.append(Caller(principal, limits, peer, self._audit, self._cut, credentials.fingerprint))
        if principal.name not in BUILT_IN:  # a shard that may not ask another holds up both
            self._usage.call(principal.name, limits, now)
        if rule is None:
            msg = "nobody may call this method: it is not among those that the access rules know"
            raise errors.PermissionDenied(msg, metadata={"principal": principal.name})
        return rule, credentials

    async def _refuse(
        self,
        method: str,
        rule: Method | None,
        request: Any,
        caller: list[Caller],
        context: Context,
        error: errors.LowwaterError,
    ) -> NoReturn:
        """End a call with an error, told to the metrics and, if it is about who calls, to the audit."""
        self._observer.refused(method, error.reason)
        act = rule.act(request) if rule is not None and rule.act is not None and request is not None else method
        named = error.metadata.get("principal", ANONYMOUS)
        actor = caller[0].actor if caller else Actor(named, host_of(context.peer()))
        self._audit.refused(act, actor, error.metadata.get("computation", ""), error.reason)
        await refuse(context, error)

    # -- around the methods ------------------------------------------------------------------------

    def _unary(
        self, name: str, known: Method | None, serve: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[AsyncIterator[Any], Context], Awaitable[Any]]:
        async def guarded(requests: AsyncIterator[Any], context: Context) -> Any:
            who: list[Caller] = []
            request: Any = None
            try:
                rule, credentials = self._enter(known, context, who)
                [caller] = who
                rule.admit(caller)
                request = await _first(requests, self._bounds.request_seconds)
                caller.become(credentials.principal(self._access, self._clock()), self._access.limits)
                rule.check(caller, request)
            except errors.LowwaterError as error:
                await self._refuse(name, known, request, who, context, error)
            CALLER.set(caller)
            if rule.act is None:
                return await serve(request, context)
            act, computation = rule.act(request), rule.subject(request)
            try:
                answer = await serve(request, context)
            except grpc.aio.AbortError:
                self._tell_failed(act, caller, computation, often=rule.often)
                raise
            except (asyncio.CancelledError, Exception) as error:
                # The caller has gone, or this is a mistake here: it may have been done before.
                reason = "CANCELLED" if isinstance(error, asyncio.CancelledError) else "INTERNAL"
                self._audit.unknown(act, caller.actor, computation, reason, often=rule.often)
                raise
            if rule.acted(answer):
                self._audit.done(act, caller.actor, computation, often=rule.often)
            return answer

        return guarded

    def _tell_failed(self, act: str, caller: Caller, computation: str, *, often: bool) -> None:
        unsure = caller.reason in _UNSURE or (act in _CLAIMS and caller.reason == errors.Moved.reason)
        tell = self._audit.unknown if unsure else self._audit.failed
        if caller.reason == errors.PermissionDenied.reason:
            tell, often = self._audit.refused, True
        tell(act, caller.actor, computation, caller.reason, often=often)

    def _stream(
        self, name: str, known: Method | None, serve: Callable[[Any, Context], AsyncGenerator[Any, None]], *, one: bool
    ) -> Callable[[AsyncIterator[Any], Context], AsyncGenerator[Any, None]]:
        """Guard a method that answers with a stream; ``one``: to one request, by which it is decided."""

        async def guarded(requests: AsyncIterator[Any], context: Context) -> AsyncGenerator[Any, None]:
            who: list[Caller] = []
            asked: Any = None
            stream: _Stream | None = None
            try:
                rule, credentials = self._enter(known, context, who)
                [caller] = who
                rule.admit(caller)
                task = asyncio.current_task()
                assert task is not None
                stream = _Stream(caller, credentials, rule, None, task)
                with self._counted(stream):
                    if one:
                        asked = stream.request = await _first(requests, self._bounds.request_seconds)
                    rule.check(caller, asked)
                    CALLER.set(caller)
                    async with contextlib.aclosing(serve(asked if one else requests, context)) as responses:
                        async for response in responses:
                            stream.inside = False
                            yield response
                            stream.inside = True
                            if stream.revoked is not None:
                                raise stream.revoked
            except errors.LowwaterError as error:
                await self._refuse(name, known, asked, who, context, error)
            except asyncio.CancelledError:
                if stream is None or stream.revoked is None:
                    raise
                stream.task.uncancel()
                await self._refuse(name, known, asked, who, context, stream.revoked)

        return guarded

    def _health_check(
        self, name: str, serve: Callable[[Any, Context], Awaitable[Any]], whole: Any
    ) -> Callable[[AsyncIterator[Any], Context], Awaitable[Any]]:
        """Answer a health check by anybody, whatever it asks for, with how the ``whole`` process is, which serves either everything or nothing.

        So its request is not read: gRPC would hold and decompress one of any size before it could be refused. The answer is written as the one message
        of a stream, which its client cannot tell from an answer: so it is known when it is taken, and one that is not is held until the connection ends.
        """

        async def checked(requests: AsyncIterator[Any], context: Context) -> Any:
            try:
                self._place(context, f"health checks over {context.peer()}", self._bounds.checks_of_connection)
                self._place(context, f"health checks from {host_of(context.peer())}", self._bounds.checks_of_host)
                await _write(context, await serve(whole, context))
            except errors.LowwaterError as error:
                self._observer.refused(name, error.reason)
                await refuse(context, error)

        return checked

    def _health_watch(
        self, name: str, serve: Callable[[Any, Context], AsyncGenerator[Any, None]], whole: Any
    ) -> Callable[[AsyncIterator[Any], Context], Awaitable[Any]]:
        """Guard a health watch, which is for anybody: few at once, and not for ever.

        As for its request, see :meth:`_health_check`.
        """

        async def watched(requests: AsyncIterator[Any], context: Context) -> Any:
            try:
                self._place(context, f"health watches over {context.peer()}", self._bounds.watches_of_connection)
                self._place(context, f"health watches from {host_of(context.peer())}", self._bounds.watches_of_host)
                self._place(context, "health watches", self._bounds.watches)
                ends = asyncio.get_running_loop().time() + self._bounds.watch_seconds
                async with contextlib.aclosing(serve(whole, context)) as answers:
                    with contextlib.suppress(TimeoutError, StopAsyncIteration):
                        while True:
                            async with asyncio.timeout_at(ends):
                                answer = await anext(answers)
                            await _write(context, answer)  # not timed: gRPC cannot end a call when this is broken off
            except errors.LowwaterError as error:
                self._observer.refused(name, error.reason)
                await refuse(context, error)

        return watched

    def _place(self, context: Context, key: str, most: int) -> None:
        """Count a health check or watch until its call is over. Raises Overloaded.

        That is later than its handler's end: gRPC keeps a call, with all that came over it, until
        its status is sent.
        """

        def over(_: Context) -> None:
            self._health.close(key)

        leave: Any = over  # no class, as the types of gRPC want it
        self._health.open(key, Limits(streams=most))
        context.add_done_callback(leave)

    @contextlib.contextmanager
    def _counted(self, stream: _Stream) -> Iterator[None]:
        """Know of an open stream. Raises Overloaded."""
        name = stream.caller.principal.name
        limited = name not in BUILT_IN
        if limited:
            self._usage.open(name, stream.caller.limits)
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)
            if limited:
                self._usage.close(name)


def paced_by_host(limits: Limits, monotonic: Callable[[], float]) -> Callable[[str, str], None]:
    """Return a function that counts a call by its path and the caller's address.

    It raises Overloaded.

    It is for a server without access rules, which cannot tell callers apart. So each host has
    ``calls_per_second`` of its own: a host that calls without end slows down no other host.
    """
    usage = Usage()

    def pace(path: str, peer: str) -> None:
        if path not in OPEN and path not in OF_SHARDS:
            usage.call(host_of(peer), limits, monotonic())

    return pace


async def _write(context: Context, answer: Any) -> None:
    """Write an answer and wait until it is taken.

    A client that goes instead ends the call: gRPC would log a traceback for each.
    """
    try:
        await context.write(answer)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def _first(requests: AsyncIterator[Any], seconds: float) -> Any:
    """Read the one request of a call.

    Raises InvalidArgument for none, and Unavailable when it takes too long.

    gRPC's generator of messages holds the last one for as long as it waits to be asked for another,
    and a refused call holds the generator until the garbage collector runs. So the generator is
    closed: else a few refused claims would take a gigabyte.
    """
    generator: Any = aiter(requests)
    try:
        async with asyncio.timeout(seconds), contextlib.aclosing(generator) as messages:
            async for request in messages:
                return request
    except TimeoutError:
        msg = f"no request has come within {seconds:g} s of the call; send it at once"
        raise errors.Unavailable(msg) from None
    msg = "the call has no request; send one"
    raise errors.InvalidArgument(msg, metadata={"field": "", "fix": "send one request"})
