"""A pipeline that is declared once: what is derived of it, what is refused before anything starts, and how it is drawn. Without Spark."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater_pipeline.command import main
from lowwater_pipeline.computation import Computation, Input, Output, Weak
from lowwater_pipeline.graph import Folder, Frame, Pipeline, PipelineError, Table, Topic
from lowwater_pipeline.graph.columns import columns_of
from lowwater_pipeline.graph.drawing import FORMATS, draw
from lowwater_pipeline.graph.running import Running
from tests.kit.times import mark

ROWS = "q string, start timestamp, n long"


class Any_(Computation):
    """Declares in its fields what is given."""

    def __init__(self, name: str, inputs: Sequence[Input], outputs: Mapping[str, str | Output], **more: Any) -> None:
        self.__dict__.update({"name": name, "inputs": inputs, "outputs": outputs, **more})

    def process_record(self, ctx: Any, record: Any) -> None:
        """Do nothing."""


def named(name: str, *inputs: Input, **more: Any) -> Any_:
    """One whose rows are stamped by their start."""
    return Any_(name, inputs, {"rows": Output(ROWS, event_time="start")}, **more)


def reads(name: str, **more: Any) -> Input:
    options: dict[str, Any] = {"key": "q", "event_time": "start"} | more
    return Input(name, **options)


SOURCE: Mapping[str, Any] = {"in": Folder(ROWS, "in")}


def test_all_is_derived_of_what_is_said_once() -> None:
    last = named("last", reads("middle"), reads("first", output="b", alias="b", event_time="T"))
    middle = named("middle", reads("first", output="a"))
    first = Any_("first", [reads("in")], {"a": Output(ROWS, "start"), "b": Output("q string, t timestamp", "t")})
    graph = Pipeline("p", [last, middle, first], sources=SOURCE, outputs={"first.b": Folder(path="/b", format="json")})
    assert graph.order == ["first", "middle", "last"]
    assert [(read.computation, read.input.label, read.origin, read.path) for read in graph.reads] == [
        ("last", "middle", "middle.rows", "outputs/middle/rows"),
        ("last", "b", "first.b", "/b"),
        ("middle", "first", "first.a", "outputs/first/a"),
        ("first", "in", "in", "in"),
    ]
    assert [read.schema for read in graph.reads] == [ROWS, "q string, t timestamp", ROWS, ROWS]
    assert (graph.upstream_of("last"), graph.readers_of("first")) == (["middle", "first"], ["last", "middle"])
    assert graph.named(["last", "first"]) == ["first", "last"]
    with pytest.raises(ValueError, match="the pipeline p has no computation other; it has last, middle, first"):
        graph.named(["other"])


def both(first: Sequence[Input], second: Sequence[Input]) -> list[Computation]:
    return [named("a", *first), named("b", *second)]


ONE = [named("a", reads("in"))]
TWO = both([reads("in")], [reads("in")])
CHAINED = both([reads("in")], [reads("a")])

WRONG: list[tuple[Sequence[Computation], Mapping[str, Any], Mapping[str, Any], str]] = [
    ([], {}, {}, "it has no computations"),
    ([named("a", reads("in")), named("A", reads("in"))], SOURCE, {}, "two computations have the name"),
    ([named("a/b", reads("in"))], SOURCE, {}, "a/b: name= is also that of a folder"),
    (both([reads("b")], [reads("a")]), {}, {}, "-> a: each waits for the other.* take one of these inputs= out"),
    ([named("a", reads("inn"))], {}, {}, "a: the input inn is no computation of the pipeline and in no sources="),
    (ONE, {**SOURCE, "b": Folder("", "")}, {}, "is read by no input"),
    (CHAINED, {**SOURCE, "a": Folder(ROWS, "a")}, {}, "the input a is a computation of the pipeline and in sources="),
    (
        both([reads("in")], [Input(["a", "x"], key="q", event_time="start")]),
        SOURCE,
        {},
        r"input a\+x names a of the pip",
    ),
    (ONE, {"in": Folder(path="in")}, {}, "a Folder without its columns"),
    (ONE, {"in": Topic("t", "k:1", 1)}, {}, "a Topic without its columns"),
    (
        [Any_("a", [reads("in")], {"x": Output(ROWS, "start"), "y": "n int"}), named("b", reads("a"))],
        SOURCE,
        {},
        "b: the input a does not say which output it reads: add output=, one of x, y",
    ),
    (both([reads("in")], [reads("a", output="row")]), SOURCE, {}, "output='row', which is not declared"),
    (
        [Any_("a", [reads("in")], {"rows": Output(ROWS, None)}), named("b", reads("a"))],
        SOURCE,
        {},
        "b: the input a reads a.rows, which declares no event time",
    ),
    (
        [
            Any_("a", [reads("in")], {"rows": Output(ROWS + ", other timestamp", "start")}),
            named("b", reads("a", event_time="other")),
        ],
        SOURCE,
        {},
        "the output a.rows is stamped by start: declare event_time='start'",
    ),
    ([named("a", reads("in", id="rid"))], SOURCE, {}, "a: the input in has id='rid', and in has q, start"),
    ([named("a", reads("in", event_time="n"))], SOURCE, {}, "event_time='n', which is of long in in"),
    (ONE, SOURCE, {"a.x": Table()}, r"outputs=\{'a.x': ...\} is no output .*a.rows"),
    (ONE, SOURCE, {"a": Frame(len)}, "a: outputs\\['rows'\\] is a Frame"),  # type: ignore[arg-type]
    (ONE, SOURCE, {"a": Folder("n int")}, "has a schema= beside that"),
    (TWO, SOURCE, {"a": Folder(path="x/"), "b": Folder(path="./y/../x")}, "and a.rows stand in one place"),
    (TWO, SOURCE, {"a": Folder(path="x"), "b": Folder(path="x/y")}, "one place, parquet x/y; .* none below another"),
    (TWO, SOURCE, {"a": Topic("t", "k:1,k:2", 2), "b": Topic("t", "k:2, k:1", 2)}, "stand in one place, topic t"),
    (ONE, SOURCE, {"a": Folder(path="in/a")}, "a: the input in reads parquet in, where a.rows is written"),
    ([Any_("a", [reads("in")], {"..": "n int"})], SOURCE, {}, "is also the name of a folder"),
    ([Any_("a", [reads("in")], {"rows": "n"})], SOURCE, {}, "does not say of what type n is: write 'n' as NAME TYPE"),
    (
        [Any_("a", [reads("in")], {"rows": Output("n int, t timestamp", "ts")})],
        SOURCE,
        {},
        "is stamped by ts, and its timestamps are t: name one of them as event_time=",
    ),
]


@pytest.mark.parametrize(("computations", "sources", "outputs", "text"), WRONG)
def test_what_cannot_run_is_refused_by_name(
    computations: Sequence[Computation], sources: Mapping[str, Any], outputs: Mapping[str, Any], text: str
) -> None:
    with pytest.raises(PipelineError, match="the pipeline p cannot run:") as refused:
        Pipeline("p", computations, sources=sources, outputs=outputs)
    assert [problem for problem in refused.value.problems if re.search(text, problem)], refused.value


def test_an_expression_as_key_and_a_table_without_columns_are_sparks_to_check() -> None:
    Pipeline("p", [named("a", reads("in", key="upper(z)"))], sources=SOURCE)
    Pipeline("p", [named("a", reads("in", key="z"))], sources={"in": Table("in")})


def test_columns_are_found_without_spark() -> None:
    assert columns_of(
        "a INT, `b,c``d` Map<string, struct<x:int,y:int>> NOT NULL, e: decimal(3, 1) COMMENT 'f, g int'"
    ) == {"a": "int", "b,c`d": "map<string, struct<x:int,y:int>>", "e": "decimal(3, 1)"}


def drawn() -> Pipeline:
    first = named("first", reads("in", key=lambda: None), stamp=timedelta(minutes=1))
    middle = named("mi<dle", reads("first"), in_order=True)
    last = named("last", reads("first"), reads("mi<dle"))
    return Pipeline("p", [first, middle, last], sources=SOURCE, outputs={"last": Topic("t", "k:1", 1)})


def test_the_picture_of_the_page_is_that_of_its_module() -> None:
    docs = Path(__file__).parents[2] / "docs"
    declared: dict[str, Any] = {}
    page = (docs / "concepts/computations.md").read_text(encoding="utf-8").partition("\n## Pipelines: ")[2]
    exec(page.split("```python\n")[1].split("```")[0], declared)
    assert (docs / "pictures/zeitgeist.svg").read_text(encoding="utf-8") == draw(declared["pipeline"], "svg")


MODULE = """
from lowwater_pipeline.graph import Folder, Pipeline
from tests.pipeline.test_graph import SOURCE, named, reads

other = pipeline = Pipeline("p", [named("a", reads("in"))], sources=SOURCE)
wrong = 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"declared_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend("")
    return name


@pytest.mark.parametrize("name", ["{}", "{}.py", "{}:other", "{}.py:other"])
def test_the_command_finds_what_a_module_declares(module: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", name.format(module)]) == 0
    assert capsys.readouterr().out.startswith("pipeline p\n\nCOMPUTATION  INPUT")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("{}:wrong", "has no wrong that is a Pipeline: write wrong = Pipeline(...)"),
        ("{}:none", "has no none that is a Pipeline"),
        ("{}_other", "there is no module declared_"),
        ("{}_other.py", "there is no file declared_"),
    ],
)
def test_the_command_names_what_lacks(module: str, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", name.format(module)]) == 2
    assert text in capsys.readouterr().err


def test_the_command_tells_a_pipelines_faults(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"{module}_wrong.py").write_text(MODULE.replace('reads("in")', 'reads("in", id="x")'))
    assert main(["graph", f"{module}_wrong"]) == 2
    assert "a: the input in has id='x'" in capsys.readouterr().err
    (tmp_path / f"{module}_type.py").write_text("raise TypeError('Counts has no process_record')\n")
    for command in (["graph"], ["run", "--root", "r"], ["remove", "a", "--root", "r"]):
        assert main([command[0], f"{module}_type", *command[1:]]) == 2
        assert "Counts has no process_record" in capsys.readouterr().err
    for more, text in ((["--only", "b"], "has no computation b; it has a"), (["--conf", "x"], "write NAME=VALUE")):
        assert main(["run", module, "--root", str(tmp_path), *more]) == 2
        assert text in capsys.readouterr().err


@dataclass
class Query:
    """A query whose state is what the test sets."""

    reported: Any = field(default_factory=lambda: mark(9))
    failure: Exception | None = None
    stops: list[str] = field(default_factory=list[str])
    name: str = ""
    batch: int | None = 1
    low: Any = field(default_factory=lambda: mark(9))
    late_rows: int = 0
    holding: str = ""

    def stage_status(self) -> Query:
        return self

    def await_termination(self, _timeout: float) -> bool:
        if self.failure is not None:
            raise self.failure
        return bool(self.stops.count(self.name))

    def stop(self) -> None:
        self.stops.append(self.name)


class Lines(list[str]):
    """The lines that were printed, and an event that is set when a line begins with a given text."""

    def __init__(self, end: str = "never") -> None:
        super().__init__()
        self.stopping = threading.Event()
        self.end = end

    def tell(self, line: str) -> None:
        self.append(line)
        if line.startswith(self.end):
            self.stopping.set()


CHAIN = Pipeline("p", [named("b", reads("a")), named("a", reads("in")), named("c", reads("in"))], sources=SOURCE)


def running(**queries: Query) -> Running:
    stops: list[str] = []
    for name, query in queries.items():
        query.name, query.stops = name, stops
    return Running(CHAIN, dict(queries))  # type: ignore[arg-type]


def test_one_that_fails_ends_alone_and_the_code_says_so() -> None:
    a = Query(failure=ConnectionResetError("the disk is full\nmore"))
    run, lines = running(a=a, b=Query(), c=Query(late_rows=2, holding="for a file")), Lines("c")
    assert run.wait(tell=lines.tell, stopping=lines.stopping) == 1
    assert lines == [
        "a  batch 1  low 2013-01-09T09:00:00Z  reported 2013-01-09T09:00:00Z",
        "a  has failed: ConnectionResetError: the disk is full",
        "a  is stopped; b, c go on",
        "b  batch 1  low 2013-01-09T09:00:00Z  reported 2013-01-09T09:00:00Z",
        "c  batch 1  low 2013-01-09T09:00:00Z  reported 2013-01-09T09:00:00Z  late 2  holds: for a file",
        "stopping, since it was told to",
    ]
    assert a.stops == ["c", "b"], "each before those that read it"


def test_a_signal_stops_all() -> None:
    run, lines = running(a=Query(), b=Query(), c=Query()), Lines()

    def tell(line: str) -> None:
        lines.append(line)
        if line.startswith("c"):
            signal.raise_signal(signal.SIGINT)

    assert run.wait(tell=tell) == 0
    assert lines[-1] == "stopping, since it was told to"


def test_until_finished_it_does_not_wait_for_what_reads_one_that_has_failed() -> None:
    done = lowwater.Watermark.FINISHED
    run, lines = running(a=Query(reported=done), b=Query(reported=done), c=Query(reported=done)), Lines()
    assert run.wait(until_finished=True, tell=lines.tell, stopping=lines.stopping) == 0
    assert lines[-3:] == ["a  is finished", "c  is finished", "b  is finished"]
    run = running(a=Query(failure=ValueError("x")), b=Query(), c=Query(reported=done))
    assert run.wait(until_finished=True, tell=lines.tell, stopping=lines.stopping) == 1
    run, lines = running(b=Query(), c=Query(reported=done)), Lines("b  batch 1  low 2013-01-09T10")
    run.failed["a"] = ValueError("not the checkpoint's name")
    assert run.wait(until_finished=True, tell=lines.tell, stopping=lines.stopping) == 1
    assert lines[0] == "a  has not started: ValueError: not the checkpoint's name"


WEAK = Weak({"rows": "t"}, {"kafka.bootstrap.servers": "k:1"})


def messages(spark: Any) -> Any:
    """Reads the topic, with the header."""


def test_weak_productions_go_to_their_topic_and_are_read_once() -> None:
    weak = named("a", reads("in", id="n"), productions=WEAK)
    alone = Pipeline("p", [weak], sources=SOURCE)
    assert [(write.output, write.stands.describe(write.path)) for write in alone.writes] == [("rows", "topic t, sent")]
    assert "topic t, sent" in draw(alone, "text")
    reader = named("b", reads("a", id="header", once=True))
    pipeline = Pipeline("p", [weak, reader], sources=SOURCE, outputs={"a": Frame(messages)})
    assert pipeline.upstream_of("b") == ["a"]
    assert pipeline.reads_of("b")[0].place.describe("") == "messages"


@pytest.mark.parametrize(
    ("more", "outputs", "text"),
    [
        ({}, {"a": Frame(messages)}, r"b: the input a reads a\.rows, .* drop copies"),
        ({"id": "header", "once": True}, {}, r"say how it is read, outputs=\{'a\.rows': Frame\(FUNCTION\)\}"),
        ({"id": "n", "once": True}, {"a": Folder(path="x")}, r"is sent to the topic t by .* leave its place out"),
        ({"id": "n", "once": True}, {"b": Topic("t", "k:1", 1)}, r"and a\.rows stand in one place, topic t"),
    ],
)
def test_weak_production_read_twice_is_refused(more: Mapping[str, Any], outputs: Mapping[str, Any], text: str) -> None:
    weak = named("a", reads("in", id="n"), productions=WEAK)
    with pytest.raises(PipelineError, match=text):
        Pipeline("p", [weak, named("b", reads("a", **more))], sources=SOURCE, outputs=outputs)


class Stuck(Query):
    """Cannot be stopped, and ends all."""

    def stage_status(self) -> Query:
        raise KeyboardInterrupt

    def stop(self) -> None:
        msg = "no gateway"
        raise ConnectionError(msg)


def test_one_that_cannot_be_stopped_does_not_keep_the_others() -> None:
    b = Query()
    run = running(a=Query(), b=b, c=Stuck())
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConnectionError, match="no gateway") as raised:
        run.wait(tell=Lines().tell)
    assert raised.value.__notes__ == ["c could not be stopped"]
    assert sorted(b.stops) == ["a", "b"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_pictures_have_each_box_and_each_arrow() -> None:
    mermaid = draw(drawn(), "mermaid")
    assert mermaid.count("-->") == 5
    assert "<b>mi&lt;dle</b>" in mermaid
    assert '"first" -> "mi<dle" [label="rows by start"]' in draw(drawn(), "dot")
    assert set(FORMATS) == {"text", "mermaid", "dot", "svg"}
