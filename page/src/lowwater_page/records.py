"""The records of the page's API, as JSON-ready values.

Times are integer microseconds; see docs/operate/status-page.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowwater.cli.render import promise_record
from lowwater.core.text import describe_range

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowwater import (
        History,
        Hop,
        LatenessBudget,
        Ranges,
        RangeView,
        ShardView,
        Watermark,
        WatermarkView,
        Why,
    )
    from lowwater_page.board import Board
    from lowwater_page.samples import Heat, Sample

Record = dict[str, Any]


def watermark(value: Watermark) -> Record:
    """Return a watermark."""
    state = "unknown" if value.unknown else "finished" if value.finished else "time"
    return {"micros": value.micros if state == "time" else None, "state": state}


def key_range(view: RangeView) -> Record:
    """Return a key range, keys in hexadecimal.

    The sequencer is text, because JavaScript counts to 2^53 only.
    """
    return {
        "start": view.start.hex(),
        "end": view.end.hex(),
        "label": describe_range(view.start, view.end),
        "watermark": watermark(view.watermark),
        "state": view.state.value,
        "worker": view.worker,
        "host": view.host,
        "sequencer": str(view.sequencer),
        "since_micros": view.since_micros,
        "last_report_micros": view.last_report_micros,
        "claimed_micros": view.claimed_micros,
        "waiting_for": view.waiting_for,
        **view.remarks._asdict(),
    }


def computation(view: WatermarkView, board: Board) -> Record:
    """Return a computation, with its lags on a board."""
    name = view.computation
    return {
        "name": name,
        "registered": view.registered,
        "estimated": view.estimated,
        "incarnation": view.incarnation,
        "epoch": view.epoch,
        "low": watermark(view.low),
        "shares": [
            {"share": ppm / 1e6, "watermark": watermark(value), "came_behind": view.came_behind.get(ppm / 1e6)}
            for ppm, value in view.shares
        ],
        "inputs": list(view.inputs),
        "ranges": view.ranges,
        "since_micros": view.since_micros,
        "oldest_operation_micros": view.oldest_operation_micros,
        "local_lag_seconds": board.local_lag(name),
        "global_lag_seconds": board.global_lag(name),
        "holder": None if view.holder is None else key_range(view.holder),
        "promise": None if view.promise is None else promise_record(view.promise),
        "budgets": [budget(view_budget) for view_budget in view.budgets],
    }


def budget(value: LatenessBudget) -> Record:
    """Return a lateness budget: its watermark, and the records that came behind it."""
    return {
        "share": value.share,
        "watermark": watermark(value.watermark),
        "records": value.records,
        "behind": value.behind,
        "excused": value.excused,
        "worst": value.worst,
    }


def shard(view: ShardView) -> Record:
    """Return a shard."""
    return {"address": view.address, "draining": view.draining, "silent_seconds": view.silent_for}


def away(outage: tuple[int, str] | None) -> Record | None:
    """Return since when no authority answers, and the last error; None: one does."""
    return None if outage is None else {"since_micros": outage[0], "sentence": outage[1]}


def ranges(page: Ranges) -> Record:
    """Return key ranges, the one furthest behind first."""
    return {"total": page.total, "ranges": [key_range(view) for view in page]}


def recent(step_seconds: int, samples: Iterable[Sample]) -> Record:
    """Return samples, oldest first."""
    return {"step_seconds": step_seconds, "samples": [list(sample) for sample in samples]}


def heat(lags: Heat) -> Record:
    """Return the lags of computations over a time, in seconds, the worst first."""
    return {
        "from_micros": lags.from_micros,
        "column_seconds": lags.column,
        "since_micros": lags.since_micros,
        "total": lags.total,
        "lags": lags.lags,
    }


def history(steps: History) -> Record:
    """Return when steps of event time became complete, oldest first."""
    return {
        "step_seconds": steps.step.total_seconds(),
        "completions": [
            {
                "incarnation": step.incarnation,
                "through": watermark(step.through),
                "time_micros": step.time_micros,
                "behind_seconds": None if step.behind is None else step.behind.total_seconds(),
            }
            for step in steps
        ],
    }


def why(answer: Why) -> Record:
    """Return the root cause and the walk to it, as ``lowwater why --json`` does.

    Watermarks and key ranges have the form of the page's API.
    """
    root = answer.guilty
    return {
        "computation": answer.hops[0].computation,
        "sentence": answer.sentence,
        "root": {"computation": root.computation, **_cause(root)},
        "others": list(answer.others),
        "hops": [
            {
                "computation": hop.computation,
                "low": watermark(hop.watermark),
                "behind_seconds": hop.behind,
                "upstream": hop.upstream,
                "slice_of": hop.slice_of,
                "epoch": hop.epoch,
                "since_micros": hop.since_micros,
                "in_flight": hop.in_flight,
                **_cause(hop),
                "sentence": hop.sentence,
            }
            for hop in answer
        ],
    }


def _cause(hop: Hop) -> Record:
    return {
        "cause": None if hop.cause is None else hop.cause.value,
        "holding": hop.holding,
        "holders": [key_range(holder) for holder in hop.holders],
    }
