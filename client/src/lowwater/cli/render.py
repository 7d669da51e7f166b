"""Answers as tables, lines and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from lowwater.cli.live import Style, style_of
from lowwater.core.causes import cause_of
from lowwater.core.lag import late_by
from lowwater.core.text import counted, describe_key, duration, lag, on_one_line
from lowwater.core.why import Why
from lowwater.core.words import culprit_words, low_words, moment, range_words, state_words
from lowwater.views import PPM, Completeness, LatenessBudget, Promise, Ranges, RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = [
    "Guilty",
    "Slices",
    "completeness_record",
    "line",
    "promise_record",
    "range_record",
    "ranges_table",
    "status_table",
    "table",
    "times",
    "to_json",
    "view_record",
    "why_record",
]


Slices = Mapping[str, tuple[tuple[str, ...], str]]
"""Slices of each computation that is cut, and the slowest of them, by name of the computation."""

_UNCUT: Final[Slices] = MappingProxyType({})

_COLOURS: Final = {Style.TROUBLE: "31", Style.STILL: "33", Style.FAINT: "2"}
"""Colour codes of a terminal, by style; a computation that is in order has no colour."""


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


Guilty = Mapping[str, WatermarkView]
"""The computation that holds each computation, by name."""


def status_table(
    views: Sequence[WatermarkView],
    now_micros: int,
    guilty: Guilty,
    *,
    slices: Slices = _UNCUT,
    coloured: bool = False,
) -> str:
    """Return a table of computations, in the order of ``views``; slices are indented."""
    names_shown = {view.computation for view in views}
    shares = sorted({share for view in views for share, _ in view.shares}, reverse=True)
    names = (f"{share / 10_000:g} % LATELY SEEN" for share in shares)
    budgets = sorted({budget.share for view in views for budget in view.budgets})
    spent = (f"BUDGET {share * 100:g} %" for share in budgets)
    promises = [view.promise or Promise() for view in views]
    late = ("PROMISE",) if any(promise.late is not None for promise in promises) else ()
    who = ("ANSWERS FOR IT",) if any(promise.owner or promise.team for promise in promises) else ()
    rows = [("COMPUTATION", "STATE", "LOW WATERMARK", "LAG", *late, *names, *spent, "RANGES", "HELD BY", *who)]
    for view, promise in zip(views, promises, strict=True):
        rows.append(
            (
                "  " * (view.slice_of in names_shown) + view.computation,
                state_words(view, guilty.get(view.computation), now_micros),
                low_words(view),
                lag(view.low, now_micros),
                *(_late(view, now_micros) for _ in late),
                *(_heuristic(view, share, now_micros) for share in shares),
                *(_spent(view, view.budget.get(share), now_micros) for share in budgets),
                _ranges(view, slices),
                culprit_words(view, guilty.get(view.computation), now_micros),
                *(", ".join(filter(None, (promise.owner, promise.team))) for _ in who),
            )
        )
    head, *lines = table(rows).split("\n")
    if coloured:
        lines = [_painted(line, style_of(view, now_micros)) for line, view in zip(lines, views, strict=True)]
    return "\n".join([head, *lines])


def _ranges(view: WatermarkView, slices: Slices) -> str:
    """Return the number of key ranges of a computation, or of slices if it is cut."""
    if view.computation not in slices:
        return str(view.ranges)
    names, slowest = slices[view.computation]
    return f"{counted(len(names), 'slice')}, the slowest {slowest}"


def _painted(line: str, style: Style) -> str:
    return f"\x1b[{_COLOURS[style]}m{line}\x1b[0m" if style in _COLOURS else line


def _heuristic(view: WatermarkView, share: int, now_micros: int) -> str:
    """Return a heuristic watermark, and the known share of records that came behind it."""
    heuristic = dict(view.shares).get(share)
    if heuristic is None:
        return ""
    behind = view.came_behind.get(share / PPM)
    return _ahead(view, heuristic, now_micros) + ("" if behind is None else f", at most {behind * 100:.2g} % behind")


def _late(view: WatermarkView, now_micros: int) -> str:
    """Return the promised greatest lag of a low watermark, and by how much it is exceeded."""
    if view.promise is None or view.promise.late is None:
        return ""
    allowed, late = duration(view.promise.late.total_seconds()), late_by(view, now_micros)
    return f"{allowed}, late by {duration(late)}" if late else allowed


def _spent(view: WatermarkView, budget: LatenessBudget | None, now_micros: int) -> str:
    """Return the watermark of a lateness budget, and the share of records that came behind it."""
    if budget is None:
        return ""
    share = f", {budget.behind / budget.records * 100:.2g} % behind" if budget.records else ""
    return _ahead(view, budget.watermark, now_micros) + share


def _ahead(view: WatermarkView, watermark: Watermark, now_micros: int) -> str:
    """Return a watermark as its lag, to be compared with the lag of the low watermark."""
    return "=" if watermark == view.low else lag(watermark, now_micros)


def line(view: WatermarkView, now_micros: int, guilty: WatermarkView | None) -> str:
    """Return one change as a line; ``guilty`` is the computation that holds it, None if unknown."""
    parts = [moment(now_micros), view.computation, low_words(view)]
    if not (view.low.unknown or view.low.finished):
        parts.append(f"lag {lag(view.low, now_micros)}")
    parts += [
        f"{share / 10_000:g} % lately seen {watermark}" for share, watermark in view.shares if watermark != view.low
    ]
    if guilty is not None and (who := culprit_words(view, guilty, now_micros)):
        parts.append(f"held by {who}")
    return on_one_line("  ".join(parts))


def ranges_table(ranges: Ranges, now_micros: int) -> str:
    """Return key ranges as a table."""
    rows = [("START", "END", "WATERMARK", "LAG", "STATE", "WORKER", "HOST", "LAST REPORT")]
    for key_range in ranges:
        silent = (now_micros - key_range.last_report_micros) / 1e6
        rows.append(
            (
                describe_key(key_range.start) if key_range.start else "..",
                describe_key(key_range.end) if key_range.end else "..",
                str(key_range.watermark),
                lag(key_range.watermark, now_micros),
                range_words(key_range, now_micros),
                key_range.worker,
                key_range.host,
                f"{duration(silent)} ago" if key_range.last_report_micros else _without_report(key_range),
            )
        )
    more = ranges.total - len(ranges)
    return table(rows) + (f"\nand {more} more; --limit shows them" if more > 0 else "")


def _without_report(key_range: RangeView) -> str:
    """Return what the lack of a last report means."""
    return "never" if key_range.state is RangeState.NEVER_CLAIMED else "not since the authority restarted"


def to_json(value: Any) -> str:
    """Return an answer as one line of JSON."""
    return json.dumps(value, separators=(", ", ": "))


def times(name: str, watermark: Watermark) -> dict[str, Any]:
    """Return an event time as text and as a number; unknown and finished have no number."""
    bounded = not (watermark.unknown or watermark.finished)
    return {name: str(watermark), f"{name}_micros": watermark.micros if bounded else None}


def _date(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def view_record(
    view: WatermarkView, now_micros: int, guilty: WatermarkView | None = None, slices: Slices = _UNCUT
) -> dict[str, Any]:
    """Return the watermarks of a computation for JSON.

    ``guilty`` is the computation that holds it, None if unknown. Only slices, and computations
    with slices, have fields about slices.
    """
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
            f"{budget.share:g}": {
                **times("watermark", budget.watermark),
                "records": budget.records,
                "behind": budget.behind,
                "excused": budget.excused,
                "worst": budget.worst,
            }
            for budget in view.budgets
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
    """Return a promise for JSON."""
    return {
        "late_seconds": None if promise.late is None else promise.late.total_seconds(),
        "owner": promise.owner,
        "team": promise.team,
        "runbook": promise.runbook,
        "logs": promise.logs,
    }


def range_record(key_range: RangeView) -> dict[str, Any]:
    """Return a key range for JSON; keys in hexadecimal."""
    return {
        "start": key_range.start.hex(),
        "end": key_range.end.hex(),
        **times("watermark", key_range.watermark),
        "state": key_range.state.value,
        "worker": key_range.worker,
        "host": key_range.host,
        "sequencer": key_range.sequencer,
        "since": _date(key_range.since),
        "last_report": _date(key_range.last_report),
        "claimed": _date(key_range.claimed),
        "waiting_for": key_range.waiting_for,
        **key_range.remarks._asdict(),
    }


def completeness_record(
    completeness: Completeness, until: Watermark, now_micros: int, why: Why | None
) -> dict[str, Any]:
    """Return the answer of ``complete`` for JSON.

    ``why`` says what holds it; None when it is complete or the cause is unknown.
    """
    guilty = None if why is None else WatermarkView(why.guilty.computation)
    return {
        "complete": completeness.complete,
        **times("until", until),
        "watermark": view_record(completeness.watermark, now_micros, guilty),
        "holding": completeness.holding,
        "holders": [range_record(key_range) for key_range in completeness.holders],
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
            "holders": [range_record(key_range) for key_range in why.guilty.holders],
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
                "holders": [range_record(key_range) for key_range in hop.holders],
                "sentence": hop.sentence,
            }
            for hop in why
        ],
    }
