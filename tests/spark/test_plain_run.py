"""A plain query may report of some checkpoints, against a real authority. A checkpoint written by hand stands for Spark."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

import lowwater
from lowwater import errors
from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.identity import identity, new_ordinal
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.control import END, ControlSource
from lowwater_spark.sources.files import sink_log
from lowwater_spark.sources.files.sink_log import list_sink
from lowwater_spark.sources.files.source import FileSource
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.opaque import OpaqueSource
from lowwater_spark.track.inputs import UNREAD, Change, Origin, Reading, still_counts
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.plan.operators import Operator
from lowwater_spark.track.plan.shape import check_shape
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.run import plain
from lowwater_spark.track.run.authority import Authority, Registration
from lowwater_spark.track.run.plain import LastReading, Plain, Witness
from lowwater_spark.track.run.run import Run
from lowwater_spark.track.run.stage_run import StageRun
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.spark.support import Upstream, begun, lines, low

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
    """The machine's name of the time since it was started; a power cut begins another."""
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
        """Write as Spark's file sink does in a batch: the files, each of its name's length, then the entry of its log."""
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
        witness: Witness | None = None,
        authority: type[Authority] = Authority,
    ) -> Run:
        first = 1 + max((int(entry.name) for entry in (self.path / "commits").iterdir()), default=-1)
        registration = Registration(
            "out", inputs, (0.99,), 4, identity(self.path), first, new_ordinal(self.path), b"", adopt=False
        )
        checked = Checked([FileSource(str(self.folder / "in"), recursive=False)], retention=retention)
        keyed = Keyed(("key",), "t", 4, injector=False, window=window)
        output = self.folder / "out" if sink else None
        parts = [StageRun(authority(self.client, registration), keyed, self.path)]
        run = Run(self.path, checked, parts, Plain(output, lambda _: self.boot, witness), lambda: self.now)
        self.runs.append(run)
        run.start()
        return run


@pytest.fixture
def checkpoint(tmp_path: Path, lw: lowwater.Client) -> Iterator[Checkpoint]:
    checkpoint_ = Checkpoint(tmp_path, lw)
    yield checkpoint_
    for run in checkpoint_.runs:
        run.close()


def ticks(run: Run, condition: Callable[[], bool]) -> Callable[[], bool]:
    def look() -> bool:
        run.look()
        return condition()

    return look


def test_rule6_the_output_of_a_file_sink_is_durable_before_its_commit_and_the_report(
    checkpoint: Checkpoint, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def synced(path: Path) -> None:
        order.append(f"{path.relative_to(checkpoint.folder)}{'/' if path.is_dir() else ''}")

    class Noting(Authority):
        def prepare(self, *_: object, **__: object) -> str:
            order.append("reported")
            return ""

        def commit(self, *_: object, **__: object) -> str:
            return ""

    upstream.at(13)
    run = checkpoint.start(sink=True, authority=Noting)
    for module in (plain, sink_log):
        for name in ("sync_file", "sync_directory"):
            monkeypatch.setattr(module, name, synced)
    checkpoint.write(0, "year=1/a", "b")
    checkpoint.plan(0, [])
    checkpoint.commit(0)
    run.look()
    checkpoint.write(1, "c", compacts=["year=1/a", "b"])
    checkpoint.plan(1, [])
    checkpoint.commit(1)
    run.look()
    groups: list[list[str]] = [[]]
    for name in order:
        if name.startswith("ck/commits/") and not name.endswith("/"):
            groups += [[name], []]
        elif name == "reported":
            groups[-1] = [name]
            groups.append([])
        elif name.startswith("out/"):
            groups[-1].append(name)
    assert [group for group in groups if group] == [
        ["out/year=1/a", "out/b", "out/year=1/", "out/", "out/_spark_metadata/0", "out/_spark_metadata/", "out/"],
        ["ck/commits/0"],
        ["reported"],
        ["out/c", "out/", "out/_spark_metadata/1.compact", "out/_spark_metadata/", "out/"],
        ["ck/commits/1"],
        ["reported"],
    ]
    order.clear()
    for batch in (2, 3):
        checkpoint.write(batch, f"{batch}")
        checkpoint.plan(batch, [])
        checkpoint.commit(batch)
    run.look()
    assert order.pop() == "reported"
    own = {"ck/offsets/2", "ck/offsets/3", "ck/sources/0/2", "ck/sources/0/3", "ck/commits/3"}
    folders = {"ck/offsets/", "ck/sources/0/", "ck/commits/"}
    assert {name for name in order if name.startswith("ck/")} == own | folders, "and those before not again"


def killed(checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(13)
    run = checkpoint.start(sink=True)
    for batch in range(2):
        checkpoint.write(batch, f"b{batch}")
        checkpoint.plan(batch, [])
        checkpoint.commit(batch)
        if batch == 0:
            eventually(ticks(run, lambda: run.status().batch == 0 and low(lw, "out").micros == micros(13)), "the first")
    run.close()


def test_rule6_a_commit_whose_output_a_power_cut_has_taken_is_not_reported(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    killed(checkpoint, lw, upstream)
    checkpoint.write(2, "cc")
    checkpoint.plan(2, [])
    checkpoint.commit(2)
    upstream.at(14)
    checkpoint.boot = "second"
    lost = checkpoint.folder / "out/cc"
    lost.write_text("")
    with pytest.raises(CheckpointMismatch, match=r"batch 2 is not whole: .*/cc has 0 bytes, and the sink's log says 2"):
        checkpoint.start(sink=True)
    lost.unlink()
    with pytest.raises(CheckpointMismatch, match="/cc is missing"):
        checkpoint.start(sink=True)
    (checkpoint.folder / "out/_spark_metadata/2").unlink()
    with pytest.raises(CheckpointMismatch, match=r"log lacks .*/_spark_metadata/2"):
        checkpoint.start(sink=True)
    assert low(lw, "out").micros == micros(13)
    # What was durable may be cleaned up, as long as it was found whole once.
    checkpoint.write(2, "cc")
    (checkpoint.folder / "out/b0").unlink()
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "the batches are whole")


def test_rule6_a_damaged_entry_of_a_sinks_log_is_no_batch_without_files(
    checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream
) -> None:
    killed(checkpoint, lw, upstream)
    out, log = checkpoint.folder / "out", checkpoint.folder / "out/_spark_metadata"
    whole = (log / "1").read_bytes()
    for damaged in (b"", b"v1\n{", b"v1\n{}", b"v1\n[]\n", b"v1\n\xff", b"v"):
        (log / "1").write_bytes(damaged)
        with pytest.raises(OSError, match=str(log / "1")):
            list_sink(str(out))
        with pytest.raises((CheckpointMismatch, OSError), match=str(log / "1")):
            checkpoint.start(sink=True)
    (log / "1").write_bytes(whole)
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
    assert len(list_sink(str(out))) == 1, "a reader knows nothing of power cuts"
    assert low(lw, "out").micros == micros(13)
    sums.write_bytes(crc(b"v1"))
    upstream.at(14)
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(14)), "it had no files")


def crc(content: bytes, chunk: int = 512) -> bytes:
    """Return what Hadoop writes beside a file of this content."""
    sums = [zlib.crc32(content[at : at + chunk]).to_bytes(4, "big") for at in range(0, len(content), chunk)]
    return b"crc\0" + chunk.to_bytes(4, "big") + b"".join(sums)


@dataclass
class Another:
    """A witness of a checkpoint that becomes another query's when a batch of it was confirmed."""

    after: int
    exchanged: bool = False

    def attend(self) -> None:
        if self.exchanged:
            raise CheckpointMismatch("of another query by now")

    def confirm(self, plan: Plan | None) -> None:
        self.attend()
        self.exchanged = plan is not None and plan.batch == self.after


def test_rule1_another_checkpoint_stops_it(checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(13)
    run = checkpoint.start(witness=Another(1))
    checkpoint.plan(0, [])
    checkpoint.commit(0)
    eventually(ticks(run, lambda: low(lw, "out").micros == micros(13)), "the first batch")
    file = checkpoint.put("1.json")
    upstream.at(14)
    eventually(ticks(run, lambda: run.status().waiting_for != ()), "the file is listed, and its batch is awaited")
    checkpoint.plan(1, [file])
    checkpoint.commit(1)
    with pytest.raises(CheckpointMismatch, match="another query"):
        eventually(ticks(run, lambda: False), "never")
    assert low(lw, "out").micros == micros(13)


def window(kind: str = "aggregation") -> Operator:
    return Operator(kind, ("t",), None, driven=False)


FILES = [FileSource("/in", recursive=False)]
PLAIN = Checked(FILES)
HELD = Checked(FILES, [window()], retention=HOUR)


def test_a_checkpoint_keeps_what_its_query_holds(tmp_path: Path) -> None:
    check_shape(tmp_path, "function", PLAIN)
    check_shape(tmp_path, "plain", HELD)  # nothing has been planned yet
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").touch()
    check_shape(tmp_path, "plain", HELD)
    check_shape(tmp_path, "plain", Checked(FILES, [window("deduplication"), window()], retention=HOUR))
    text = "begun with start.*, aggregation in Spark's state and a retention of 1:00:00, .* from a new checkpoint"
    for kind, other in (
        ("function", HELD),
        ("plain", PLAIN),
        ("plain", Checked(FILES, [window()], retention=HOUR / 2)),
        ("plain", Checked(FILES, [window()], retention=2 * HOUR, declared=False)),
        ("plain", Checked(FILES, [window("join of two streams")], retention=HOUR)),
        ("plain", Checked([ControlSource("/told"), *FILES], [window()], retention=HOUR)),
        ("plain", Checked([OpaqueSource("tape")], [window()], retention=HOUR)),
    ):
        with pytest.raises(CheckpointMismatch, match=text):
            check_shape(tmp_path, kind, other)  # type: ignore[arg-type]
    # What Spark holds comes out within a larger one, too. From then on it is the one of the checkpoint.
    check_shape(tmp_path, "plain", Checked(FILES, [window()], retention=2 * HOUR))
    with pytest.raises(CheckpointMismatch, match=r"larger retention, .*: declare retention=timedelta\(seconds=7200\)"):
        check_shape(tmp_path, "plain", HELD)
    (tmp_path / "lowwater/query.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(CheckpointMismatch, match="of format 3"):
        check_shape(tmp_path, "plain", HELD)


READING = Reading(14, {990_000: 15}, 3, (1, 7))


def test_the_last_reading_is_kept_whole_and_tied_to_its_batch(tmp_path: Path) -> None:
    last = LastReading(begun(tmp_path))
    assert last.load(NOTHING) == UNREAD
    last.save(5, READING)
    assert last.saved == READING
    assert [LastReading(begun(tmp_path)).load(batch) for batch in (5, 9)] == [READING, READING]
    assert LastReading(begun(tmp_path)).load(4) == UNREAD, "the claim says whether the run is behind"
    with pytest.raises(CheckpointMismatch, match="of batch 5, but the commit log ends at batch 3"):
        LastReading(begun(tmp_path)).load(3)


def test_a_kept_reading_counts_for_the_same_incarnations_of_the_same_inputs() -> None:
    def registered(version: int, *incarnations: int) -> lowwater.Computation:
        skew = timedelta(days=1)
        return lowwater.Computation("stage", ("a", "b"), (0.99,), "xxhash64", skew, 1, version, incarnations)

    assert still_counts(READING, 4, registered(3, 1, 7)) == READING
    assert still_counts(READING, 4, registered(4, 1, 7)) == UNREAD, "nothing was read of the new inputs"
    assert still_counts(UNREAD, 4, registered(3, 2, 7)) == UNREAD
    with pytest.raises(errors.IncarnationChanged, match="since batch 4"):
        still_counts(READING, 4, registered(3, 1, 8))


def test_one_rule_says_what_has_become_of_the_inputs() -> None:
    now = Origin(3, (1, 7))
    states = {
        before: now.since(before)
        for before in (now, Origin(3, (1, 0)), Origin(3, (1, 6)), Origin(3, (1,)), Origin(2, (1, 7)), UNREAD.origin)
    }
    none, reset, inputs = Change.NONE, Change.RESET, Change.INPUTS
    assert list(states.values()) == [none, none, reset, reset, inputs, inputs]
    assert Origin(3, (1, 0)).since(now) is reset, "an input that is gone is not the same one"


def plan(watermark: int) -> Plan:
    return Plan(0, lines(0), "", watermark)


def test_what_spark_holds_is_bounded_by_the_watermark_of_the_committed_batch() -> None:
    files = FileSource("/in", recursive=False)
    holds = Checked([files], retention=timedelta(seconds=2))
    driven = Checked([ControlSource("/told"), files], retention=timedelta(seconds=2))
    nothing = Checked([files])
    assert [nothing.spark_bound(reading) for reading in (None, plan(0), plan(5_000))] == [MAX] * 3
    assert [holds.spark_bound(reading) for reading in (None, plan(0), plan(5_000))] == [MIN, MIN, 3_000_000]
    ends = [driven.spark_bound(plan(end)) for end in (END, 221_845_392_000_000)]
    assert ends == [MAX, MAX], "the second one stood for MAX in checkpoints of earlier versions"
    assert [driven.spark_bound(reading) for reading in (None, plan(5_000))] == [MIN, 3_000_000]
    assert holds.spark_bound(plan(END)) < MAX, "rows may be dated so; only a control says that nothing comes any more"


def test_rule6_a_batch_before_is_compared_too(checkpoint: Checkpoint, lw: lowwater.Client, upstream: Upstream) -> None:
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
    checkpoint.boot = "second"
    written = checkpoint.folder / "out/ccc"
    written.write_text("")
    upstream.at(14)
    run = checkpoint.start(sink=True)
    eventually(ticks(run, lambda: run.status().batch == 1), "the second batch is whole")
    checkpoint.commit(2)
    with pytest.raises(CheckpointMismatch, match=r"2 is not whole: .*/ccc has 0 bytes, and the sink's log says 3"):
        run.look()
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
