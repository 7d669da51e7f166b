"""What a plain query may report, and of which checkpoints, against a real authority. A checkpoint written by hand stands for Spark."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

import lowwater
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.durable import boot_of
from lowwater_spark.checkpoint.identity import identity, new_ordinal
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources import roots, sink_log
from lowwater_spark.sources.control import ControlSource
from lowwater_spark.sources.files import FileSource
from lowwater_spark.sources.sink_log import check_sink, list_sink
from lowwater_spark.track import plain
from lowwater_spark.track.authority import Authority, Registration
from lowwater_spark.track.batch import Keyed
from lowwater_spark.track.bounds import Stamp, Truncated, Window
from lowwater_spark.track.operators import Operator
from lowwater_spark.track.part import Part
from lowwater_spark.track.plain import Plain
from lowwater_spark.track.plan import Checked
from lowwater_spark.track.progress import RELIST
from lowwater_spark.track.run import Run
from lowwater_spark.track.shape import check_shape
from lowwater_spark.track.status import in_short
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.spark.support import Upstream, as_before, low

HOUR = timedelta(hours=1)


def micros(hour: int, minute: int = 0) -> int:
    return lowwater.Watermark.of(at(hour, minute)).micros


@dataclass
class Checkpoint:
    """A checkpoint of a query over one directory, ``folder/in``, as Spark writes it, and what runs over it."""

    folder: Path
    client: lowwater.Client
    now: float = 0.0
    boot: str = "first"
    """What the machine calls the time since it was started; a power cut begins another."""
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.folder / "ck"
        for name in ("ck/offsets", "ck/commits", "ck/sources/0", "in"):
            (self.folder / name).mkdir(parents=True)

    def put(self, name: str) -> Path:
        path = self.folder / "in" / name
        path.write_text("{}")
        return path

    def plan(self, batch: int, files: Sequence[Path], watermark: int = 0) -> None:
        times = {path: path.stat().st_mtime_ns // 1_000_000 for path in files}
        lines = [json.dumps({"path": f"file://{path}", "timestamp": times[path], "batchId": batch}) for path in files]
        (self.path / f"sources/0/{batch}").write_text("\n".join(["v1", *lines]))
        settings = {"batchWatermarkMs": watermark // 1000, "batchTimestampMs": 0, "conf": {}}
        lines = ["v1", json.dumps(settings), json.dumps({"logOffset": batch})]
        (self.path / f"offsets/{batch}").write_text("\n".join(lines))

    def commit(self, batch: int) -> None:
        (self.path / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}')

    def write(self, batch: int, *names: str, compacts: Sequence[str] = ()) -> None:
        """What Spark's file sink does in a batch: the files, each of its name's length, then the entry of its log."""
        out = self.folder / "out"
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(name)
        (out / "_spark_metadata").mkdir(parents=True, exist_ok=True)
        fields = {"isDir": False, "modificationTime": 1, "action": "add"}
        lines = [json.dumps({"path": f"file://{out / n}", "size": len(n), **fields}) for n in (*compacts, *names)]
        entry = f"{batch}.compact" if compacts else f"{batch}"
        (out / "_spark_metadata" / entry).write_text("\n".join(["v1", *lines]))

    def start(
        self,
        retention: timedelta | None = None,
        window: timedelta | None = None,
        *,
        inputs: Sequence[str] = ("source",),
        sink: bool = False,
    ) -> Run:
        first = 1 + max((int(entry.name) for entry in (self.path / "commits").iterdir()), default=-1)
        registration = Registration(
            "out", inputs, (0.99,), 4, identity(self.path), first, new_ordinal(self.path), b"", adopt=False
        )
        checked = Checked([FileSource(str(self.folder / "in"), recursive=False)], retention=retention)
        keyed = Keyed(("key",), "t", 4, injector=False, window=window)
        authority = Authority(self.client, registration)
        output = self.folder / "out" if sink else None
        parts = [Part(authority, keyed, self.path)]
        run = Run(self.path, checked, parts, Plain(output, lambda _: self.boot), lambda: self.now)
        self.runs.append(run)
        run.start()
        return run


@pytest.fixture
def checkpoint(tmp_path: Path, lw: lowwater.Client) -> Iterator[Checkpoint]:
    made = Checkpoint(tmp_path, lw)
    yield made
    for run in made.runs:
        run.close()


def ticks(run: Run, condition: Callable[[], bool]) -> Callable[[], bool]:
    def look() -> bool:
        run.tick()
        return condition()

    return look


def test_head_of_w_a_file_removed_while_its_batch_runs_is_waited_for(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Tasks have read it, and its rows come with the commit: a listing without it says nothing of them."""
    file = checkpoint.put("a.json")
    run = checkpoint.start()
    upstream.at(13)
    eventually(ticks(run, lambda: run.status().waiting_for == (str(file),)), "the reading")
    first = run.authority.read()
    assert first is not None
    checkpoint.plan(0, [file])
    file.unlink()
    checkpoint.now += RELIST
    run.tick()
    assert run.status().reported == lowwater.Watermark(MIN)
    upstream.at(14)  # and one that is listed for when the file is gone already
    eventually(
        ticks(run, lambda: run.authority.read() == replace(first, low=micros(14), heuristics={990_000: micros(14)})),
        "the second reading",
    )
    run.tick()
    assert run.status().reported == lowwater.Watermark(MIN)
    checkpoint.commit(0)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "the commit")


def test_an_input_that_is_registered_while_a_batch_runs_ends_no_query(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Queries start in any order. An input that is not registered yet is unknown: a batch counts on nothing of it, and it is not reset when it comes."""
    file = checkpoint.put("a.json")
    run = checkpoint.start(inputs=("source", "later"))
    upstream.at(13)
    later = Upstream(lw, "later")
    checkpoint.plan(0, [file])
    checkpoint.commit(0)
    run.tick()
    assert not run.progress.holding
    later.at(12)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(12)), "both inputs are known")


def test_a_look_registers_a_stage_once_more_whose_input_may_go_further(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values are ahead of the clock, and refused at first. The call is made without the run's lock, for which a batch may wait."""
    widen, locked = Authority.widen, set[bool]()

    def watched(self: Authority) -> None:
        locked.add(run.lock._is_owned())  # type: ignore[attr-defined]
        widen(self)

    run = checkpoint.start()
    monkeypatch.setattr(Authority, "widen", watched)
    lw.register("source", max_skew=timedelta(days=400))
    checkpoint.plan(0, [checkpoint.put("a.json")])
    checkpoint.commit(0)
    ahead = lowwater.Watermark.of(datetime.now(UTC) + timedelta(days=10))
    upstream.lease.advance(None, oldest=None, frontier=ahead)
    eventually(ticks(run, lambda: low(lw, "out") == ahead), "it goes as far as its input")
    assert locked == {False}


def test_head_of_w_a_source_file_written_anew_holds_until_it_has_another_name(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Spark takes a path once: what stands in it since is read by no batch."""
    daily, other = checkpoint.put("daily.json"), checkpoint.put("other.json")
    checkpoint.plan(0, [daily, other])
    checkpoint.commit(0)
    upstream.at(13)
    run = checkpoint.start()
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(13)), "what is read")
    modified = daily.stat().st_mtime_ns
    os.utime(daily, ns=(modified, modified + 1_000_000))
    upstream.at(16)
    said = f"{daily} (written again after it was read: give it another name)"
    eventually(ticks(run, lambda: run.status().waiting_for == (said,)), "the file is named")
    assert low(lw, "out").micros == micros(13)
    eventually(
        lambda: f": it waits for {in_short([said])}, and by " in lw.why("out").sentence,
        "the authority names it as well",
    )
    again = daily.rename(daily.with_name("daily-2.json"))
    checkpoint.now += RELIST
    run.tick()
    assert run.status().waiting_for == (str(again),)
    checkpoint.plan(1, [again])
    checkpoint.commit(1)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(16)), "it was read under its new name")
    eventually(ticks(run, lambda: lw.ranges("out").ranges[0].waiting_for == ""), "and nothing is waited for")


def test_head_of_w_a_source_directory_that_is_another_one_holds(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Where a volume is not mounted, there is an empty directory. What was read is not forgotten meanwhile."""
    run, volume = unmounted(checkpoint, lw, upstream)
    root = checkpoint.folder / "in"
    said = f"{root} is not the directory that was read before, and none of its newest files is in it: mount its volume."
    [why] = run.status().waiting_for
    assert why.startswith(f"sources that can be listed: {said}"), "the authority says that it waits for that"
    stray = root / "stray.json"
    stray.write_text("{}")  # somebody writes below the mount point
    run.tick()
    assert (run.status().waiting_for, low(lw, "out").micros) == ((why,), micros(13))
    # The next run begins before the volume is there. It still knows the directory.
    run.close()
    run = checkpoint.start()
    eventually(ticks(run, lambda: run.status().waiting_for == (why,)), "it holds as well")
    assert low(lw, "out").micros == micros(13)
    stray.unlink()
    root.rmdir()
    run.tick()
    assert str(root) in run.status().waiting_for[0], "nor is anything known when nothing is there"
    volume.rename(root)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(16)), "the volume is mounted again")
    assert run.status().waiting_for == ()


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when any directory is taken for the source")
def test_head_of_w_breaks_when_any_directory_is_taken_for_the_source(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "_is_same", lambda *_: True)
    unmounted(checkpoint, lw, upstream)


def unmounted(checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream) -> tuple[Run, Path]:
    """A file is read, and then there is an empty directory where it was. Returns a run that has looked at that, and where the directory is."""
    first = checkpoint.put("a.json")
    checkpoint.plan(0, [first])
    checkpoint.commit(0)
    upstream.at(13)
    run = checkpoint.start()
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(13)), "what is read")
    volume = (checkpoint.folder / "in").rename(checkpoint.folder / "volume")
    (checkpoint.folder / "in").mkdir()
    upstream.at(16)
    eventually(
        ticks(run, lambda: run.status().waiting_for != () or low(lw, "out").micros > micros(13)), "it holds, or leads"
    )
    assert low(lw, "out").micros == micros(13)
    return run, volume


def test_a_source_directory_is_known_by_its_inode_or_by_a_file_that_was_read(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """One that was emptied is still the same. So is a copy, or what another mount numbers otherwise, with a file that was read."""
    root = checkpoint.folder / "in"
    files = [checkpoint.put(name) for name in ("a.json", "b.json")]
    checkpoint.plan(0, files)
    checkpoint.commit(0)
    upstream.at(13)
    run = checkpoint.start()
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(13)), "what is read")
    aside = root.rename(checkpoint.folder / "aside")
    root.mkdir()
    shutil.copy2(aside / "b.json", root)
    upstream.at(14)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "the copy has a file that was read")
    (root / "b.json").unlink()
    run.close()
    run = checkpoint.start()
    upstream.at(15)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(15)), "somebody has cleaned up")
    root.rename(checkpoint.folder / "aside-too")
    root.mkdir()
    upstream.at(16)
    replaced = checkpoint.path / "lowwater/replaced"
    eventually(ticks(run, lambda: f"touch {replaced}" in str(run.status().waiting_for)), "the way out is named")
    assert low(lw, "out").micros == micros(15)
    replaced.touch()
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(16)), "and helps without a restart")
    assert run.status().waiting_for == ()
    for version in (checkpoint.path / "lowwater/manifest").iterdir():
        version.write_text(json.dumps({"format": 9}))
    with pytest.raises(CheckpointMismatch, match="of format 9"):
        checkpoint.start()


def test_a_checkpoint_of_a_release_without_the_manifest_goes_on_where_it_stood(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """What it has kept is read once: how far the output is durable, the last reading, and by what the directory is known again."""
    root = checkpoint.folder / "in"
    checkpoint.plan(0, [checkpoint.put("a.json")])
    checkpoint.write(0, "a")
    checkpoint.commit(0)
    upstream.at(13)
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(13)), "what is read")
    run.close()
    kept = {section: run.manifest[section] for section in ("reading", "roots", "sink")}
    assert None not in kept.values()
    as_before(checkpoint.path)
    root.rename(checkpoint.folder / "volume")
    root.mkdir()
    run = checkpoint.start(sink=True)
    assert {section: run.manifest[section] for section in kept} == kept
    upstream.at(14)
    eventually(ticks(run, lambda: f"{root} is not the directory" in str(run.status().waiting_for)), "it is known again")
    assert low(lw, "out").micros == micros(13)
    root.rmdir()
    (checkpoint.folder / "volume").rename(root)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "it goes on")


def test_no_share_of_what_spark_holds_is_beyond_its_watermark(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    file = checkpoint.put("a.json")
    checkpoint.plan(0, [file], micros(14, 10))
    checkpoint.commit(0)
    upstream.at(14, 50)
    run = checkpoint.start(retention=6 * HOUR)
    eventually(ticks(run, lambda: run.progress.reading.low == micros(14, 50)), "the reading")
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(8, 10)), "the report")
    assert [mark.micros for mark in lw.get("out")["out"].heuristic.values()] == [micros(8, 10)]
    checkpoint.plan(1, [], micros(14, 20))
    checkpoint.commit(1)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(8, 20)), "the next batch")
    assert [mark.micros for mark in lw.get("out")["out"].heuristic.values()] == [micros(8, 20)]


def test_what_is_reported_is_durable_first(
    checkpoint: Checkpoint, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take back a batch that a report stands on, nor one before it that the clock did not look at."""
    synced: list[str] = []
    monkeypatch.setattr(plain, "sync_file", lambda path: synced.append(str(path.relative_to(checkpoint.path))))
    monkeypatch.setattr(plain, "sync_directory", lambda path: synced.append(f"{path.relative_to(checkpoint.path)}/"))
    upstream.at(13)
    run = checkpoint.start()
    assert synced == []
    for batch in range(2):
        checkpoint.plan(batch, [checkpoint.put(f"{batch}.json")])
        checkpoint.commit(batch)
    told: list[str] = []
    prepare = Authority.prepare

    def watched(authority: Authority, batch: int, *arguments: object, **named: object) -> str:
        told.extend(synced)
        return prepare(authority, batch, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Authority, "prepare", watched)
    run.tick()
    folders = {"commits/", "offsets/", "sources/0/"}
    assert set(told) == {"commits/1", "offsets/0", "offsets/1", "sources/0/0", "sources/0/1"} | folders
    run.tick()
    assert len(synced) == len(told), "once"


def test_rule6_the_output_of_a_file_sink_is_durable_before_its_commit_and_the_report(
    checkpoint: Checkpoint, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark syncs nothing: first the files, then the directories that name them, the sink's log, and only then what says that they are there."""
    assert order_of_syncs(checkpoint, upstream, monkeypatch, sink=True) == [
        ["out/year=1/a", "out/b", "out/year=1/", "out/", "out/_spark_metadata/0", "out/_spark_metadata/", "out/"],
        ["ck/commits/0"],
        ["reported"],
        ["out/c", "out/", "out/_spark_metadata/1.compact", "out/_spark_metadata/", "out/"],
        ["ck/commits/1"],
        ["reported"],
    ]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when rule 6 is switched off")
def test_rule6_breaks_when_the_output_is_not_synced(
    checkpoint: Checkpoint, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "out/b" in order_of_syncs(checkpoint, upstream, monkeypatch, sink=False)[0]


def order_of_syncs(
    checkpoint: Checkpoint, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, *, sink: bool
) -> list[list[str]]:
    """What is synced of the output, and when commits are synced and reported; cut where one follows another."""
    order: list[str] = []

    def synced(path: Path) -> None:
        order.append(f"{path.relative_to(checkpoint.folder)}{'/' if path.is_dir() else ''}")

    def reported(*_: object, **__: object) -> str:
        order.append("reported")
        return ""

    monkeypatch.setattr(Authority, "prepare", reported)
    monkeypatch.setattr(Authority, "commit", lambda *_: "")
    upstream.at(13)
    run = checkpoint.start(sink=sink)
    for module in (plain, sink_log):
        for name in ("sync_file", "sync_directory"):
            monkeypatch.setattr(module, name, synced)
    checkpoint.write(0, "year=1/a", "b")
    checkpoint.plan(0, [])
    checkpoint.commit(0)
    run.tick()
    checkpoint.write(1, "c", compacts=["year=1/a", "b"])
    checkpoint.plan(1, [])
    checkpoint.commit(1)
    run.tick()
    found: list[list[str]] = [[]]
    for name in order:
        if name.startswith("ck/commits/") and not name.endswith("/"):
            found += [[name], []]
        elif name == "reported":
            found[-1] = [name]
            found.append([])
        elif name.startswith("out/"):
            found[-1].append(name)
    return [each for each in found if each]


def test_rule6_a_commit_whose_output_a_power_cut_has_taken_is_not_reported(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    upstream.at(13)
    run = checkpoint.start(sink=True)
    checkpoint.write(0, "a")
    checkpoint.plan(0, [])
    checkpoint.commit(0)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(13)), "the first batch")
    run.close()
    # The next batches are committed, and the machine loses power before anybody has looked.
    for batch, name in ((1, "bb"), (2, "cc")):
        checkpoint.write(batch, name)
        checkpoint.plan(batch, [])
        checkpoint.commit(batch)
    upstream.at(14)
    checkpoint.boot = "second"
    lost = checkpoint.folder / "out/cc"
    lost.write_text("")
    with pytest.raises(
        CheckpointMismatch, match=r"up to batch 2 is not whole: .*/cc has 0 bytes, and the sink's log says 2"
    ):
        checkpoint.start(sink=True)
    lost.unlink()
    with pytest.raises(CheckpointMismatch, match="/cc is not there"):
        checkpoint.start(sink=True)
    (checkpoint.folder / "out/_spark_metadata/2").unlink()
    with pytest.raises(CheckpointMismatch, match=r"log lacks .*/_spark_metadata/2"):
        checkpoint.start(sink=True)
    assert low(lw, "out").micros == micros(13)
    # What was durable may be cleaned up, as long as it was found whole once.
    checkpoint.write(2, "cc")
    (checkpoint.folder / "out/a").unlink()
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "the batches are whole")


def test_rule6_a_batch_that_was_written_before_the_run_is_compared_when_it_is_committed(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Spark replays its plan, finds it in the sink's log, and writes nothing: what a power cut has taken stays away."""
    three_batches_and_a_power_cut(checkpoint, lw, upstream)


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="breaks when rule 6 is switched off")
def test_rule6_breaks_when_nobody_knows_what_was_written_before_the_run(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_log, "_newest", lambda _: 1)
    three_batches_and_a_power_cut(checkpoint, lw, upstream)


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="breaks when rule 6 is switched off")
def test_rule6_breaks_when_a_power_cut_is_taken_for_none(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    three_batches_and_a_power_cut(checkpoint, lw, upstream, boot=checkpoint.boot)


def three_batches_and_a_power_cut(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream, boot: str = "second"
) -> None:
    """The first two are committed, of which the clock has seen one; the third is in the sink's log, and its file is empty."""
    upstream.at(13)
    run = checkpoint.start(sink=True)
    for batch, name in enumerate(("a", "bb", "ccc")):
        checkpoint.write(batch, name)
        checkpoint.plan(batch, [])
        if batch == 0:
            checkpoint.commit(batch)
            eventually(ticks(run, lambda: low(lw, "out").micros == micros(13)), "the first batch")
    run.close()
    checkpoint.commit(1)
    checkpoint.boot = boot
    written = checkpoint.folder / "out/ccc"
    written.write_text("")
    upstream.at(14)
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: run.status().batch == 1), "the second batch is whole")
    checkpoint.commit(2)
    with pytest.raises(
        CheckpointMismatch, match=r"up to batch 2 is not whole: .*/ccc has 0 bytes, and the sink's log says 3"
    ):
        run.tick()
    run.close()
    # What this run has seen Spark write may be gone before the clock looks: somebody cleans up.
    written.write_text("ccc")
    run = checkpoint.start(sink=True)
    checkpoint.write(3, "d")
    checkpoint.plan(3, [])
    checkpoint.commit(3)
    (checkpoint.folder / "out/d").unlink()
    upstream.at(15)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(15)), "it goes on")


def test_the_output_of_a_checkpoint_that_an_older_release_has_begun_is_synced_whole(
    checkpoint: Checkpoint, upstream: Upstream
) -> None:
    """Of what was cleaned up since nobody can tell."""
    checkpoint.write(0, "a")
    checkpoint.write(1, "b")
    for batch in (0, 1):
        checkpoint.plan(batch, [])
        checkpoint.commit(batch)
    (checkpoint.folder / "out/a").unlink()
    checkpoint.start(sink=True)
    assert Manifest(checkpoint.path)["sink"] == {"batch": 1, "boot": checkpoint.boot}


def test_what_others_have_cleaned_up_is_no_power_cut_as_long_as_the_machine_runs(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Killed between Spark's commit and the sync of its output: all of it is in the memory of the system that has not stopped."""
    upstream.at(13)
    # Before it has looked for the first time, and later.
    checkpoint.start(sink=True).close()
    checkpoint.write(0, "b0")
    checkpoint.plan(0, [])
    checkpoint.commit(0)
    (checkpoint.folder / "out/b0").unlink()
    killed(checkpoint, lw, 13, first=1)
    (checkpoint.folder / "out/b2").unlink()
    upstream.at(14)
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "nothing was lost")
    run.close()
    # Started in between on another machine, which may have written as well: the first one's memory says nothing of that.
    killed(checkpoint, lw, 14, first=3)
    (checkpoint.folder / "out/b4").unlink()
    for boot in ("other", "first", ""):
        checkpoint.boot = boot
        with pytest.raises(CheckpointMismatch, match="/b4 is not there"):
            checkpoint.start(sink=True)
    checkpoint.write(4, "b4")
    upstream.at(15)
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(15)), "it is whole")
    # Where nothing is known of the file system, a power cut is always possible.
    run.close()
    killed(checkpoint, lw, 15, first=5)
    (checkpoint.folder / "out/b6").unlink()
    with pytest.raises(CheckpointMismatch, match="/b6 is not there"):
        checkpoint.start(sink=True)


def killed(checkpoint: Checkpoint, lw: lowwater.Client, hour: int, first: int = 0) -> None:
    """Two batches: the clock has looked at the one, and not at the other."""
    run = checkpoint.start(sink=True)
    for batch in (first, first + 1):
        checkpoint.write(batch, f"b{batch}")
        checkpoint.plan(batch, [])
        checkpoint.commit(batch)
        if batch == first:
            eventually(
                ticks(run, lambda: run.status().batch == first and low(lw, "out").micros == micros(hour)), "the first"
            )
    run.close()


def test_a_damaged_entry_of_a_sinks_log_is_named(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    upstream.at(13)
    killed(checkpoint, lw, 13)
    entry = checkpoint.folder / "out/_spark_metadata/1"
    for cut in (b"", b"v1\n{", b"v1\n{}", b"v1\n[]\n", b"v1\n\xff", b"v"):
        entry.write_bytes(cut)
        with pytest.raises(OSError, match=str(entry)):
            list_sink(str(checkpoint.folder / "out"))
        with pytest.raises((CheckpointMismatch, OSError), match=str(entry)):
            checkpoint.start(sink=True)
    assert low(lw, "out").micros == micros(13)


def test_rule6_an_entry_that_was_cut_is_not_taken_for_a_batch_without_files(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Both are a version line and no more. Hadoop's checksum tells them apart; without it a power cut leaves a doubt, and nothing else does."""
    upstream.at(13)
    killed(checkpoint, lw, 13)
    out, log = checkpoint.folder / "out", checkpoint.folder / "out/_spark_metadata"
    whole = (log / "1").read_bytes()
    sums = log / ".1.crc"
    sums.write_bytes(crc(whole))
    assert {Path(file.path).name for file in list_sink(str(out))} == {"b0", "b1"}
    (log / "1").write_bytes(b"v1")
    with pytest.raises(OSError, match=r"/_spark_metadata/1 is damaged, .* the checksum beside it"):
        list_sink(str(out))
    with pytest.raises(CheckpointMismatch, match=r"/_spark_metadata/1 is damaged, .* the checksum beside it"):
        checkpoint.start(sink=True)
    checkpoint.boot = "second"
    for unknown in (b"", b"crc"):
        sums.write_bytes(unknown)
        with pytest.raises(CheckpointMismatch, match=r"/_spark_metadata/1 names no files, and there is no checksum"):
            checkpoint.start(sink=True)
    sums.unlink()
    with pytest.raises(CheckpointMismatch, match=r"/_spark_metadata/1 names no files, and there is no checksum"):
        checkpoint.start(sink=True)
    assert len(list_sink(str(out))) == 1, "a reader knows nothing of power cuts"
    assert low(lw, "out").micros == micros(13)
    sums.write_bytes(crc(b"v1"))
    upstream.at(14)
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "it had no files")


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="breaks when rule 6 is switched off")
def test_rule6_breaks_when_checksums_are_not_compared(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_log, "_checked", lambda *_: True)
    upstream.at(13)
    killed(checkpoint, lw, 13)
    log = checkpoint.folder / "out/_spark_metadata"
    (log / ".1.crc").write_bytes(crc((log / "1").read_bytes()))
    (log / "1").write_bytes(b"v1")
    checkpoint.boot = "second"
    with pytest.raises(CheckpointMismatch):
        checkpoint.start(sink=True)


def crc(content: bytes, chunk: int = 512) -> bytes:
    """What Hadoop writes beside a file of this content."""
    sums = [zlib.crc32(content[at : at + chunk]).to_bytes(4, "big") for at in range(0, len(content), chunk)]
    return b"crc\0" + chunk.to_bytes(4, "big") + b"".join(sums)


def test_a_boot_has_a_name_where_the_machine_writes_the_files_itself(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_of(tmp_path) in ("", f"{boot} {os.major(tmp_path.stat().st_dev)}:{os.minor(tmp_path.stat().st_dev)}")
    assert boot_of(Path("/proc")) == "", "nobody knows what kind of a disk that is"
    assert boot_of(tmp_path / "not/yet") == boot_of(tmp_path)
    assert boot_of(Path("/proc/missing")) == ""


def test_a_sink_has_no_batch_that_its_checkpoint_has_not_planned(checkpoint: Checkpoint) -> None:
    """One that is written and not committed is the checkpoint's own: Spark replays its plan, and finds it written."""
    out, log = checkpoint.folder / "out", CheckpointLog(checkpoint.path)
    check_sink(out, log)
    (out / "_spark_metadata").mkdir(parents=True)
    check_sink(out, log)
    for batch, compacts in enumerate(([], ["0"], [])):
        checkpoint.write(batch, str(batch), compacts=compacts)
        with pytest.raises(CheckpointMismatch, match=f"has batches up to {batch}, and the checkpoint .* has committed"):
            check_sink(out, log)
        checkpoint.plan(batch, [])
        check_sink(out, log)
        checkpoint.commit(batch)
        check_sink(out, log)
    checkpoint.plan(3, [])
    check_sink(out, log)
    checkpoint.write(4, "4")
    checkpoint.plan(4, [])
    with pytest.raises(
        CheckpointMismatch,
        match=r"up to 4, and the checkpoint .*/ck has committed batches up to 2: .* a new output, or start",
    ):
        check_sink(out, log)


def window(kind: str = "aggregation") -> Operator:
    return Operator(kind, ("t",), None, driven=False)


FILES = [FileSource("/in", recursive=False)]
PLAIN = Checked(FILES)
HELD = Checked(FILES, [window()], retention=HOUR)


def begun(path: Path) -> None:
    (path / "offsets").mkdir()
    (path / "offsets/0").touch()


def test_a_checkpoint_keeps_what_its_query_holds(tmp_path: Path) -> None:
    check_shape(tmp_path, "function", PLAIN)
    check_shape(tmp_path, "plain", HELD)  # nothing has been planned yet
    begun(tmp_path)
    check_shape(tmp_path, "plain", HELD)
    check_shape(tmp_path, "plain", Checked(FILES, [window("deduplication"), window()], retention=HOUR))
    said = "begun with start.*, aggregation in Spark's state and a retention of 1:00:00, .* from a new checkpoint"
    for kind, other in (
        ("function", HELD),
        ("plain", PLAIN),
        ("plain", Checked(FILES, [window()], retention=HOUR / 2)),
        ("plain", Checked(FILES, [window()], retention=2 * HOUR, declared=False)),
        ("plain", Checked(FILES, [window("join of two streams")], retention=HOUR)),
        ("plain", Checked([ControlSource("/told"), *FILES], [window()], retention=HOUR)),
    ):
        with pytest.raises(CheckpointMismatch, match=said):
            check_shape(tmp_path, kind, other)  # type: ignore[arg-type]
    # What Spark holds comes out within a larger one, too. From then on it is the one of the checkpoint.
    check_shape(tmp_path, "plain", Checked(FILES, [window()], retention=2 * HOUR))
    with pytest.raises(
        CheckpointMismatch, match=r"within the larger retention, .*: declare retention=timedelta\(seconds=7200\)"
    ):
        check_shape(tmp_path, "plain", HELD)
    (tmp_path / "lowwater/query.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(CheckpointMismatch, match="of format 3"):
        check_shape(tmp_path, "plain", HELD)


def test_a_retention_that_the_plan_says_has_the_millisecond_of_a_join_in_it(tmp_path: Path) -> None:
    """Declared it has not: lowwater adds it. So an hour that is declared is no smaller than the hour and a millisecond of the plan."""
    begun(tmp_path)
    join, millisecond = [window("join of two streams")], timedelta(milliseconds=1)
    for retention, declared in ((HOUR + millisecond, False), (HOUR, True), (HOUR + millisecond, False)):
        check_shape(tmp_path, "plain", Checked(FILES, join, retention=retention, declared=declared))
    for smaller in (HOUR - millisecond, HOUR - timedelta(microseconds=1)):
        with pytest.raises(CheckpointMismatch, match=r"declare retention=timedelta\(seconds=3600\)"):
            check_shape(tmp_path, "plain", Checked(FILES, join, retention=smaller))


def stamped(kind: Literal["start", "end"] = "start", slide: timedelta = HOUR, zone: str = "UTC") -> Stamp:
    day = Truncated("day", zone, int, lambda _after, _until: ())
    return Stamp(kind, Window(HOUR, slide, timedelta()), truncated=(day,))


def test_another_stamp_of_a_checkpoint_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What Spark holds comes out with it. Windows that are cut otherwise are refused: the plan says nothing of those that Spark holds."""

    def check(*stamps: Stamp, declared: bool = False) -> list[str]:
        caplog.clear()
        check_shape(tmp_path, "plain", Checked(FILES, [window()], retention=HOUR, stamps=stamps, declared=declared))
        return [record.getMessage() for record in caplog.records]

    begun(tmp_path)
    assert check(stamped()) == check(stamped()) == []
    [told] = check(stamped("end"))
    assert "stamped by the day in UTC of the start of windows of 1:00:00 every 1:00:00 from 0:00:00, and goes" in told
    [told] = check(stamped("end", zone="America/New_York"))
    assert "goes on with the day in America/New_York of the end of" in told
    with pytest.raises(CheckpointMismatch, match=r"windows that are cut as they were: declare .*seconds=3600\)"):
        check(stamped("end", HOUR / 3))
    assert len(check(stamped("end", HOUR / 3), declared=True)) == 1
    # A release that kept no stamps left a shape without them. From now on they are kept.
    manifest = Manifest(tmp_path)
    shape = dict(manifest["query"])
    del shape["stamps"], shape["declared"]
    manifest.keep("query", shape)
    assert check(stamped(), declared=True) == []
    assert len(check(stamped("end"), declared=True)) == 1


def test_a_checkpoint_of_a_release_that_kept_no_shape_is_known_by_its_files(tmp_path: Path) -> None:
    begun(tmp_path)
    batches = tmp_path / "lowwater/batches"
    batches.mkdir(parents=True)
    (batches / "0").touch()
    with pytest.raises(CheckpointMismatch, match=r"begun with foreach_batch\(\)"):
        check_shape(tmp_path, "plain", PLAIN)
    (tmp_path / "state/0").mkdir(parents=True)
    with pytest.raises(CheckpointMismatch, match="begun with rows in Spark's state"):
        check_shape(tmp_path, "function", PLAIN)
    check_shape(tmp_path, "function", HELD)
    with pytest.raises(CheckpointMismatch, match=r"begun with foreach_batch\(\), 1 source"):
        check_shape(tmp_path, "function", PLAIN)
