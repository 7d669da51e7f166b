"""Answers of the authority as HTML for notebooks: no scripts, nothing loaded, styles inline.

Texts that others chose are escaped. Colours are readable on light and dark ground, and words or
marks say the same. Times are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from html import escape
from typing import Final

from lowwater.core.causes import Cause, cause_of
from lowwater.core.intervals import IntervalView
from lowwater.core.lag import late_by
from lowwater.core.text import counted, describe_range, duration, lag, on_one_line
from lowwater.core.why import Why, find_culprits
from lowwater.core.words import (
    culprit_words,
    holder_words,
    late_words,
    longest_delay,
    low_words,
    moment,
    range_words,
    severity,
    state_words,
    steps_words,
)
from lowwater.notebook.graph import Look, Node, draw
from lowwater.views import Completeness, History, Ranges, Topology, Views, WatermarkView, slice_of
from lowwater.watermark import MIN, Watermark

__all__ = [
    "completeness",
    "facts",
    "fixed",
    "history",
    "interval",
    "progress",
    "ranges",
    "status",
    "table",
    "time_of",
    "titled",
    "topology",
    "view",
    "why",
    "words",
]

_MOST_ROWS: Final = 200
"""Greatest number of rows of a table; a notebook stores them all."""

_TROUBLE: Final = Look("&#9650;", "#d9483b", "somebody has to act", strong=True)
_STANDS: Final = Look("&#9670;", "#b7791f", "its worker is alive and stands")
_MOVES: Final = Look("&#9679;", "#2e8b57", "it moves")
_WAITS: Final = Look("&#9675;", "#5b7fb5", "it waits for another one")
_ENDED: Final = Look("&#9632;", "#808080", "finished or stopped")
_LOOKS: Final = (_TROUBLE, _STANDS, _MOVES, _WAITS, _ENDED)

_SOURCE: Final = Look("&#9656;", "#2e8b57", "brings records in")
_STAGE: Final = Look("&#9675;", "#5b7fb5", "reads other computations")

_BODY: Final = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color-scheme:light dark"
_LINE: Final = "border-bottom:1px solid rgba(128,128,128,.3)"
_CELL: Final = f"text-align:left;vertical-align:top;padding:3px 14px 3px 0;background:none;{_LINE}"
_TABLE: Final = "font:inherit;color:inherit;border-collapse:collapse;margin:0 0 6px"
_FAINT: Final = "opacity:.7"
_BAR: Final = 140
"""Length of the longest bar of a history, pixels."""

Cells = Sequence[str]
"""Cells of a row, as HTML."""


def titled(title: str, note: str, *parts: str) -> str:
    """Return the HTML of an answer: a title, a note beside it, and what follows."""
    aside = f' <span style="{_FAINT}">{words(note)}</span>' if note else ""
    head = f'<div style="margin:2px 0 4px"><b>{words(title)}</b>{aside}</div>'
    return f'<div style="{_BODY}">{head}{"".join(parts)}</div>'


def table(headings: Sequence[str], rows: Iterable[Cells]) -> str:
    """Return a table; headings are text, cells are HTML."""
    style = f"{_CELL};font-weight:600;{_FAINT};white-space:nowrap"
    head = "".join(f'<th style="{style}">{escape(heading)}</th>' for heading in headings)
    lines = ("".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) for row in rows)
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    return f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def words(text: str) -> str:
    """Return a text of others as HTML, without control characters."""
    return escape(on_one_line(text))


def _note(text: str) -> str:
    return f'<div style="{_FAINT};margin:2px 0 4px">{escape(text)}</div>'


def facts(lines: Iterable[tuple[str, str]]) -> str:
    """Return names and values in two columns; values are HTML, and empty ones are left out."""
    rows = "".join(
        f'<tr style="background:none"><th style="{_CELL};font-weight:normal;{_FAINT};white-space:nowrap">{escape(name)}</th>'
        f'<td style="{_CELL}">{value}</td></tr>'
        for name, value in lines
        if value
    )
    return f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>'


def _marked(look: Look, text: str) -> str:
    return f'<span style="white-space:nowrap"><span style="color:{look.colour}">{look.mark}</span> {words(text)}</span>'


def fixed(text: str) -> str:
    """Return a time or a lag, which is not broken into lines; empty for an empty text."""
    return text and f'<span style="white-space:nowrap;font-variant-numeric:tabular-nums">{words(text)}</span>'


def time_of(watermark: Watermark) -> str:
    """Return a watermark to the second, rounded down; its title is exact."""
    timeless = watermark.unknown or watermark.finished
    shown = watermark if timeless else Watermark(max(MIN + 1, watermark.micros // 1_000_000 * 1_000_000))
    return f'<span title="{watermark}">{fixed(str(shown))}</span>'


def _low(view: WatermarkView) -> str:
    """Return the low watermark, and whether it is only estimated; empty when not registered."""
    if not view.registered:
        return ""
    return time_of(view.low) + (f'<br><span style="{_FAINT}">estimated</span>' if view.estimated else "")


def _held(text: str) -> str:
    return f'<div style="min-width:200px">{words(text)}</div>' if text else ""


def _look(view: WatermarkView, guilty: WatermarkView | None, now_micros: int) -> Look:
    """Return the look of what :func:`state_words` says."""
    waits = guilty is not None and guilty.computation != view.computation
    return _look_of(cause_of(view, now_micros), waits=waits)


def _look_of(cause: Cause | None, *, waits: bool) -> Look:
    if cause in {Cause.FINISHED, Cause.STOPPED}:
        return _ENDED
    if cause is not None and cause.trouble:
        return _TROUBLE
    if cause is None or waits:
        return _WAITS
    return _MOVES if cause in {Cause.MOVING, Cause.MOVED_ON} else _STANDS


def _lag_words(watermark: Watermark, now_micros: int) -> str:
    return "" if watermark.unknown or watermark.finished else lag(watermark, now_micros)


def _late_cell(view: WatermarkView, now_micros: int) -> str:
    """Return by how much a computation exceeds its promise; empty without one."""
    if view.promise is None or view.promise.late is None:
        return ""
    late = late_by(view, now_micros)
    if late:
        return _marked(_TROUBLE, f"late by {duration(late)}")
    return fixed(f"within {duration(view.promise.late.total_seconds())}")


# -- one computation -------------------------------------------------------------------------------


def view(one: WatermarkView, now_micros: int) -> str:
    """Return the watermarks of one computation."""
    if not one.registered:
        note = "was dropped" if one.dropped else "is not registered"
        return titled(one.computation, note, _note("Nothing is promised: its watermark is unknown, and readers hold."))
    promise = one.promise
    lines = [
        ("low watermark", _low(one)),
        ("lag", fixed(_lag_words(one.low, now_micros))),
        ("state", _marked(_look(one, None, now_micros), state_words(one, None, now_micros))),
        ("held by", words(holder_words(one.holder, now_micros))),
        ("waits for", "" if one.holder is None else words(one.holder.waiting_for)),
        ("promise", _late_cell(one, now_micros)),
        ("inputs", words(", ".join(one.inputs))),
    ]
    lines += [
        (f"{share / 10_000:g} % lately seen", f"{time_of(watermark)}, {fixed(_lag_words(watermark, now_micros))}")
        for share, watermark in one.shares
        if watermark != one.low
    ]
    lines += [(f"budget {budget.share * 100:g} %", time_of(budget.watermark)) for budget in one.budgets]
    if promise is not None:
        who = " of ".join(filter(None, (promise.owner, promise.team)))
        lines += [("answers for it", words(who)), ("runbook", words(promise.runbook))]
    since = f"since {moment(one.since_micros)}" if one.since_micros else ""
    return titled(one.computation, since, facts(lines))


def status(views: Views, now_micros: int) -> str:
    """Return computations as a table, the worst first, and as a graph if all are there."""
    shown = sorted(
        {one.computation: one for one in views.values() if not (views.whole and one.slice_of)}.values(),
        key=lambda one: severity(one, now_micros),
    )
    if not shown:
        return titled("no computation to show", "none is registered yet, or none that this client may read")
    names = {one.computation: one for one in views.values()}
    # Without the views of all, an input that is missing here may be registered.
    guilty = find_culprits([one.computation for one in shown], names, now_micros) if views.whole else {}
    headings = ["computation", "state", "low watermark", "lag"]
    promised = any(one.promise is not None and one.promise.late is not None for one in shown)
    rows = [
        (
            f"<b>{words(one.computation)}</b>",
            _marked(_look(one, who, now_micros), state_words(one, who, now_micros)),
            _low(one),
            fixed(_lag_words(one.low, now_micros)),
            *((_late_cell(one, now_micros),) if promised else ()),
            _held(culprit_words(one, who, now_micros)),
        )
        for one in shown[:_MOST_ROWS]
        for who in [guilty.get(one.computation)]
    ]
    parts = [table([*headings, *(("promise",) if promised else ()), "held by"], rows)]
    if len(shown) > _MOST_ROWS:
        parts.append(_note(f"and {len(shown) - _MOST_ROWS} more"))
    if views.whole:
        parts.append(_states(shown, names, guilty, now_micros))
    troubled = sum(_look(one, None, now_micros) is _TROUBLE for one in shown)
    note = f"as of {moment(now_micros)}" + (f", {troubled} in trouble" if troubled else "")
    return titled(counted(len(shown), "computation"), note, *parts)


def _states(
    shown: Sequence[WatermarkView],
    views: Mapping[str, WatermarkView],
    guilty: Mapping[str, WatermarkView],
    now_micros: int,
) -> str:
    """Return the graph of computations in their states; empty when none of them has an input."""
    if not any(one.inputs for one in shown):
        return ""
    absent = {name for one in shown for name in one.inputs if name not in views}
    nodes: list[Node] = []
    for one in [*sorted(shown, key=lambda one: one.computation), *map(WatermarkView, sorted(absent))]:
        who = guilty.get(one.computation)
        state = state_words(one, who, now_micros)
        behind = _lag_words(one.low, now_micros) or str(one.low)
        line = state if one.low.finished else f"{behind}, {state}"
        if not one.registered:
            line = "not registered, or not readable"
        dashed = one.estimated or not one.registered
        nodes.append(Node(one.computation, one.inputs, line, _look(one, who, now_micros), dashed))
    return _graph(nodes, _LOOKS)


def _graph(nodes: Sequence[Node], looks: Sequence[Look]) -> str:
    drawn = draw(nodes)
    if drawn is None:
        return _note(f"{counted(len(nodes), 'computation')}: too many for a drawing")
    present = {node.look for node in nodes}
    legend = [
        f'<span style="margin-right:16px;white-space:nowrap"><span style="color:{look.colour}">{look.mark}</span> {escape(look.legend)}</span>'
        for look in looks
        if look in present
    ]
    if any(node.dashed for node in nodes):
        legend.append('<span style="white-space:nowrap">dashed: no promise</span>')
    return (
        f'<div style="overflow-x:auto;padding:4px 0">{drawn}</div><div style="font-size:12px">{"".join(legend)}</div>'
    )


def topology(graph: Topology) -> str:
    """Return the registered graph as a drawing; as a table when it is too large."""
    shown = [one for one in graph.computations.values() if not one.slice_of]
    title = f"graph of {counted(len(shown), 'computation')}"
    note = f"version {graph.version}; lw.get() shows their states"
    if not shown:
        return titled("an empty graph", f"version {graph.version}: no computation is registered yet")
    cut = {name for one in graph.computations.values() if (name := one.slice_of or slice_of(one.name))}
    nodes: list[Node] = []
    for one in sorted(shown, key=lambda one: one.name):
        kind = f"reads {counted(len(one.inputs), 'input')}" if one.inputs else "source"
        line = kind + (", estimated" if one.estimated else "") + (", cut into slices" if one.name in cut else "")
        nodes.append(Node(one.name, one.inputs, line, _STAGE if one.inputs else _SOURCE, one.estimated))
    if draw(nodes) is not None:
        return titled(title, note, _graph(nodes, (_SOURCE, _STAGE)))
    rows = [(f"<b>{words(node.name)}</b>", words(node.line), words(", ".join(node.inputs))) for node in nodes]
    more = [_note(f"and {len(rows) - _MOST_ROWS} more")] if len(rows) > _MOST_ROWS else []
    return titled(title, note, table(("computation", "", "inputs"), rows[:_MOST_ROWS]), *more)


# -- why, and how far ------------------------------------------------------------------------------


def why(answer: Why) -> str:
    """Return the root cause, then the way to it, one line per hop."""
    if not answer.hops:
        return titled("nothing is known", "")
    looks = [_look_of(hop.cause, waits=False) for hop in answer.hops]
    steps = "".join(
        f'<li style="margin:2px 0"><span style="color:{look.colour}">{look.mark}</span> {words(hop.sentence)}</li>'
        for look, hop in zip(looks, answer.hops, strict=True)
    )
    parts = [f'<ol style="margin:4px 0 4px;padding-left:22px">{steps}</ol>']
    if answer.answers:
        parts.append(f"<div>{words(answer.answers)}</div>")
    accent = _TROUBLE.colour if _look_of(answer.guilty.cause, waits=False) is _TROUBLE else "#808080"
    sentence = f'<div style="border-left:3px solid {accent};padding:2px 0 2px 10px;margin:4px 0"><b>{words(answer.sentence)}</b></div>'
    return titled(f"why {answer.hops[0].computation}", "", sentence, *parts)


def ranges(answer: Ranges, now_micros: int, title: str = "key ranges") -> str:
    """Return key ranges as a table."""
    rows = [
        (
            f"<code>{words(describe_range(one.start, one.end))}</code>",
            time_of(one.watermark),
            fixed(_lag_words(one.watermark, now_micros)),
            words(range_words(one, now_micros)),
            words(f"{one.worker} on {one.host}" if one.worker else ""),
            words(one.waiting_for),
        )
        for one in answer.ranges[:_MOST_ROWS]
    ]
    note = counted(answer.total, "key range")
    if len(rows) < answer.total:
        note += f", the first {len(rows)} of them"
    headings = ("keys", "watermark", "lag", "state", "worker", "waits for")
    return titled(title, note, table(headings, rows) if rows else "")


def completeness(answer: Completeness, now_micros: int) -> str:
    """Return whether a computation is complete, and the key ranges that hold it if not."""
    one = answer.watermark
    if answer.complete:
        return titled(f"{one.computation} is complete", f"its low watermark: {one.low}")
    held = ranges(Ranges(answer.holders, answer.holding), now_micros, "held by") if answer.holders else ""
    return titled(f"{one.computation} is not complete yet", f"its low watermark: {low_words(one)}", held)


def interval(answer: IntervalView) -> str:
    """Return whether an interval is complete, and what is missing of it."""
    bounds = f"{answer.start} to {answer.end}"
    if answer.complete:
        return titled(f"{answer.computation} is complete", bounds)
    rows = [(f"<b>{words(gap.computation)}</b>", time_of(gap.missing), words(gap.cause.value)) for gap in answer.gaps]
    cause = "" if answer.why is None else f"<div>{words(answer.why.sentence)}</div>"
    missing = table(("computation", "missing from", "state"), rows)
    return titled(f"{answer.computation} is not complete yet", bounds, cause, missing)


def history(answer: History) -> str:
    """Return completions, each with a bar that shows how late its oldest step was."""
    step = answer.step
    title, note = f"history of {answer.computation}", f"in steps of {duration(step.total_seconds())}, UTC"
    if not answer.completions:
        return titled(title, note, _note("No step became complete since its history is kept."))
    shown = answer.completions[-_MOST_ROWS:]
    newest = shown[-1].incarnation
    most = max(longest_delay(one, step) for one in shown)
    rows = [
        (
            fixed(steps_words(one, step))
            + ("" if one.incarnation == newest else f' <span style="{_FAINT}">incarnation {one.incarnation}</span>'),
            fixed(f"{one.time:%Y-%m-%d %H:%M:%S}"),
            _bar(longest_delay(one, step), most, late_words(one, step)),
        )
        for one in shown
    ]
    more = answer.total - len(shown)
    before = [_note(f"and {more} before them")] if more > 0 else []
    return titled(title, note, table(("steps", "complete at", "after their end"), rows), *before)


def _bar(late: timedelta, most: timedelta, text: str) -> str:
    length = round(_BAR * (late / most)) if late > timedelta() < most else 0
    bar = (
        f'<span style="display:inline-block;width:{max(2, length)}px;height:9px;border-radius:2px;'
        'background:#5b7fb5;margin-right:8px"></span>'
        if late > timedelta()
        else ""
    )
    return f'<span style="white-space:nowrap">{bar}{words(text)}</span>'


def progress(name: str, until: str, share: float | None, sentence: str) -> str:
    """Return a wait: what it waits for, how far that is, and who holds it."""
    done = "" if share is None else f"{share:.0%}"
    bar = (
        ""
        if share is None
        else '<div style="width:280px;height:7px;border-radius:4px;background:rgba(128,128,128,.25);margin:3px 0">'
        f'<div style="width:{share * 100:.0f}%;height:7px;border-radius:4px;background:#5b7fb5"></div></div>'
    )
    return titled(f"waiting for {name} until {until}", done, bar, f"<div>{words(sentence)}</div>")
