# Made by scripts/generate_sync.py from _async/batches.py: change that one.
"""Micro-batches: what their tasks hold counts when the batch is committed, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lowwater._drive.threads.runtimes import Runtimes
from lowwater._sync.runtime import Runtime
from lowwater.histogram import Histogram
from lowwater.layout import Layout, RangeLoad
from lowwater.views import Inputs, Refusal, TaskAttempt
from lowwater.watermark import EventTime

__all__ = ["Batches"]


class Batches:
    """What a program says that runs micro-batches itself, as ``lowwater_spark`` does; ``Client.batches`` is it.

    A batch is named by its computation, the ``sequencer`` of the lease that its driver has, and its number. Its tasks run anywhere, in other
    processes too, and each tells with :meth:`stage_task` what it holds. The driver names with :meth:`prepare` the attempts that count,
    and says with :meth:`commit` that the batch is durable. A program without micro-batches says all of it with ``Lease.advance``.
    """

    def __init__(self, runtimes: Runtimes[Runtime]) -> None:
        self._runtimes = runtimes

    def stage_task(
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
        """Tell what a task of a micro-batch holds after its part: the oldest event time of each handle, None for nothing.

        Call it on success only; nothing moves before the batch is committed. Raises StaleSequencer, Overloaded, InvalidArgument.
        """
        runtime = self._runtimes.get()
        call = runtime.calls.stage_task(
            computation, sequencer, batch, task, handles=handles, oldest=oldest, pending=pending, finished=finished
        )
        runtime.call(call)

    def prepare(
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
        """Name the accepted attempts of a micro-batch, and the lowest stamp that a later row can produce.

        ``seen`` is the snapshot the batch ran with, None for an injector; ``frontiers`` by share, by default those of ``seen``.
        Returns the attempts whose part never arrived: when there are any, nothing is prepared. Raises StaleSequencer.
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
        return runtime.call(call)

    def commit(
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
        """Apply the prepared batch, whole or not at all; durable when it returns.

        A repeat changes nothing.

        An owner that follows layouts says its own, why it does not follow what is wanted (at most
        1,024 characters), and what at most 64 ranges have cost; ``wanted`` is called with the
        layout that is wanted, if that is another one. A layout without starts is the one that was
        told before under this sequencer; ``known`` is called with the version of the one that the
        server knows now, if it does. Otherwise tell the starts with the next. Returns what was
        refused of it. Raises NotPrepared, StaleSequencer, InputVersion, IncarnationChanged.
        """
        runtime = self._runtimes.get()
        call = runtime.calls.commit_batch(computation, sequencer, batch, layout, layout_refused, loads, wanted, known)
        return runtime.call(call)

    def vouch(self, computation: str, sequencer: int, through: EventTime, *, seen: Inputs | None) -> None:
        """Say that the output of a running batch will say that it is complete ``through`` a time; durable when it returns.

        Call it before that is written, for a reader may see it long before the batch is committed. From then on no input is added to the
        computation that stands below. ``seen`` as in :meth:`prepare`. Raises StaleSequencer, InputVersion, IncarnationChanged,
        TooFarAhead, and InvalidArgument for more than unknown while an input is not registered: then it must not be written.
        """
        runtime = self._runtimes.get()
        runtime.call(runtime.calls.vouch(computation, sequencer, through, seen))
