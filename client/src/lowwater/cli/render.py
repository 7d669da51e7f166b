"""Answers as tables, lines and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from lowwater.cli.live import Style, style_of
from lowwater.core.causes import cause_of
from lowwater.core.lag import late_by
from lowwater.core.text import counted, describe_key, describe_owner, describe_range, duration, lag, on_one_line
from lowwater.core.why import Why
from lowwater.views import PPM, Completeness, LatenessBudget, Promise, Ranges, RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = [
    "Guilty",
    "Slices",
    "completeness_record",
    "held",
    "holder",
    "line",
    "moment",
    "promise_record",
    "range_record",
    "ranges_table",
    "severity",
    "status_table",
    "table",
    "times",
    "to_json",
    "view_record",
    "why_record",
]


Slices = Mapping[str, tuple[tuple[str, ...], str]]
"""By computation that is cut its slices, and the slowest of them."""

_UNCUT: Final[Slices] = MappingProxyType({})

_COLOURS: Final = {Style.TROUBLE: "31", Style.STILL: "33", Style.FAINT: "2"}
"""Of a terminal; a computation that is in order has none."""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of them headings, in columns.

    >>> print(table([("NAME", "LAG"), ("flights", "2 s")]))
    NAME     LAG
    flights  2 s
    """
    shown = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown
    )


def severity(view: WatermarkView, now_micros: int) -> tuple[bool, int, str]:
    """Return what sorts the worst first: what somebody has to act on, then what is furthest behind; at the end what is finished."""
    return (not cause_of(view, now_micros).trouble, view.low.micros, view.computation)


Guilty = Mapping[str, WatermarkView]
"""By computation the one that holds it."""


def status_table(
    views: Sequence[WatermarkView],
    now_micros: int,
    guilty: Guilty,
    *,
    slices: Slices = _UNCUT,
    coloured: bool = False,
) -> str:
    """Return where computations stand, in the order given.

    A slice below its computation is indented.
    """
    names_shown = {view.computation for view in views}
    shares = sorted({share for view in views for share, _ in view.shares}, reverse=True)
    names = (f"{share / 10_000:g} % LATELY SEEN" for share in shares)
    budgets = sorted({each.share for view in views for each in view.budgets})
    spent = (f"BUDGET {share * 100:g} %" for share in budgets)
    promises = [view.promise or Promise() for view in views]
    late = ("PROMISE",) if any(each.late is not None for each in promises) else ()
    who = ("ANSWERS FOR IT",) if any(each.owner or each.team for each in promises) else ()
    rows = [("COMPUTATION", "STATE", "LOW WATERMARK", "LAG", *late, *names, *spent, "RANGES", "HELD BY", *who)]
    for view, promise in zip(views, promises, strict=True):
        rows.append(
            (
                "  " * (view.slice_of in names_shown) + view.computation,
                _state(view, guilty.get(view.computation), now_micros),
                _low(view),
                lag(view.low, now_micros),
                *(_late(view, now_micros) for _ in late),
                *(_seen(view, share, now_micros) for share in shares),
                *(_spent(view, view.budget.get(share), now_micros) for share in budgets),
                _ranges(view, slices),
                held(view, guilty.get(view.computation)),
                *(", ".join(each for each in (promise.owner, promise.team) if each) for _ in who),
            )
        )
    head, *lines = table(rows).split("\n")
    if coloured:
        lines = [_painted(line, style_of(view, now_micros)) for line, view in zip(lines, views, strict=True)]
    return "\n".join([head, *lines])


def _ranges(view: WatermarkView, slices: Slices) -> str:
    """Return how many key ranges it has; of one that is cut, how many slices."""
    if view.computation not in slices:
        return str(view.ranges)
    names, slowest = slices[view.computation]
    return f"{counted(len(names), 'slice')}, the slowest {slowest}"


def _painted(line: str, style: Style) -> str:
    return f"\x1b[{_COLOURS[style]}m{line}\x1b[0m" if style in _COLOURS else line


def _low(view: WatermarkView) -> str:
    """Return the low watermark, and whether it is only estimated."""
    if not view.registered:
        return "not registered"
    return f"{view.low} (estimated)" if view.estimated else str(view.low)


def _seen(view: WatermarkView, share: int, now_micros: int) -> str:
    """Return where a heuristic watermark stands, and the share of the records that has come behind it, if it is known."""
    heuristic = dict(view.shares).get(share)
    if heuristic is None:
        return ""
    behind = view.came_behind.get(share / PPM)
    return _ahead(view, heuristic, now_micros) + ("" if behind is None else f", at most {behind * 100:.2g} % behind")


def _late(view: WatermarkView, now_micros: int) -> str:
    """Return how old a low watermark may be, and by how much it is older."""
    if view.promise is None or view.promise.late is None:
        return ""
    allowed, late = duration(view.promise.late.total_seconds()), late_by(view, now_micros)
    return f"{allowed}, late by {duration(late)}" if late else allowed


def _spent(view: WatermarkView, budget: LatenessBudget | None, now_micros: int) -> str:
    """Return where a lateness budget stands, and the share of the records that has come behind it."""
    if budget is None:
        return ""
    share = f", {budget.behind / budget.records * 100:.2g} % behind" if budget.records else ""
    return _ahead(view, budget.watermark, now_micros) + share


def _ahead(view: WatermarkView, watermark: Watermark, now_micros: int) -> str:
    """Return a watermark as its own lag, which compares at a glance to that of the low one."""
    return "=" if watermark == view.low else lag(watermark, now_micros)


def holder(each: RangeView | None) -> str:
    """Return a key range and who answers for it; nothing for none."""
    return "" if each is None else f"{describe_range(each.start, each.end)}, {describe_owner(each)}"


def _state(view: WatermarkView, guilty: WatermarkView | None, now_micros: int) -> str:
    """Return what keeps a computation where it is.

    Trouble of its own is told even while it waits: it is the next to act on.
    """
    cause = cause_of(view, now_micros)
    waits = guilty is not None and guilty.computation != view.computation and not cause.trouble
    return f"waits for {guilty.computation}" if waits and guilty is not None else cause.value


def held(view: WatermarkView, guilty: WatermarkView | None) -> str:
    """Return who holds a computation: one of its own key ranges, or another computation with the range that holds that one."""
    if guilty is None or guilty.computation == view.computation:
        return holder(view.holder)
    if not guilty.registered:
        return f"{guilty.computation}, which is not registered"
    return f"{guilty.computation} {holder(guilty.holder)}".rstrip()


def line(view: WatermarkView, now_micros: int, guilty: WatermarkView | None) -> str:
    """Return one change as a line; without ``guilty`` nobody is said to hold it."""
    parts = [moment(now_micros), view.computation, _low(view)]
    if not (view.low.unknown or view.low.finished):
        parts.append(f"lag {lag(view.low, now_micros)}")
    parts += [
        f"{share / 10_000:g} % lately seen {watermark}" for share, watermark in view.shares if watermark != view.low
    ]
    if guilty is not None and (who := held(view, guilty)):
        parts.append(f"held by {who}")
    return on_one_line("  ".join(parts))


def ranges_table(ranges: Ranges, now_micros: int) -> str:
    """Return key ranges as a table."""
    rows = [("START", "END", "WATERMARK", "LAG", "STATE", "WORKER", "HOST", "LAST REPORT")]
    for each in ranges:
        silent = (now_micros - each.last_report_micros) / 1e6
        rows.append(
            (
                describe_key(each.start) if each.start else "..",
                describe_key(each.end) if each.end else "..",
                str(each.watermark),
                lag(each.watermark, now_micros),
                each.state.value,
                each.worker,
                each.host,
                f"{duration(silent)} ago" if each.last_report_micros else _unheard(each),
            )
        )
    more = ranges.total - len(ranges)
    return table(rows) + (f"\nand {more} more; --limit shows them" if more > 0 else "")


def _unheard(each: RangeView) -> str:
    """Say of a key range without a last report what that means."""
    return "never" if each.state is RangeState.NEVER_CLAIMED else "not since the authority restarted"


def moment(micros: int) -> str:
    """Return a processing time, to the second."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).isoformat().replace("+00:00", "Z")


def to_json(value: Any) -> str:
    """Return an answer as one line of JSON."""
    return json.dumps(value, separators=(", ", ": "))


def times(name: str, watermark: Watermark) -> dict[str, Any]:
    """Return an event time as text and as a number, which the two unbounded ones do not have."""
    bounded = not (watermark.unknown or watermark.finished)
    return {name: str(watermark), f"{name}_micros": watermark.micros if bounded else None}


def _date(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def view_record(
    view: WatermarkView, now_micros: int, guilty: WatermarkView | None = None, slices: Slices = _UNCUT
) -> dict[str, Any]:
    """Return the watermarks of a computation for JSON; ``guilty``: the one that holds it, None when nobody can tell. Only who is or has a slice says so."""
    low = view.low
    names, slowest = slices.get(view.computation, ((), ""))
    return {
        "computation": view.computation,
        "registered": view.registered,
        "state": cause_of(view, now_micros).value,
        **times("low", low),
        "lag_seconds": None if low.unknown or low.finished else (now_micros - low.micros) / 1e6,
        "heuristic": {f"{share / 1e6:g}": str(watermark) for share, watermark in view.shares},
        "came_behind": {f"{share:g}": came for share, came in view.came_behind.items()},
        "budget": {
            f"{each.share:g}": {
                **times("watermark", each.watermark),
                "records": each.records,
                "behind": each.behind,
                "excused": each.excused,
                "worst": each.worst,
            }
            for each in view.budgets
        },
        "incarnation": view.incarnation,
        "epoch": view.epoch,
        "since": _date(view.since),
        "oldest_operation": _date(view.oldest_operation),
        "ranges": view.ranges,
        "inputs": list(view.inputs),
        "estimated": view.estimated,
        "holder": None if view.holder is None else range_record(view.holder),
        "guilty": None if guilty is None else guilty.computation,
        "promise": None if view.promise is None else promise_record(view.promise),
        "late_by_seconds": late_by(view, now_micros),
        **({"slices": len(names), "slowest_slice": slowest} if names else {}),
        **({"slice_of": view.slice_of} if view.slice_of else {}),
    }


def promise_record(promise: Promise) -> dict[str, Any]:
    """Return what was promised for JSON."""
    return {
        "late_seconds": None if promise.late is None else promise.late.total_seconds(),
        "owner": promise.owner,
        "team": promise.team,
        "runbook": promise.runbook,
        "logs": promise.logs,
    }


def range_record(each: RangeView) -> dict[str, Any]:
    """Return a key range for JSON; keys in hexadecimal."""
    return {
        "start": each.start.hex(),
        "end": each.end.hex(),
        **times("watermark", each.watermark),
        "state": each.state.value,
        "worker": each.worker,
        "host": each.host,
        "sequencer": each.sequencer,
        "since": _date(each.since),
        "last_report": _date(each.last_report),
        "waiting_for": each.waiting_for,
        **each.remarks._asdict(),
    }


def completeness_record(found: Completeness, until: Watermark, now_micros: int, why: Why | None) -> dict[str, Any]:
    """Return the answer of ``complete`` for JSON; ``why``: what holds it, None when it is complete or nobody can tell."""
    guilty = None if why is None else WatermarkView(why.guilty.computation)
    return {
        "complete": found.complete,
        **times("until", until),
        "watermark": view_record(found.watermark, now_micros, guilty),
        "holding": found.holding,
        "holders": [range_record(each) for each in found.holders],
        "guilty": None if guilty is None else guilty.computation,
        "why": None if why is None else why.sentence,
    }


def why_record(why: Why) -> dict[str, Any]:
    """Return the answer of ``why`` for JSON: the root cause, then the hops to it."""
    return {
        "computation": why.hops[0].computation,
        "sentence": why.sentence,
        "root": {
            "computation": why.guilty.computation,
            "cause": why.guilty.cause.value if why.guilty.cause is not None else None,
            "holding": why.guilty.holding,
            "holders": [range_record(each) for each in why.guilty.holders],
            "promise": None if why.promise is None else promise_record(why.promise),
        },
        "others": list(why.others),
        "hops": [
            {
                "computation": hop.computation,
                **times("low", hop.watermark),
                "behind_seconds": hop.behind,
                "upstream": hop.upstream,
                "cause": None if hop.cause is None else hop.cause.value,
                "holding": hop.holding,
                "epoch": hop.epoch,
                "since": _date(hop.since),
                "slice_of": hop.slice_of or None,
                "in_flight": hop.in_flight,
                "holders": [range_record(each) for each in hop.holders],
                "sentence": hop.sentence,
            }
            for hop in why
        ],
    }
