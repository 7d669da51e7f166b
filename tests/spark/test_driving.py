"""The clock's side of a driven query over real checkpoint files and a real authority. No Spark is started: the files stand for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater import errors
from lowwater_spark.checkpoint.durable import NotDurable
from lowwater_spark.checkpoint.identity import identity, new_ordinal
from lowwater_spark.drive.watermark import Driving, WatermarkLost
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import NONE, Line, Source
from lowwater_spark.sources.control import Control, ControlSource, Drive, Offset
from lowwater_spark.sources.files import FileSource
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.run.authority import Authority, Registration
from lowwater_spark.track.run.plain import Plain
from lowwater_spark.track.run.run import Run
from lowwater_spark.track.run.stage_run import StageRun
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.process.serving import Serving
from tests.spark.support import Upstream, lines

pytestmark = pytest.mark.timeout(400)

VALUE = int(at(12).timestamp() * 1_000) - 1
"""Milliseconds: what a query without windows may be given while its input stands at twelve."""


class Query:
    """A driven plain query over a folder: one file source per control, all of it empty unless a test writes it. Or over ``source``."""

    def __init__(
        self, folder: Path, client: lowwater.Client, *inputs: str, name: str = "stage", **options: Any
    ) -> None:
        self.checkpoint = folder / name
        for log in ("offsets", "commits", "sources"):
            (self.checkpoint / log).mkdir(parents=True, exist_ok=True)
        self.sources: list[Source] = []
        drives: dict[int, Drive] = {}
        adopt, pinned = options.pop("adopt", False), options.pop("pinned", False)
        frame, source = options.pop("frame", name), options.pop("source", None)
        for i, input_ in enumerate(inputs):
            (folder / f"in{i}").mkdir(exist_ok=True)
            drives[2 * i] = Drive(str(folder / f"{frame}{i}"), (input_,), "t", **options)
            read = FileSource(str(folder / f"in{i}"), False, "json") if source is None else source
            self.sources += [ControlSource(drives[2 * i].directory), read]
        self.controls = [Control(drive.directory) for drive in drives.values()]
        checked = Checked(self.sources)
        registration = Registration(
            "stage",
            inputs,
            (0.99,),
            1,
            identity(self.checkpoint),
            0,
            new_ordinal(self.checkpoint),
            b"",
            adopt,
            estimated=any(drive.share is not None for drive in drives.values()),
        )
        self.authority = Authority(client, registration)
        part = StageRun(self.authority, Keyed(("key",), "t", 1, injector=False), self.checkpoint)
        self.run = Run(self.checkpoint, checked, [part], Plain())
        self.driving = Driving(self.checkpoint, checked, drives, pinned=pinned)

    def plan(self, batch: int, *offsets: Offset, read: Line = NONE) -> None:
        entries = [line for offset in offsets for line in (json.dumps(offset.to_json()), read)]
        (self.checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *entries]))

    def start(self) -> None:
        self.driving.reserve(self.authority.registration, self.run.heads)
        self.run.start()
        self.driving.open(self.authority)

    def tick(self) -> None:
        self.driving.look()
        self.run.look()

    def moves(self, *controls: int) -> bool:
        self.tick()
        return all(self.value(control) > 0 for control in controls)

    def value(self, control: int = 0) -> int:
        message = self.controls[control].last_value()
        assert message is not None
        return message.offset.watermark

    def close(self) -> None:
        self.driving.silence()
        self.driving.close()
        self.run.close()


@pytest.fixture
def queries() -> Iterator[list[Query]]:
    opened: list[Query] = []
    yield opened
    for query in opened:
        query.close()


def test_an_estimated_input_is_not_followed_meanwhile(authority: Serving, tmp_path: Path, queries: list[Query]) -> None:
    """Rule 2: the registration is refused only when the authority is back; nothing may have been given out by then."""
    with lowwater.connect(authority.address, timeout=4) as lw:
        lw.register("guess", heuristics=(), estimated=True)
        lease = lw.worker("guess").claim()
        lease.advance(None, oldest=None, frontier=at(13))
        lease.flush(20)
    authority.kill()
    with lowwater.connect(authority.address, timeout=4) as lw:
        query = Query(tmp_path, lw, "guess")
        queries.append(query)
        query.start()
        assert query.authority.problem
        authority.start()

        def refused() -> bool:
            try:
                query.tick()
            except errors.EstimatedInput:
                return True
            assert query.value() == 0
            return False

        eventually(refused, "the refusal ends the query")
        assert query.value() == 0


def test_limited_rows_come_first(lw: lowwater.Client, upstream: Upstream, tmp_path: Path, queries: list[Query]) -> None:
    query = Query(tmp_path, lw, "source")
    queries.append(query)
    files = [tmp_path / "in0" / name for name in ("a.json", "b.json")]
    for batch, file in enumerate(files):
        file.touch()
        entry = {"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": batch}
        log = query.checkpoint / "sources/1" / str(batch)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"v1\n{json.dumps(entry)}")
    query.plan(0, Offset(), read=lines(0)[0])
    query.start()
    upstream.at(12)
    eventually(query.driving.news, "the input has moved")
    query.tick()
    assert query.value() == 0, "b.json is in no plan"
    # What a plan stands on must be durable before a value counts, or a lost file would be read again, below it (rule 6).
    log = query.checkpoint / "sources/1/0"
    hidden = log.rename(tmp_path / "kept")
    log.symlink_to("/proc/self/status")
    query.plan(1, Offset(), read=lines(1)[0])
    with pytest.raises(NotDurable):
        query.tick()
    assert query.value() == 0
    hidden.replace(log)
    query.tick()
    assert query.value() == VALUE


def test_rule_9_a_reset_ends_it(lw: lowwater.Client, upstream: Upstream, tmp_path: Path, queries: list[Query]) -> None:
    query = Query(tmp_path, lw, "source")
    queries.append(query)
    query.start()
    upstream.at(12)
    eventually(lambda: query.moves(0), "the value of the first incarnation")
    lw.reset("source")
    with pytest.raises(errors.IncarnationChanged, match="source was reset"):
        eventually(query.driving.look, "the end")


@pytest.mark.parametrize("what", ["late rows", "frame", "inputs"])
def test_a_refusal_comes_before_the_claim(
    what: str, lw: lowwater.Client, upstream: Upstream, tmp_path: Path, queries: list[Query]
) -> None:
    """The claim of adopt begins a new incarnation, which a query that never starts must not do."""
    upstream.at(12)
    options = {"share": 0.9, "late": str(tmp_path / "late")} if what == "late rows" else {}
    first = Query(tmp_path, lw, "source", name="one", **options)
    queries.append(first)
    first.start()
    incarnation = lw.get("stage")["stage"].incarnation
    if what == "frame":
        options["frame"] = "one"
    second = Query(tmp_path, lw, "source", name="two", adopt=True, **options)
    if what == "inputs":
        second.plan(0, Offset(5, {"other": 1}))
    queries.append(second)
    error = CheckpointMismatch if what == "inputs" else ValueError
    with pytest.raises(error, match=r"another query|without source"):
        second.start()
    assert lw.get("stage")["stage"].incarnation == incarnation
    second.close()
    assert first.value() >= 0, "the other query keeps what it has"


def test_a_start_from_a_plan_that_does_not_fit_is_refused(
    lw: lowwater.Client, upstream: Upstream, tmp_path: Path, queries: list[Query]
) -> None:
    """Rule 9: a value of an earlier incarnation is not carried on. And Spark's watermark is where the control rows have put it."""
    reset = Query(tmp_path, lw, "source", name="reset")
    queries.append(reset)
    reset.plan(0, Offset(5, {"source": 7}))
    with pytest.raises(errors.IncarnationChanged, match="source was reset"):
        reset.start()
    reset.close()
    lost = Query(tmp_path, lw, "source", name="lost", adopt=True)
    queries.append(lost)
    lost.plan(0, Offset(5, {"source": 1}))
    (lost.checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":5}')
    lost.start()
    for batch, watermark in ((1, 4), (2, 6)):
        lost.plan(batch, Offset(5, {"source": 1}))
        (lost.checkpoint / "commits" / str(batch)).write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')
        with pytest.raises(WatermarkLost, match="as its control rows say"):
            lost.driving.look()


def test_only_an_approximate_frame_follows_a_guess(
    lw: lowwater.Client, tmp_path: Path, queries: list[Query], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("guess", "other"):
        lw.register(name, heuristics=(), estimated=True)
        lease = lw.worker(name).claim()
        lease.advance(None, oldest=None, frontier=at(13))
        lease.flush(20)
    query = Query(tmp_path, lw, "guess", "other", share=0.9)
    queries.append(query)
    exact = dataclasses.replace(query.driving.drives[0], share=None)
    query.driving.drives = {**query.driving.drives, 0: exact}
    query.start()
    eventually(lambda: query.moves(1), "the approximate frame follows")
    assert query.value(0) == 0
    assert "its inputs are estimated: guess" in caplog.text


def test_a_refusal_is_the_stages_own(lw: lowwater.Client, tmp_path: Path) -> None:
    registration = Query(tmp_path, lw, "source").authority.registration
    one, other = (Authority(lw, dataclasses.replace(registration, name=name, inputs=())) for name in ("one", "other"))
    one.register()
    one.claim([0])
    with pytest.raises(errors.UnknownComputation):
        other.claim([0])
    assert "UNKNOWN_COMPUTATION" in other.problem
    assert not one.problem
    one.close()
    other.close()
