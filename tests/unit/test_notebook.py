"""How answers look in a notebook and in an interactive Python: pure functions, so nothing is started."""

from __future__ import annotations

import io
import os
import pty
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater import (
    Completeness,
    Completion,
    Computation,
    History,
    Inputs,
    Promise,
    Ranges,
    RangeState,
    RangeView,
    Remarks,
    Topology,
    Views,
    Watermark,
    WatermarkView,
    Why,
)
from lowwater.core.causes import Cause
from lowwater.core.intervals import Gap, IntervalView
from lowwater.core.why import explain
from lowwater.notebook import markup
from lowwater.notebook.graph import MOST_NODES, Look, Node, draw
from lowwater.notebook.progress import Progress, line_of
from lowwater_spark import AttachStatus, Status
from lowwater_spark import notebook as spark_notebook
from lowwater_spark.attach.book import QueryStatus
from tests.kit.times import HOUR, MINUTE, SECOND, mark

NOW = mark(14).micros
EVIL = '<script>alert("1")</script>\x1b[2J\n&'
LOOK = Look("&#9679;", "#2e8b57", "it moves")
SVG = "{http://www.w3.org/2000/svg}"


def held(low: int, worker: str = "exec-7", *, silent: int = 1) -> RangeView:
    last = NOW - silent * SECOND
    return RangeView(b"", b"", Watermark(low), RangeState.OWNED, worker, "vm", 1, NOW - 5 * SECOND, last)


def view(name: str, behind: int, *inputs: str, worker: str = "exec-7", silent: int = 1) -> WatermarkView:
    low = NOW - behind
    holder = held(low, worker, silent=silent)
    return WatermarkView(name, True, 1, 1, Watermark(low), (), 0, NOW, holder, 1, inputs)


VIEWS = [
    view("orders", MINUTE),
    view("payments", 12 * MINUTE, worker=EVIL, silent=70),
    replace(view("hourly", 12 * MINUTE, "orders", "payments"), promise=Promise(timedelta(minutes=5), EVIL)),
    view(EVIL, 12 * MINUTE, "hourly"),
    view("alerts", MINUTE, "orders", "missing"),
    WatermarkView("archive", True, 1, 1, Watermark.FINISHED, inputs=("orders",)),
    WatermarkView("new", True, 1, 1, inputs=("orders",), estimated=True),
]
WHOLE = Views({one.computation: one for one in VIEWS}, whole=True)


def parsed(html: str) -> ET.Element:
    """Return HTML as XML, which ours is, after a look for what must not be in it."""
    assert not re.search(r"<script|\son\w+=|https?://(?!www\.w3\.org/2000/svg)|url\(", html)
    return ET.fromstring(re.sub(r"<br>", "<br/>", html))


def text_of(html: str) -> str:
    return " ".join(" ".join(parsed(html).itertext()).split())


def nodes_of(inputs: Sequence[Sequence[int]]) -> list[Node]:
    return [Node(f"c{i}", [f"c{j}" for j in each], "moving", LOOK) for i, each in enumerate(inputs)]


@st.composite
def graphs(drawing: st.DrawFn) -> list[Node]:
    """Any graph without a cycle, of one to 300 computations, connected or not."""
    count = drawing(st.sampled_from([1, 2, 5, 12, 40, 300]))
    edges = drawing(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=2 * count))
    return nodes_of([[one for one, other in edges if other == i > one] for i in range(count)])


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_every_graph_is_drawn_with_every_computation_once(nodes: list[Node]) -> None:
    drawn = draw(nodes)
    if drawn is None:
        assert len(nodes) > 40, "only a large graph has too many places"
        return
    root = ET.fromstring(drawn)
    boxes = {
        title.text: group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g") for title in group.iter(f"{SVG}title")
    }
    assert len(root.findall(f"{SVG}g")) == len(boxes) == len(nodes)
    places = {}
    for node in nodes:
        box = boxes[f"{node.name}: {node.line}"]
        assert box is not None
        places[node.name] = tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height"))
    assert len(root.findall(f"{SVG}path")) == sum(len(set(node.inputs)) for node in nodes)
    assert all(places[name][0] + places[name][2] < places[node.name][0] for node in nodes for name in node.inputs)
    columns: dict[float, list[tuple[float, float]]] = {}
    for x, y, _, height in places.values():
        columns.setdefault(x, []).append((y, y + height))
    for column in columns.values():
        column.sort()
        assert all(above[1] < below[0] for above, below in pairwise(column)), "boxes overlap"


def test_a_chain_and_a_cycle_that_two_versions_of_the_graph_form_are_drawn() -> None:
    chain = draw(nodes_of([[i - 1] if i else [] for i in range(MOST_NODES)]))
    assert chain is not None
    assert chain.count("<g>") == MOST_NODES
    cycle = draw(nodes_of([[1], [0]]))
    assert cycle is not None
    assert cycle.count("<g>") == 2


def test_too_large_a_graph_is_a_table_of_all_or_says_so() -> None:
    one = Computation("c", (), (0.99,), "", timedelta(days=1), 1, 1, ())
    many = {f"c{i}": replace(one, name=f"c{i}", inputs=("c0",) if i else ()) for i in range(MOST_NODES + 1)}
    html = markup.topology(Topology(7, many))
    assert "<svg" not in html
    assert "c199" in html
    assert "and 101 more" in text_of(html)
    assert "<svg" in markup.topology(Topology(7, {"c0": many["c0"], "c1": many["c1"]}))
    views = Views({name: view(name, MINUTE, *each.inputs) for name, each in many.items()}, whole=True)
    assert "301 computations: too many for a drawing" in text_of(markup.status(views, NOW))


def test_the_status_names_who_holds_whom_in_words_and_marks() -> None:
    html = markup.status(WHOLE, NOW)
    text = text_of(html)
    for words in (
        "7 computations",
        "1 in trouble",
        "▲ silent",
        "○ waits for payments",
        "late by 7 min",
        "missing, which is not registered or may not be read",
        "2013-01-09T13:48:00Z",
        "▲ somebody has to act",
        "■ finished",
        "dashed: no promise",
    ):
        assert words in text
    titles = [title.text for title in parsed(html).iter(f"{SVG}title")]
    assert len(titles) == len(VIEWS) + 1, "and the input that is not registered"
    assert "payments: 12 min, silent" in titles
    assert "missing: not registered, or not readable" in titles


def test_a_worker_that_ended_as_planned_is_no_trouble_anywhere() -> None:
    stopped = view("orders", MINUTE)
    assert stopped.holder is not None
    holder = replace(stopped.holder, remarks=Remarks(ended=True))
    views = Views({"orders": replace(stopped, holder=holder)}, whole=True)
    for html, said in (
        (markup.status(views, NOW), "stopped"),
        (markup.why(explain("orders", views, NOW, Ranges((holder,), 1))), "ended in good order"),
    ):
        assert said in text_of(html)
        assert "trouble" not in text_of(html)
        assert "#d9483b" not in html
    assert "owned, stopped" in text_of(markup.ranges(Ranges((holder,), 1), NOW))


def test_a_part_of_the_computations_blames_no_input_that_was_not_asked_for() -> None:
    html = markup.status(Views({"short": view("ns/hourly", MINUTE, "ns/orders")}), NOW)
    assert "not registered" not in html
    assert "<svg" not in html
    assert "ns/hourly ● moving" in text_of(html)


def test_names_of_others_are_text_wherever_they_are_shown() -> None:
    why = explain(EVIL, WHOLE, NOW, Ranges((held(NOW - 12 * MINUTE, EVIL, silent=70),), 1))
    why = replace(why, promise=Promise(owner=EVIL, runbook=EVIL))
    complete = Completeness(False, VIEWS[3], (held(0, EVIL),), 1)
    gap = Gap(EVIL, VIEWS[3], mark(13), None, Cause.SILENT)
    missing = IntervalView(EVIL, mark(13), mark(14), VIEWS[3], (gap,), why)
    graph = Topology(1, {EVIL: Computation(EVIL, (EVIL,), (), "", timedelta(days=1), 1, 1, ())})
    history = History(EVIL, timedelta(hours=1), (), 0)
    pieces = [
        markup.why(why),
        markup.completeness(complete, NOW),
        markup.interval(missing),
        markup.topology(graph),
        markup.history(history),
        markup.ranges(Ranges((held(0, EVIL),), 3), NOW),
        markup.progress(EVIL, str(mark(14)), 0.5, EVIL),
        *(markup.view(one, NOW) for one in VIEWS),
    ]
    for html in pieces:
        parsed(html)
    assert all("alert" in html for html in pieces[:7])
    for value in (why, complete, missing, graph, history, *VIEWS, *why.hops, held(0, EVIL), Ranges((held(0),), 2)):
        assert repr(value).isprintable()
        assert repr(value).startswith(f"<{type(value).__name__} ")


def test_what_is_unknown_or_empty_shows_words() -> None:
    assert text_of(markup.status(Views({}, whole=True), NOW)).startswith(
        "no computation to show none is registered yet, or"
    )
    assert "is not registered" in text_of(markup.view(WatermarkView("nope"), NOW))
    assert "was dropped" in text_of(markup.view(WatermarkView("nope", incarnation=3), NOW))
    assert "unknown" in text_of(markup.view(VIEWS[-1], NOW))
    assert "an empty graph" in text_of(markup.topology(Topology(0, {})))
    assert "nothing is known" in text_of(markup.why(Why(())))
    assert "No step became complete" in text_of(markup.history(History("a", timedelta(hours=1), (), 0)))
    for wild in (Watermark(-(2**62)), Watermark(2**62), Watermark(Watermark.UNKNOWN.micros + 1)):
        assert f"{wild.micros} us" in markup.view(replace(VIEWS[0], low=wild), NOW)


def test_the_bars_of_a_history_have_the_lengths_of_its_delays() -> None:
    ends = [mark(hour).micros for hour in (10, 11, 12)]
    delays = [MINUTE, 4 * MINUTE, 2 * MINUTE]
    completions = [
        Completion(2, Watermark(end - HOUR), Watermark(end), end + late) for end, late in zip(ends, delays, strict=True)
    ]
    html = markup.history(History("hourly", timedelta(hours=1), tuple(completions), 5))
    assert [int(width) for width in re.findall(r"width:(\d+)px", html)] == [35, 140, 70]
    assert "2013-01-09 10:00 to 11:00 2013-01-09 11:04:00 4 min" in text_of(html)
    assert "and 2 before them" in text_of(html)


def test_a_value_is_one_short_line() -> None:
    assert re.fullmatch(
        r"<WatermarkView hourly: 2013-01-09T13:48:00Z, \d+ d.* behind, held by all keys, owned by exec-7 on vm>",
        repr(VIEWS[2]),
    )
    assert repr(WatermarkView("nope")) == "<WatermarkView nope: not registered>"
    assert repr(Topology(7, {})) == "<Topology version 7: 0 computations>"
    steps = (Completion(1, mark(9), mark(10), mark(10).micros),)
    history = History("hourly", timedelta(hours=1), steps, 4)
    assert (
        repr(history) == "<History hourly: 1 of 4 completions in steps of 1 h, the newest of 2013-01-09 09:00 to 10:00>"
    )
    seen = Inputs(Watermark.UNKNOWN, {}, 0.0, "orders", {"orders": VIEWS[0]})
    assert repr(seen) == "<Inputs orders: unknown, held by orders>"
    assert repr({"a": WatermarkView("a", True, low=Watermark.FINISHED)}) == "{'a': <WatermarkView a: finished>}"


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of this test is no terminal, so the wait goes on to its deadline at once."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with Progress("hourly", mark(14), lambda: 0.0) as progress:
        assert progress.before(99.0) == 99.0
        assert progress.before(None) is None
        assert not progress.is_due(None)


def test_a_long_answer_is_a_short_table() -> None:
    answer = Ranges((held(NOW),) * 5_000, 6_000)
    html = markup.ranges(answer, NOW)
    assert "6000 key ranges, the first 200 of them" in text_of(html)
    steps = [Completion(2, mark(9), mark(10), mark(10).micros + late) for late in range(5_000)]
    history = markup.history(History("hourly", timedelta(hours=1), tuple(steps), 6_000))
    assert "and 5800 before them" in text_of(history)
    assert max(len(html), len(history)) < 300_000


def test_on_a_terminal_one_wait_has_a_line_and_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, now = Terminal(), 0.0
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Progress("hourly", mark(14), lambda: now) as progress, Progress("b", mark(14), lambda: now) as other:
        assert progress.before(None) == progress.before(99.0) == 2.0
        assert progress.before(1.0) == 1.0
        assert not progress.is_due(None)
        now = 2.0
        assert progress.is_due(None)
        assert not progress.is_due(2.0), "the deadline has come"
        progress.show(mark(12), "held by orders" + EVIL)
        assert terminal.getvalue().endswith(
            "waiting for hourly until 2013-01-09T14:00:00Z (0%): held by orders<script>ale.."
        )
        assert progress.before(None) == 4.0
        other.show(mark(12), "hidden")
        assert other.before(None) is None, "one line is of one wait"
        progress.show(mark(13), "held by orders")
        assert terminal.getvalue().endswith("(50%): held by orders")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "hidden" not in terminal.getvalue()
    with Progress("hourly", mark(14), lambda: now, wanted=False) as progress:
        assert progress.before(None) is None
    assert line_of("a", "finished", None, "it is unknown") == "waiting for a until finished: it is unknown"


def test_rule11_a_wait_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with io.TextIOWrapper(io.FileIO(slave, "w"), write_through=True) as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        now = 0.0
        with Progress("hourly", mark(14), lambda: now) as progress:
            now = 2.0
            progress.show(mark(12), "held by orders")
            os.close(master)
            progress.show(mark(13), "held by orders")
            assert progress.before(None) is None, "nothing more is shown"
    shut = io.StringIO()
    shut.close()
    for gone in (terminal, None, object(), shut):
        monkeypatch.setattr("sys.stderr", gone)
        with Progress("hourly", mark(14), lambda: now) as progress:
            assert progress.before(None) is None


def test_attachments_and_tracked_stages_show_what_they_wait_for() -> None:
    query = QueryStatus("spark.x", "id", "run", EVIL, state="ended", failure=EVIL, rows=1_234, published=mark(13))
    status = AttachStatus(True, "host:7420", "away", "no answer", 1, 0, 0, 0, 0, "", (query,))
    text = text_of(spark_notebook.attached(status, "http:localhost"))
    assert "attached to host:7420 it does not answer no answer" in text
    assert "1,234 0 2013-01-09T13:00:00Z" in text
    assert "status page: http:localhost" in text
    assert repr(status) == "<AttachStatus host:7420 away: no answer; spark.x>"
    assert "not attached" in text_of(spark_notebook.attached(replace(status, enabled=False)))
    stage = Status(None, mark(14), Watermark.UNKNOWN, "", (EVIL, "/in/b.json"), 2, EVIL, 0)
    text = text_of(spark_notebook.tracked("hourly", stage))
    assert "batch none yet inputs are at 2013-01-09T14:00:00Z reports unknown" in text
    assert "/in/b.json late rows 2" in text
    assert repr(stage).startswith("<Status no batch yet, at unknown, waiting for <script>")
