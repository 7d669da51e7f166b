"""Micro-batches: the state of their tasks counts when the batch is committed, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lowwater._async.runtime import Runtime
from lowwater._drive.tasks.runtimes import Runtimes
from lowwater.histogram import Histogram
from lowwater.layout import Layout, RangeLoad
from lowwater.views import Inputs, Refusal, TaskAttempt
from lowwater.watermark import EventTime

__all__ = ["Batches"]


class Batches:
    """Calls of a program that runs micro-batches itself, as ``lowwater_spark`` does.

    ``Client.batches`` is one. A batch is named by its computation, the ``sequencer`` of its
    driver's lease, and its number. Its tasks run anywhere, in other processes too, and each stages
    its state with :meth:`stage_task`. The driver names the accepted attempts with :meth:`prepare`,
    and declares the batch durable with :meth:`commit`. A program without micro-batches uses
    ``Lease.advance`` instead.
    """

    def __init__(self, runtimes: Runtimes[Runtime]) -> None:
        self._runtimes = runtimes

    async def stage_task(
        self,
        computation: str,
        sequencer: int,
        batch: int,
        task: TaskAttempt,
        *,
        handles: Sequence[int],
        oldest: Iterable[EventTime | None],
        pending: Histogram | None = None,
        finished: int = 0,
    ) -> None:
        """Stage the state of a task after its part of the batch. Call it only on success.

        ``handles``: those with rows of the task; ``oldest``: oldest unfinished event time of each,
        None for none; ``pending``: event times of unfinished records; ``finished``: number of
        records that the task finished. No watermark moves before the batch is committed. Raises
        StaleSequencer, Overloaded, InvalidArgument.
        """
        runtime = self._runtimes.get()
        call = runtime.calls.stage_task(
            computation, sequencer, batch, task, handles=handles, oldest=oldest, pending=pending, finished=finished
        )
        await runtime.call(call)

    async def prepare(
        self,
        computation: str,
        sequencer: int,
        batch: int,
        *,
        digest: bytes,
        tasks: Iterable[TaskAttempt],
        bound: EventTime,
        seen: Inputs | None,
        covers_all: bool = False,
        frontiers: Iterable[tuple[float, EventTime]] | None = None,
        oldest_operation: EventTime | None = None,
    ) -> tuple[TaskAttempt, ...]:
        """Name the accepted attempts of a micro-batch; returns those whose part never arrived.

        When any is returned, nothing is prepared. ``bound``: lowest event time that a later row can
        have; MAX passes a finish on. ``seen``: snapshot of the inputs that the batch ran with, None
        for an injector. ``covers_all``: a range that was not staged holds its last value; otherwise
        it holds nothing. ``frontiers``: by share; by default those of ``seen``. Raises
        StaleSequencer.
        """
        runtime = self._runtimes.get()
        call = runtime.calls.prepare_batch(
            computation,
            sequencer,
            batch,
            digest=digest,
            tasks=tasks,
            bound=bound,
            seen=seen,
            covers_all=covers_all,
            frontiers=frontiers,
            oldest_operation=oldest_operation,
        )
        return await runtime.call(call)

    async def commit(
        self,
        computation: str,
        sequencer: int,
        batch: int,
        *,
        layout: Layout | None = None,
        layout_refused: str = "",
        loads: Iterable[RangeLoad] = (),
        wanted: Callable[[Layout], object] | None = None,
        known: Callable[[int], object] | None = None,
    ) -> tuple[Refusal, ...]:
        """Apply the prepared batch, whole or not at all; durable on return. Repeats are harmless.

        An owner that follows layouts passes its own as ``layout``; one without starts means the
        last one sent under this sequencer. ``layout_refused``: why it does not follow the wanted
        layout, at most 1,024 characters. ``loads``: costs of at most 64 ranges. ``wanted`` is
        called with the wanted layout when it differs, ``known`` with the version of the owner's
        layout that the server has; if it is not called, send the starts with the next batch.

        Returns the refused ranges. Raises NotPrepared, StaleSequencer, InputVersion,
        IncarnationChanged. Cancelled, it may or may not have been applied.
        """
        runtime = self._runtimes.get()
        call = runtime.calls.commit_batch(computation, sequencer, batch, layout, layout_refused, loads, wanted, known)
        return await runtime.call(call)

    async def vouch(self, computation: str, sequencer: int, through: EventTime, *, seen: Inputs | None) -> None:
        """Reserve the right to write that an output is complete ``through`` a time.

        Durable on return.

        Call it before the output is written, because a reader may see it long before the batch is
        committed. From then on no input that lags that time is added to the computation. ``seen``:
        as in :meth:`prepare`. Raises StaleSequencer, InputVersion, IncarnationChanged, TooFarAhead,
        and InvalidArgument for more than unknown while an input is not registered: then it must not
        be written.
        """
        runtime = self._runtimes.get()
        await runtime.call(runtime.calls.vouch(computation, sequencer, through, seen))
