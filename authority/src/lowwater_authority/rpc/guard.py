"""The guard around every method: it checks who calls, what the caller may do, and how often.

A unary call is decided from its request. A watch stream is decided when it begins, and again when
the rules change. So is a report stream, and rpc/workers.py decides each claim of each report.

The caller is known before the request is read. To that end every method is registered with gRPC as
one that takes a stream of requests, of which the guard reads one. Otherwise gRPC would read and
parse the request first, and anybody who reaches the port could fill the memory with a thousand
requests of 64 MB. A request may come long after its call, so the caller is checked again then.
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
from lowwater_authority.access.caller import CALLER, Caller
from lowwater_authority.access.identity import Credentials, host_of, presented
from lowwater_authority.access.limits import Usage
from lowwater_authority.access.methods import METHODS, OF_SHARDS, OPEN, REGION_METHODS, Method
from lowwater_authority.access.policy import BUILT_IN, Access, Limits, Principal
from lowwater_authority.rpc.interceptors import reading
from lowwater_authority.rpc.refusals import refuse
from lowwater_server.audit import ANONYMOUS, Actor, Audit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from lowwater_authority.access.door import Door
    from lowwater_authority.engine.observer import Observer

    Call = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]
    Context = grpc.aio.ServicerContext[Any, Any]

_UNSURE: Final = frozenset(error.reason for error in (errors.ShuttingDown, errors.Unavailable, errors.JournalFailed))
"""Reasons of errors after which an act may have been done or not."""

_CLAIMS: Final = frozenset({"claim", "adopt"})
"""Acts that may have been done although the answer is Moved, because another shard took the
computation over before the answer."""


@dataclass(frozen=True, slots=True)
class GuardBounds:
    """Bounds of calls whose caller is not known: health checks, and calls without a request."""

    request_seconds: float = 10.0
    """Seconds after the beginning of a call within which its request must come."""

    checks_of_connection: int = 4
    checks_of_host: int = 64
    """Most health checks whose answers are not read yet, over one connection and by one host. A
    probe has one. Each may hold the 64 KiB that gRPC lets a call send before any of it is read.
    There is no bound for all hosts together, so a crowd keeps no probe away."""

    watches: int = 64
    watches_of_host: int = 16
    watches_of_connection: int = 4
    """Most health watches at once: by all hosts, by one, and over one connection."""

    watch_seconds: float = 30.0
    """Seconds after which a health watch ends, so that places come free; a client opens another. If
    the client reads nothing, the watch has its place until the connection ends."""


DEFAULT_BOUNDS: Final = GuardBounds()


@dataclass(slots=True, eq=False)
class _Stream:
    """An open stream. It ends when its caller is removed, or may no longer read what it reads."""

    caller: Caller
    credentials: Credentials
    rule: Method
    request: Any
    """The request; None: it has not come yet, or each message of the stream is decided alone."""
    task: asyncio.Task[Any]
    inside: bool = True
    """True while the service works, False while gRPC writes a message. A task that is cancelled
    then ends without a status."""
    revoked: errors.LowwaterError | None = None

    def revoke(self, error: errors.LowwaterError) -> None:
        """End it, at once or after the message that is being written."""
        self.revoked = error
        if self.inside:
            self.task.cancel()


class Guard(grpc.aio.ServerInterceptor):
    """Lets through what the access rules allow.

    On one core it adds some 100 us to a call, of which 0.2 us for each token of the file. It adds
    0.1 us to a report, and 1 us for each claim in it, however many ranges the claim has.
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
        """``insiders`` are principals that no file names.

        ``clock`` gives seconds since the Unix epoch. ``cut`` returns whether the computation of a
        name is cut into slices.
        """
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

        ``registered`` returns whether a computation has a name, ``cut`` as above.
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
        """Use other rules, or the same after a token has expired, for new calls and open streams.

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
                # A client that reads nothing learns late that the stream has ended. Its reports
                # count no more from now on.
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
        # No service here has such a method, so it has no rule, and is refused.
        rule = None if handler.request_streaming else rule
        return grpc.stream_unary_rpc_method_handler(self._unary(name, rule, handler.unary_unary), **codecs)

    # -- the caller --------------------------------------------------------------------------------

    def _enter(self, rule: Method | None, context: Context, caller: list[Caller]) -> tuple[Method, Credentials]:
        """Find out who calls, and count the call. Raises the error of a refused call.

        The caller is appended to ``caller``, so that a refusal can name it.
        """
        peer, now = host_of(context.peer()), self._monotonic()
        limits = self._access.limits
        try:
            credentials = presented(context.invocation_metadata() or (), context.auth_context())
            principal = credentials.principal(self._access, self._clock())
        except errors.Unauthenticated:
            self._usage.call(f"{peer} without a principal", limits, now)
            raise
        caller.append(Caller(principal, limits, peer, self._audit, self._cut, credentials.fingerprint))
        if principal.name not in BUILT_IN:  # a shard that waits for another would hold up both
            self._usage.call(principal.name, limits, now)
        if rule is None:
            msg = "this method is not among those that the access rules know; call another"
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
        """End a call with an error, which is counted and written to the audit."""
        self._observer.refused(method, error.reason)
        act = rule.act(request) if rule is not None and rule.act is not None and request is not None else method
        named = error.metadata.get("principal", ANONYMOUS)
        actor = caller[0].actor if caller else Actor(named, host_of(context.peer()))
        self._audit.refused(act, actor, error.metadata.get("computation", ""), error.reason)
        await refuse(context, error)

    # -- around the methods ------------------------------------------------------------------------

    def _unary(
        self, name: str, listed: Method | None, serve: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[AsyncIterator[Any], Context], Awaitable[Any]]:
        async def guarded(requests: AsyncIterator[Any], context: Context) -> Any:
            who: list[Caller] = []
            request: Any = None
            try:
                rule, credentials = self._enter(listed, context, who)
                [caller] = who
                rule.admit(caller)
                request = await _first(requests, self._bounds.request_seconds)
                caller.become(credentials.principal(self._access, self._clock()), self._access.limits)
                rule.check(caller, request)
            except errors.LowwaterError as error:
                await self._refuse(name, listed, request, who, context, error)
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
                # The caller has gone, or this is a fault here: the act may have been done before.
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
        self, name: str, listed: Method | None, serve: Callable[[Any, Context], AsyncGenerator[Any, None]], *, one: bool
    ) -> Callable[[AsyncIterator[Any], Context], AsyncGenerator[Any, None]]:
        """Guard a method that answers with a stream; ``one``: it has one request, which decides."""

        async def guarded(requests: AsyncIterator[Any], context: Context) -> AsyncGenerator[Any, None]:
            who: list[Caller] = []
            request: Any = None
            stream: _Stream | None = None
            try:
                rule, credentials = self._enter(listed, context, who)
                [caller] = who
                rule.admit(caller)
                task = asyncio.current_task()
                assert task is not None
                stream = _Stream(caller, credentials, rule, None, task)
                with self._counted(stream):
                    if one:
                        request = stream.request = await _first(requests, self._bounds.request_seconds)
                    rule.check(caller, request)
                    CALLER.set(caller)
                    async with contextlib.aclosing(serve(request if one else requests, context)) as responses:
                        async for response in responses:
                            stream.inside = False
                            yield response
                            stream.inside = True
                            if stream.revoked is not None:
                                raise stream.revoked
            except errors.LowwaterError as error:
                await self._refuse(name, listed, request, who, context, error)
            except asyncio.CancelledError:
                if stream is None or stream.revoked is None:
                    raise
                stream.task.uncancel()
                await self._refuse(name, listed, request, who, context, stream.revoked)

        return guarded

    def _health_check(
        self, name: str, serve: Callable[[Any, Context], Awaitable[Any]], whole: Any
    ) -> Callable[[AsyncIterator[Any], Context], Awaitable[Any]]:
        """Answer any health check with the status of the ``whole`` process.

        Its request is not read: gRPC would hold and decompress a request of any size before the
        guard could refuse it. The answer is written as the one message of a stream, which is the
        same on the wire. So the guard sees when it is read; otherwise the call keeps its place
        until the connection ends.
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
        """Guard a health watch: few at once, and each for a limited time.

        Its request is not read, see :meth:`_health_check`.
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
                            await _write(context, answer)  # no timeout: gRPC could not end a call after one
            except errors.LowwaterError as error:
                self._observer.refused(name, error.reason)
                await refuse(context, error)

        return watched

    def _place(self, context: Context, key: str, most: int) -> None:
        """Count a health check or watch until its call is over. Raises Overloaded.

        A call is over later than its handler: gRPC keeps it, with all that it received, until its
        status is sent.
        """

        def over(_: Context) -> None:
            self._health.close(key)

        leave: Any = over  # the types of gRPC ask for a class
        self._health.open(key, Limits(streams=most))
        context.add_done_callback(leave)

    @contextlib.contextmanager
    def _counted(self, stream: _Stream) -> Iterator[None]:
        """Count an open stream, and let :meth:`use` find it. Raises Overloaded."""
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
    """Return a function that counts a call by its path and its host, and raises Overloaded.

    A server without access rules cannot tell callers apart. So each host has ``calls_per_second``
    of its own, and a host that calls without end slows down no other.
    """
    usage = Usage()

    def pace(path: str, peer: str) -> None:
        if path not in OPEN and path not in OF_SHARDS:
            usage.call(host_of(peer), limits, monotonic())

    return pace


async def _write(context: Context, answer: Any) -> None:
    """Write an answer, and wait until the client has read it.

    If the client goes away instead, the call ends as cancelled: gRPC would log a traceback.
    """
    try:
        await context.write(answer)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def _first(requests: AsyncIterator[Any], seconds: float) -> Any:
    """Read the one request of a call.

    Raises InvalidArgument when there is none, and Unavailable when it takes too long.

    gRPC's generator holds its last message until the next one is asked for, and a refused call
    holds the generator until the garbage collector runs. So the generator is closed here.
    Otherwise a few refused claims would take a gigabyte.
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
