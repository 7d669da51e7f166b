"""Claims of a worker, and their grants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from lowwater import errors
from lowwater.core import checks, wire
from lowwater.core.call import Call
from lowwater.core.calls import Calls
from lowwater.core.columns import Column, is_one
from lowwater.core.events import shortened
from lowwater.core.fold import Reading
from lowwater.core.lease import LeaseState
from lowwater.core.surroundings import Surroundings
from lowwater.core.text import on_one_line, without_passwords
from lowwater.v1 import workers_pb2
from lowwater.views import slice_of
from lowwater.watermark import EventTime, Watermarks, to_micros

__all__ = ["CLOSE_TIMEOUT", "GOODBYE_TIMEOUT", "Claimant", "Grant", "closed_worker", "failure_of", "no_inputs"]

GOODBYE_TIMEOUT: Final = 1.0
"""Most seconds that leaving a worker waits for the release of one claim: it is for people only."""

CLOSE_TIMEOUT: Final = 5.0
"""Most seconds that leaving a worker waits for its last states to become durable."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Grant of a claim by the authority."""

    state: LeaseState
    bounds: tuple[bytes, ...]
    watermarks: Watermarks
    reading: Reading


@dataclass(frozen=True, slots=True)
class Claimant:
    """Worker that claims."""

    computation: str
    name: str
    host: str
    identity: str
    generation: int
    ordinal: int

    @classmethod
    def here(
        cls,
        surroundings: Surroundings,
        computation: str,
        name: str | None,
        identity: str,
        generation: int,
        ordinal: int,
    ) -> Claimant:
        """Return a claimant in this process. Raises InvalidArgument."""
        host = surroundings.host()
        return cls(
            computation,
            checks.text("name", name) if name is not None else f"{host}-{surroundings.pid()}",
            host,
            checks.text("identity", identity),
            checks.count("generation", generation, 64),
            checks.count("ordinal", ordinal, 64),
        )

    def claim(
        self,
        calls: Calls,
        request_id: bytes,
        start: bytes,
        end: bytes,
        bounds: Sequence[bytes] | None,
        bound: EventTime | Sequence[EventTime] | None,
        batch_digest: bytes,
        *,
        adopt: bool,
        instead_of: int = 0,
        generation: int | None = None,
    ) -> Call[Grant]:
        """Claim ``[start, end)`` or the ranges between ``bounds``. Raises InvalidArgument.

        When the computation is cut into slices, all keys have to lie in one slice. The authority
        names it, and the claim is repeated for that slice; it folds the inputs of the whole
        computation and reports to the slice.
        """
        keys = _bounds(start, end, bounds)
        request = workers_pb2.ClaimRequest(
            computation=self.computation,
            bounds=keys,
            worker=self.name,
            host=self.host,
            identity=self.identity,
            generation=self.generation if generation is None else checks.count("generation", generation, 64),
            ordinal=self.ordinal,
            request_id=request_id,
            bound_micros=_starting_bounds(bound, len(keys) - 1),
            batch_digest=checks.key("batch_digest", batch_digest),
            adopt=checks.flag("adopt", adopt),
            instead_of=checks.count("instead_of", instead_of, 64),
        )

        def grant(answer: workers_pb2.ClaimResponse) -> Grant:
            reading = wire.reading_of_claim(slice_of(self.computation) or self.computation, answer)
            watermarks = Watermarks(answer.watermarks_micros)
            state = LeaseState(
                request.computation,
                answer.sequencer,
                Column.of(watermarks.micros),
                incarnation=answer.incarnation,
                epoch=answer.epoch,
                input_version=reading.input_version,
                input_incarnations=reading.incarnations,
                reference=answer.reference_micros,
                budgets=wire.budget_marks(answer.budgets),
            )
            return Grant(state, tuple(keys), watermarks, reading)

        def in_slice(name: str) -> Call[Grant]:
            request.computation = name
            return calls.claim(request, grant)

        return replace(calls.claim(request, grant), in_slice=in_slice)


def no_inputs(computation: str) -> errors.InvalidArgument:
    """Return the error of asking an injector for its inputs."""
    msg = f"{computation} is an injector: it has no inputs. Call lease.advance(None, frontier=...) instead."
    return errors.InvalidArgument(msg, metadata={"computation": computation, "field": "inputs"})


def closed_worker() -> errors.Closed:
    """Return the error of a worker that was used after its end."""
    return errors.Closed("the worker is closed; lw.worker(...) makes a new one")


def failure_of(error: BaseException | None) -> str:
    r"""Return the first line of the error that leaves a worker, without passwords, for people.

    It is empty when the worker ends in good order: by no error, an interrupt, a cancellation or an
    exit without a failure.

    >>> failure_of(None), failure_of(KeyboardInterrupt()), failure_of(SystemExit(0))
    ('', '', '')
    >>> failure_of(ValueError("no sale\nof today")), failure_of(SystemExit("no disk"))
    ('ValueError: no sale', 'SystemExit: no disk')
    """
    if error is None or not (isinstance(error, Exception) or (isinstance(error, SystemExit) and error.code)):
        return ""
    try:
        line = str(error).strip().partition("\n")[0]
    except Exception as unprintable:  # noqa: BLE001  # an error of another's that cannot be shown
        line = f"its text cannot be shown, {type(unprintable).__name__}"
    words = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return shortened(on_one_line(without_passwords(words)), checks.MOST_WORDS)


def _bounds(start: bytes, end: bytes, bounds: Sequence[bytes] | None) -> list[bytes]:
    if bounds is not None and (start or end):
        msg = "pass either start and end, or bounds"
        raise errors.InvalidArgument(msg, metadata={"field": "bounds", "fix": "leave start and end out"})
    if bounds is None:
        keys = [checks.key("start", start), checks.key("end", end)]
    else:
        keys = [checks.key(f"bounds[{i}]", bound) for i, bound in enumerate(checks.listed("bounds", bounds))]
    inner = keys[:-1] if keys and not keys[-1] else keys
    if len(keys) < 2 or any(inner[i] >= inner[i + 1] for i in range(len(inner) - 1)):
        msg = "bounds are at least two keys, strictly ascending; only the last may be empty, for no upper bound"
        raise errors.InvalidArgument(msg, metadata={"field": "bounds", "fix": "sort them, without duplicates"})
    return keys


def _starting_bounds(bound: EventTime | Sequence[EventTime] | None, ranges: int) -> list[int]:
    if bound is None:
        return []
    if is_one(bound):
        return [to_micros(bound)]
    values = list(Column.of(cast(Sequence[EventTime], bound)).values())
    if len(values) != ranges:
        msg = f"bound has {len(values)} values for {ranges} ranges; pass one for all, or one per range"
        raise errors.InvalidArgument(msg, metadata={"field": "bound", "fix": f"{ranges} values"})
    return values
