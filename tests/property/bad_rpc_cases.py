"""Every way in which a request can be wrong: one change to a valid request, and what the refusal must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from lowwater._pb.lowwater.v1 import tasks_pb2, types_pb2, workers_pb2
from lowwater_authority.core.batches import MAX_PARTS
from lowwater_authority.core.computation import MOST_FRONTIERS
from lowwater_authority.core.topology import slicing
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.watermarks import MAX_HOLDERS, MAX_INTERVAL_MILLIS, MAX_PAGE
from tests.kit.times import HOUR, MAX, MIN
from tests.property.rpc_server import STUBS, Pipeline, opening, report

Change = Callable[[Any, Random, Pipeline], None]
"""Spoils a valid request in place."""


@dataclass(frozen=True)
class Case:
    """A method, how its request is spoilt, and the reason and the field of the refusal."""

    method: str
    change: Change
    reason: str = "INVALID_ARGUMENT"
    field: str = ""


def put(**fields: Any) -> Change:
    """Set fields; a function of (random, pipeline) makes the value."""

    def change(request: Any, random: Random, pipeline: Pipeline) -> None:
        for name, value in fields.items():
            made = value(random, pipeline) if callable(value) else value
            request.ClearField(name)
            if isinstance(made, list):
                getattr(request, name).extend(made)
            elif hasattr(made, "SerializeToString"):
                getattr(request, name).CopyFrom(made)
            elif made is not None:
                setattr(request, name, made)

    return change


def up(*messages: Callable[[Random, Pipeline], workers_pb2.ReportRequest]) -> Change:
    """Put other messages up a report stream."""

    def change(request: Any, random: Random, pipeline: Pipeline) -> None:
        request[:] = [message(random, pipeline) for message in messages]

    return change


def again(request: Any, random: Random, pipeline: Pipeline) -> None:
    """Open a stream whose number, or a later one, was used before."""
    newest = next(pipeline.streams)
    pipeline.server.call("Report", [opening(newest)])
    request[:] = [opening(max(1, newest - random.choice([0, 1]))), report(1, pipeline.group("a", 20))]


def fresh(_: Random, pipeline: Pipeline) -> workers_pb2.ReportRequest:
    """A good first message."""
    return opening(next(pipeline.streams))


def numbered(number: int | Callable[[Random], int]) -> Callable[[Random, Pipeline], workers_pb2.ReportRequest]:
    """A good report under some number."""

    def made(random: Random, pipeline: Pipeline) -> workers_pb2.ReportRequest:
        chosen = number if isinstance(number, int) else number(random)
        return report(chosen, pipeline.group("a", 15, 16, 17))

    return made


def text(least: int, most: int) -> Callable[[Random, Pipeline], str]:
    """A string of so many characters, of one to four bytes."""
    return lambda random, _: random.choice("xé水🌊") * random.randint(least, most)


def keys(*lengths: int) -> Callable[[Random, Pipeline], list[bytes]]:
    """Ascending bounds with keys of some lengths."""
    return lambda _, __: [b"", *(bytes([64 + i]) * length for i, length in enumerate(lengths)), b""]


def tasks(*names: tuple[int, int, int]) -> list[workers_pb2.TaskAttempt]:
    """Task attempts (stage, partition, attempt)."""
    return [workers_pb2.TaskAttempt(stage=stage, partition=part, attempt=attempt) for stage, part, attempt in names]


def histogram(starts: list[int], counts: list[int]) -> workers_pb2.Histogram:
    """Buckets."""
    return workers_pb2.Histogram(starts_micros=starts, counts=counts)


def digest(random: Random, _: Pipeline) -> bytes:
    """One that is too long."""
    return b"d" * random.randint(codec.MAX_DIGEST + 1, 5000)


def any_of(*values: Any) -> Callable[[Random, Pipeline], Any]:
    """One of the values."""
    return lambda random, _: random.choice(values)


def new_tasks(*names: str, **fields: Any) -> list[tasks_pb2.NewTask]:
    """Tasks that are to be created; those of the pipeline have this time and payload."""
    return [tasks_pb2.NewTask(**{"name": name, "at_micros": HOUR, "payload": b"p", **fields}) for name in names]


def leased(**fields: Any) -> Change:
    """Set fields of the lease, or of its task."""

    def change(request: Any, random: Random, pipeline: Pipeline) -> None:
        for name, value in fields.items():
            made = value(random, pipeline) if callable(value) else value
            setattr(request.lease if hasattr(request.lease, name) else request.lease.key, name, made)
        if hasattr(request, "outputs"):
            request.ClearField("outputs")

    return change


BAD_NAMES: Final = any_of(
    "", " ", "a b", "é", "a/", "/a", "a/b/c", "a\n", "a\0", "\0", "x" * 129, "n/" + "x" * 129, "x" * 20_000, "水" * 9000
)
CONTROLS: Final = any_of("\0", "exec\n7", "\x1b[2J", "a\x7f", "\x85", "\x9b2J", "\t")
UNKNOWN: Final = any_of("nobody", "", "A", "a ", "n", "x" * 20_000, "水\0" * 5000)
STALE: Final = any_of(0, 1, 2**63, 2**64 - 1)

CASES: Final[dict[str, Case]] = {
    # -- the graph
    "a name that is none": Case("Register", put(name=BAD_NAMES), field="name"),
    "an input that is no name": Case(
        "Register", put(inputs=lambda random, pipeline: ["a", BAD_NAMES(random, pipeline)]), field="inputs[1]"
    ),
    "an input twice": Case("Register", put(inputs=["a", "b", "a"]), field="inputs"),
    "too many inputs": Case(
        "Register", put(inputs=lambda r, _: [f"i{n}" for n in range(r.randint(1001, 1100))]), field="inputs"
    ),
    "an estimated input of an exact one": Case("Register", put(inputs=["a", "guess"]), "ESTIMATED_INPUT"),
    "its own input": Case("Register", put(inputs=["new"]), "CYCLE", "inputs"),
    "a share that is none": Case(
        "Register", put(heuristics_ppm=lambda r, _: [r.choice([0, 1_000_000, 2**32 - 1])]), field="heuristics_ppm"
    ),
    "a share twice": Case("Register", put(heuristics_ppm=[5, 990_000, 5]), field="heuristics_ppm"),
    "too many shares": Case(
        "Register", put(heuristics_ppm=lambda r, _: list(range(1, r.randint(18, 5000)))), field="heuristics_ppm"
    ),
    "a budget that is none": Case(
        "Register", put(lateness_budgets_ppm=lambda r, _: [r.choice([0, 99, 500_001, 2**32 - 1])]), field="lateness_budgets_ppm"
    ),
    "all that is pending without a budget": Case("Register", put(all_pending=True, lateness_budgets_ppm=[]), field="all_pending"),
    "a budget twice": Case("Register", put(lateness_budgets_ppm=[500, 10_000, 500]), field="lateness_budgets_ppm"),
    "too many budgets": Case("Register", put(lateness_budgets_ppm=[100, 200, 300, 400, 500]), field="lateness_budgets_ppm"),
    "a slice without a key": Case("Register", put(slices=[b""]), field="slices"),
    "a slice with a long key": Case("Register", put(slices=lambda r, _: [b"k" * r.randint(1025, 5000)]), field="slices"),
    "slices that do not ascend": Case("Register", put(slices=any_of([b"m", b"g"], [b"m", b"m"])), field="slices"),
    "too many slices": Case(
        "Register", put(slices=lambda r, _: [n.to_bytes(2, "big") for n in range(1, r.randint(1001, 2000))]), field="slices"
    ),
    "slices with too many inputs together": Case(
        "Register",
        put(
            inputs=[f"i{number}" for number in range(101)], slices=[number.to_bytes(2, "big") for number in range(1, 1000)]
        ),
        field="slices",
    ),
    "slices of one that tells of all that is pending": Case(
        "Register", put(inputs=[], slices=[b"m"], all_pending=True, lateness_budgets_ppm=[10_000]), field="all_pending"
    ),
    "other slices": Case("Register", put(name="b", inputs=["a"], slices=[b"m"]), "REGISTRATION_CONFLICT"),
    "new inputs of a slice": Case("SetInputs", put(computation="cut~0", inputs=["a"]), field="computation"),
    "a reset of a slice": Case("Reset", put(computation="cut~0"), field="computation"),
    "a drop of a slice": Case("Drop", put(computation="cut~0"), field="computation"),
    "a cut of what is not cut": Case("SplitSlice", put(computation="a", slice=any_of("a", "a~0")), field="slice"),
    "a cut of no slice": Case("SplitSlice", put(slice=any_of("", "cut", "cut~9", "b~0", "x" * 300)), field="slice"),
    "a cut by a slice": Case("SplitSlice", put(computation="cut~0"), field="computation"),
    "a cut outside of the slice": Case("SplitSlice", put(at=any_of(b"", b"z", b"zz", b"m" * 2000)), field="at"),
    "a layout of what is cut": Case("ChangeLayout", put(computation="cut"), field="computation"),
    "a claim of keys of a slice": Case("Claim", put(computation="cut", bounds=[b"a", b"g"], bound_micros=[]), "OTHER_SLICE"),
    "a claim of keys of two slices": Case("Claim", put(computation="cut", bounds=[b"g", b"z"], bound_micros=[]), "OTHER_SLICE"),
    "a claim of keys of another slice": Case("Claim", put(computation="cut~0", bounds=[b"g", b"z"], bound_micros=[]), "OTHER_SLICE"),
    "an interval of a slice": Case("Retire", put(computation="cut", start=b"a", end=b"g"), "OTHER_SLICE"),
    "an interval that a claim has only a part of": Case(
        "Retire", put(computation="cut", start=b"a", end=b"b", sequencer=lambda _, p: p.slice_claim()), "STALE_SEQUENCER"
    ),
    "an interval by a claim of what is not cut": Case(
        "Retire", put(computation="a", start=b"", end=b"", sequencer=lambda _, p: p.sequencers["a"]), field="sequencer"
    ),
    "a claim as that of a slice of what is not cut": Case("Claim", put(identity=slicing("spare")), field="identity"),
    "a claim as that of a slice elsewhere": Case(
        "Claim", put(computation="cut", identity=slicing("cut"), bounds=[b"a", b"g"], bound_micros=[]), field="bounds"
    ),
    "a slice as an input": Case("Register", put(inputs=["a", "a~0"]), field="inputs[1]"),
    "a slice by its name": Case("Register", put(name="a~0"), field="name"),
    "a long key hash": Case("Register", put(key_hash=text(65, 20_000)), field="key_hash"),
    "an absurd max skew": Case("Register", put(max_skew_micros=any_of(2**62, 2**63, 2**64 - 1)), field="max_skew_micros"),
    "an absurd history step": Case(
        "Register", put(history_step_micros=any_of(1, 999_999, 2**63, 2**64 - 1)), field="history_step_micros"
    ),
    "other inputs": Case("Register", put(name="b", inputs=["spare"]), "REGISTRATION_CONFLICT"),
    "other shares": Case("Register", put(name="b", inputs=["a"], heuristics_ppm=[5]), "REGISTRATION_CONFLICT"),
    "other budgets": Case(
        "Register", put(name="b", inputs=["a"], heuristics_ppm=[990_000], key_hash=""), "REGISTRATION_CONFLICT"
    ),
    "another key hash": Case("Register", put(name="a", inputs=[], heuristics_ppm=[990_000]), "REGISTRATION_CONFLICT"),
    "new inputs that are no names": Case("SetInputs", put(inputs=lambda r, p: [BAD_NAMES(r, p)]), field="inputs[0]"),
    "new inputs twice": Case("SetInputs", put(inputs=["b", "b"]), field="inputs"),
    "new inputs that close a cycle": Case("SetInputs", put(computation="a", inputs=["n/c"]), "CYCLE", "inputs"),
    "new inputs that are the computation": Case("SetInputs", put(inputs=["n/c"]), "CYCLE", "inputs"),
    "new inputs that are behind": Case("SetInputs", put(computation="b", inputs=["a", "spare"]), "WOULD_REGRESS"),
    "new inputs that are unregistered": Case("SetInputs", put(computation="b", inputs=["nobody"]), "WOULD_REGRESS"),
    "an interval that is reversed": Case("Retire", put(start=b"m", end=any_of(b"a", b"m", b"lz")), field="end"),
    "an interval with a long start": Case(
        "Retire", put(start=lambda r, _: b"m" * r.randint(1025, 20_000), end=b""), field="start"
    ),
    "an interval with a long end": Case("Retire", put(end=lambda r, _: b"m" * r.randint(1025, 20_000)), field="end"),
    "a drop of what is read": Case("Drop", put(computation="a"), "STILL_READ"),
    "a drop of what is owned": Case("Drop", put(computation="d"), "OWNED_RANGES"),
    "a drop of slices that are not finished": Case("Drop", put(computation="cut"), "OWNED_RANGES"),
    "an interval that is owned": Case("Retire", put(computation="a"), "OWNED_RANGES"),
    "a layout without ranges": Case("ChangeLayout", put(starts=[]), field="starts"),
    "a layout that begins later": Case("ChangeLayout", put(starts=any_of([1, 2, 3], [7, 8, 9])), field="starts"),
    "a layout that is not sorted": Case(
        "ChangeLayout", put(starts=any_of([0, 0, 5], [0, 9, 5], [0, 5, 65_536], [0, 5, 2**32 - 1])), field="starts"
    ),
    "a layout with tasks for others": Case("ChangeLayout", put(tasks=any_of([1], [1, 2, 3, 4])), field="tasks"),
    "a layout with too many ranges": Case("ChangeLayout", put(starts=list(range(16_385)), tasks=[]), field="starts"),
    "a layout with too great a task": Case("ChangeLayout", put(tasks=[0, 65_537, 0]), field="tasks"),
    "a layout in place of another": Case(
        "ChangeLayout", put(expected_version=any_of(1, 7, 2**64 - 1)), "LAYOUT_CONFLICT"
    ),
    "a layout of another incarnation": Case("ChangeLayout", put(incarnation=any_of(0, 2)), "INCARNATION_CHANGED"),
    "a claim in place of one that is lost": Case("Claim", put(instead_of=any_of(1, 2**63)), "STALE_SEQUENCER"),
    "a batch with a layout that begins later": Case(
        "CommitBatch", put(layout=types_pb2.Layout(starts=[1])), field="layout.starts"
    ),
    "a batch with tasks of no ranges": Case(
        "CommitBatch", put(layout=types_pb2.Layout(tasks=[1])), field="layout.starts"
    ),
    "a batch with a long reason": Case(
        "CommitBatch", put(layout=types_pb2.Layout(starts=[0]), layout_refused="x" * 1025), field="layout_refused"
    ),
    "a batch with a reason that a terminal obeys": Case(
        "CommitBatch", put(layout=types_pb2.Layout(starts=[0]), layout_refused="a\x1b[2J"), field="layout_refused"
    ),
    "a batch with too many loads": Case(
        "CommitBatch",
        put(layout=types_pb2.Layout(starts=[0]), loads=[types_pb2.RangeLoad(end=1)] * 65),
        field="loads",
    ),
    "a batch with a load of nothing": Case(
        "CommitBatch",
        put(
            layout=types_pb2.Layout(starts=[0]),
            loads=any_of(
                [types_pb2.RangeLoad(start=5, end=5)],
                [types_pb2.RangeLoad(end=65_537)],
                [types_pb2.RangeLoad(end=1, parts=[1] * 17)],
            ),
        ),
        field="loads[0]",
    ),
    # -- reading
    "too many names to get": Case(
        "GetWatermarks", put(computations=["a"] * (codec.MAX_NAMES + 1)), field="computations"
    ),
    "too many names to watch": Case("Watch", put(computations=["a"] * (codec.MAX_NAMES + 1)), field="computations"),
    "an interval of more than a beat": Case(
        "Watch", put(interval_millis=any_of(MAX_INTERVAL_MILLIS + 1, 2**32 - 1)), field="interval_millis"
    ),
    "a token in place of its digest": Case(
        "Identify", put(token_sha256=any_of("a token", "A" * 64, "0" * 63, "0" * 65)), field="token_sha256"
    ),
    "too many holders": Case("CheckComplete", put(max_holders=any_of(MAX_HOLDERS + 1, 2**32 - 1)), field="max_holders"),
    "too many ranges": Case("ListRanges", put(page_size=any_of(MAX_PAGE + 1, 2**32 - 1)), field="page_size"),
    "too many completions": Case("GetHistory", put(page_size=any_of(MAX_PAGE + 1, 2**32 - 1)), field="page_size"),
    # -- claims
    "no bounds": Case("Claim", put(bounds=[]), field="bounds"),
    "one bound": Case("Claim", put(bounds=[b"g"]), field="bounds"),
    "an empty range": Case("Claim", put(bounds=[b"", b"g", b"g"], bound_micros=[]), field="bounds[2]"),
    "a reversed range": Case("Claim", put(bounds=[b"m", b"g"], bound_micros=[]), field="bounds[1]"),
    "overlapping ranges": Case("Claim", put(bounds=[b"", b"m", b"g", b"z"], bound_micros=[]), field="bounds[2]"),
    "an empty key inside": Case("Claim", put(bounds=[b"a", b"", b"z"], bound_micros=[]), field="bounds[1]"),
    "empty keys only": Case("Claim", put(bounds=[b"", b"", b""], bound_micros=[]), field="bounds[1]"),
    "a long key": Case("Claim", put(bounds=keys(5, 1025), bound_micros=[]), field="bounds"),
    "long keys that do not ascend": Case(
        "Claim", put(bounds=[b"\xff" * 1024, b"\xfe" * 1024], bound_micros=[]), field="bounds[1]"
    ),
    "a long worker": Case("Claim", put(worker=text(257, 20_000)), field="worker"),
    "a long host": Case("Claim", put(host=text(257, 20_000)), field="host"),
    "a worker with control characters": Case("Claim", put(worker=CONTROLS), field="worker"),
    "a host with control characters": Case("Claim", put(host=CONTROLS), field="host"),
    "a long identity": Case("Claim", put(identity=text(257, 20_000)), field="identity"),
    "a request id of the wrong size": Case(
        "Claim", put(request_id=any_of(b"", b"x", b"x" * 15, b"x" * 17)), field="request_id"
    ),
    "starting bounds for other ranges": Case(
        "Claim", put(bound_micros=lambda r, _: [HOUR] * r.randint(3, 9)), field="bound_micros"
    ),
    "a long digest of a first batch": Case("Claim", put(batch_digest=digest), field="batch_digest"),
    "another identity": Case(
        "Claim", put(computation="d", identity=any_of("", "other", "水" * 256)), "IDENTITY_MISMATCH"
    ),
    "an older generation": Case("Claim", put(computation="d", identity="query", generation=2), "OLDER_CLAIM"),
    "a run that starts before a committed batch": Case(
        "Claim", put(computation="d", identity="query", generation=3, batch_digest=b"other"), "REWOUND"
    ),
    "a release of another claim": Case("Release", put(sequencer=STALE), "STALE_SEQUENCER"),
    "a release of nothing owned": Case("Release", put(computation="spare"), "STALE_SEQUENCER"),
    # -- micro-batches
    "a part of another claim": Case("StageTask", put(sequencer=STALE), "STALE_SEQUENCER"),
    "a part without a task": Case("StageTask", put(task=None), field="task"),
    "more handles than times": Case("StageTask", put(oldest_micros=[HOUR]), field="oldest_micros"),
    "more times than handles": Case("StageTask", put(handles=[0]), field="oldest_micros"),
    "a handle twice": Case("StageTask", put(handles=[1, 1]), field="handles"),
    "a handle out of range": Case("StageTask", put(handles=lambda r, _: [0, r.choice([2, 2**32 - 1])]), field="handles"),
    "starts without counts": Case("StageTask", put(pending=histogram([1, 2], [1])), field="pending"),
    "counts without starts": Case("StageTask", put(pending=histogram([], [1])), field="pending"),
    "starts that do not ascend": Case(
        "StageTask", put(pending=any_of(histogram([2, 1], [1, 1]), histogram([MAX, MIN], [1, 1]))),
        field="pending.starts_micros",
    ),
    "a start twice": Case("StageTask", put(pending=histogram([1, 1], [1, 1])), field="pending.starts_micros"),
    "a count beyond 63 bits": Case(
        "StageTask", put(pending=any_of(histogram([1], [2**63]), histogram([1], [2**64 - 1]))), field="pending.counts"
    ),
    "too many records pending": Case(
        "StageTask", put(pending=any_of(histogram([1], [2**40 + 1]), histogram([1, 2], [2**62, 2**62]))),
        field="pending and finished",
    ),
    "too many records finished": Case(
        "StageTask", put(finished=any_of(2**40 + 1, 2**63, 2**64 - 1)), field="pending and finished"
    ),
    "too many buckets": Case(
        "StageTask",
        put(pending=lambda *_: histogram(list(range(codec.MAX_BUCKETS + 1)), [1] * (codec.MAX_BUCKETS + 1))),
        field="pending",
    ),
    "a bound beyond max skew": Case("Claim", put(bound_micros=any_of([MAX - 1], [10**18])), "TOO_FAR_AHEAD", "bound_micros"),
    "a prepare of another claim": Case("PrepareBatch", put(sequencer=STALE), "STALE_SEQUENCER"),
    "too many tasks": Case(
        "PrepareBatch", put(tasks=lambda *_: tasks(*((1, n, 1) for n in range(MAX_PARTS + 1)))), field="tasks"
    ),
    "an attempt twice": Case("PrepareBatch", put(tasks=tasks((1, 0, 7), (1, 0, 7))), field="tasks"),
    "two attempts of one task": Case("PrepareBatch", put(tasks=tasks((1, 0, 7), (1, 0, 8))), field="tasks"),
    "a long digest": Case("PrepareBatch", put(digest=digest), field="digest"),
    "a frontier of no share": Case(
        "PrepareBatch",
        put(frontiers=lambda r, _: [types_pb2.Heuristic(share_ppm=r.choice([0, 1_000_000, 2**32 - 1]))]),
        field="frontiers.share_ppm",
    ),
    "a frontier twice": Case(
        "PrepareBatch", put(frontiers=[types_pb2.Heuristic(share_ppm=5)] * 2), field="frontiers.share_ppm"
    ),
    "too many frontiers": Case(
        "PrepareBatch", put(frontiers=[types_pb2.Heuristic(share_ppm=n) for n in range(1, 18)]), field="frontiers"
    ),
    "a commit of another claim": Case("CommitBatch", put(sequencer=STALE), "STALE_SEQUENCER"),
    "a commit without a prepare": Case("CommitBatch", put(batch=any_of(0, 5, 2**63, 2**64 - 1)), "NOT_PREPARED"),
    "a commit of an unprepared computation": Case(
        "CommitBatch", put(computation="a", sequencer=lambda _, p: p.sequencers["a"]), "NOT_PREPARED"
    ),
    "a vouch of another claim": Case("Vouch", put(sequencer=STALE), "STALE_SEQUENCER"),
    "a vouch by another version of the inputs": Case("Vouch", put(input_version=any_of(1, 2**64 - 1)), "INPUT_VERSION"),
    "a vouch by another incarnation of the inputs": Case("Vouch", put(input_incarnations=[7]), "INCARNATION_CHANGED"),
    "a vouch of the far future": Case(
        "Vouch", put(through_micros=any_of(2**62, 2**63 - 2)), "TOO_FAR_AHEAD", field="through_micros"
    ),
    # -- tasks
    "a group that is no name": Case("CreateGroup", put(group=any_of("", "a b", "a/b", "x" * 129, "水")), field="group"),
    "absurd intervals": Case("CreateGroup", put(every_micros=any_of(1, 999_999, 2**63, 2**64 - 1)), field="every_micros"),
    "intervals from nowhere": Case("CreateGroup", put(start_micros=any_of(MIN, MAX, 2**62)), field="start_micros"),
    "a start without intervals": Case("CreateGroup", put(every_micros=0), field="start_micros"),
    "an absurd lease": Case("CreateGroup", put(lease_micros=any_of(1, 999_999, 2**63, 2**64 - 1)), field="lease_micros"),
    "a long configuration": Case(
        "CreateGroup", put(configuration=lambda r, _: bytes(r.randint(4097, 9000))), field="configuration"
    ),
    "another group of the name": Case("CreateGroup", put(group="repairs"), "REGISTRATION_CONFLICT"),
    "another configuration of a group": Case(
        "CreateGroup", put(group="hourly", every_micros=HOUR, start_micros=0, configuration=b"x"), "REGISTRATION_CONFLICT"
    ),
    "intervals of a guess": Case("CreateGroup", put(computation="guess"), "ESTIMATED_INPUT"),
    "a configuration that is too long": Case(
        "ConfigureGroup", put(configuration=lambda r, _: bytes(r.randint(4097, 9000))), field="configuration"
    ),
    "a configuration in place of another": Case(
        "ConfigureGroup", put(configuration_version=any_of(0, 2, 2**64 - 1)), "TASK_CONFLICT"
    ),
    "no tasks": Case("CreateTasks", put(tasks=[]), field="tasks"),
    "too many new tasks": Case(
        "CreateTasks", put(tasks=lambda r, _: new_tasks(*map(str, range(r.randint(101, 120))))), field="tasks"
    ),
    "a task of another group": Case("CreateTasks", put(tasks=new_tasks("n1", group="hourly")), field="tasks.group"),
    "a task of an interval": Case("CreateTasks", put(group="hourly"), field="tasks[0].group"),
    "a task that is no name": Case(
        "CreateTasks", put(tasks=lambda r, _: new_tasks("n1", r.choice(["", "a b", "x" * 129, "水"]))), field="tasks[1].name"
    ),
    "a task of no time": Case(
        "CreateTasks", put(tasks=lambda r, _: new_tasks("new", at_micros=r.choice([MIN, MAX]))), field="tasks[0].at_micros"
    ),
    "a long payload": Case(
        "CreateTasks", put(tasks=lambda r, _: new_tasks("new", payload=bytes(r.randint(1025, 5000)))), field="tasks[0].payload"
    ),
    "a task that is there with another payload": Case(
        "CreateTasks", put(tasks=any_of(new_tasks("n1", payload=b"q"), new_tasks("n2", payload=b""))), "TASK_CONFLICT"
    ),
    "tasks for another incarnation": Case("CreateTasks", put(incarnation=any_of(2, 2**64 - 1)), "INCARNATION_CHANGED"),
    "a nonce of the wrong size": Case("TakeTask", put(nonce=any_of(b"", b"x", b"x" * 15, b"x" * 17)), field="nonce"),
    "a long wait": Case("TakeTask", put(wait_millis=any_of(30_001, 2**32 - 1)), field="wait_millis"),
    "a long worker that takes": Case("TakeTask", put(worker=text(257, 20_000)), field="worker"),
    "a worker that takes with control characters": Case("TakeTask", put(worker=CONTROLS), field="worker"),
    "a commit of no deployment": Case("CommitTask", put(server_token=""), field="server_token"),
    "a lease with another nonce size": Case("RenewTask", leased(nonce=b"x"), field="lease.nonce"),
    "a lease with another nonce": Case("CommitTask", leased(nonce=b"o" * 16), "STALE_LEASE"),
    "a lease with another version": Case("RenewTask", leased(version=any_of(0, 1, 3, 4, 2**64 - 1)), "STALE_LEASE"),
    "a lease with another epoch": Case("ReleaseTask", leased(epoch=any_of(0, 1, 2**64 - 1)), "STALE_LEASE"),
    "a lease with another configuration": Case("CommitTask", leased(configuration_version=any_of(0, 2)), "STALE_LEASE"),
    "a lease of another incarnation": Case("CommitTask", leased(incarnation=any_of(0, 2, 2**64 - 1)), "INCARNATION_CHANGED"),
    "a lease of another task": Case("ReleaseTask", leased(name=any_of("n4", "n9", "", "x" * 5000)), "STALE_LEASE"),
    "a lease of another group": Case("RenewTask", leased(group=any_of("", "nowhere", "x" * 5000)), "UNKNOWN_GROUP"),
    "a done task with other outputs": Case(
        "CommitTask", put(lease=lambda _, p: p.done.lease, outputs=[]), "TASK_CONFLICT"
    ),
    "an output that others may write": Case("CommitTask", put(outputs=any_of(["part"], [""], ["2-00"])), field="outputs[0]"),
    "an output with control characters": Case(
        "CommitTask", put(outputs=lambda r, p: [CONTROLS(r, p)]), field="outputs[0]"
    ),
    "too many outputs": Case("CommitTask", put(outputs=["x"] * 101), field="outputs"),
    "long outputs": Case("CommitTask", put(outputs=lambda r, p: [text(2049, 5000)(r, p)]), field="outputs"),
    "a long digest of outputs": Case("CommitTask", put(digest=digest), field="digest"),
    "too many successors": Case("CommitTask", put(successors=lambda *_: new_tasks(*map(str, range(101)))), field="successors"),
    "a successor in no group": Case("CommitTask", put(successors=new_tasks("s1", group="nowhere")), "UNKNOWN_GROUP"),
    "a successor in an interval": Case(
        "CommitTask", put(successors=new_tasks("s1", group="hourly")), field="successors[0].group"
    ),
    "too many tasks to list": Case("ListTasks", put(page_size=any_of(1001, 2**32 - 1)), field="page_size"),
    "tasks in no state": Case("ListTasks", put(state=any_of(4, 7)), field="state"),
    # -- report streams
    "a report before the open": Case("Report", up(numbered(1)), field="kind"),
    "an empty first message": Case("Report", up(lambda *_: workers_pb2.ReportRequest()), field="kind"),
    "a second open": Case("Report", up(fresh, fresh), field="kind"),
    "an empty message": Case("Report", up(fresh, lambda *_: workers_pb2.ReportRequest()), field="kind"),
    "a sender of the wrong size": Case(
        "Report",
        up(lambda r, _: opening(sender=r.choice([b"", b"x", b"x" * 15, b"x" * 17, b"x" * 9999]))),
        field="open.sender",
    ),
    "stream 0": Case("Report", up(lambda *_: opening(0)), field="open.stream"),
    "a stream without a next one": Case("Report", up(lambda *_: opening(1 << 63)), field="open.stream"),
    "a stream that is not new": Case("Report", again, "OLD_STREAM"),
    "report 0": Case("Report", up(fresh, numbered(0)), field="report.number"),
    "a first report that is not number 1": Case(
        "Report", up(fresh, numbered(lambda r: r.choice([2, 3, 2**63, 2**64 - 1]))), field="report.number"
    ),
    "a claim twice in one report": Case(
        "Report", up(fresh, lambda _, p: report(1, p.group("a", 15), p.group("a", 16))), field="report.groups"
    ),
    "a stream for another deployment": Case(
        "Report", up(lambda *_: opening(token="other")), "SERVER_TOKEN_MISMATCH"
    ),
}  # fmt: skip

CASES.update(
    {
        f"{method} for another deployment": Case(
            method, put(server_token=any_of("other", "x" * 20_000)), "SERVER_TOKEN_MISMATCH"
        )
        for method in STUBS
        if method != "Report"
    }
)
_NAMED: Final = (
    "SetInputs",
    "Reset",
    "SplitSlice",
    "Retire",
    "Drop",
    "ChangeLayout",
    "GetLayout",
    "CheckComplete",
    "ListRanges",
    "GetHistory",
    "Claim",
    "Release",
)
_OF_TASKS: Final = (
    "CreateGroup",
    "ConfigureGroup",
    "CreateTasks",
    "TakeTask",
    "RenewTask",
    "CommitTask",
    "ReleaseTask",
    "ListTasks",
)
CASES.update(
    {
        f"{method} of an unknown computation": Case(method, put(computation=UNKNOWN), "UNKNOWN_COMPUTATION")
        for method in (*_NAMED, "StageTask", "PrepareBatch", "CommitBatch", "Vouch", *_OF_TASKS)
    }
)
CASES.update(
    {
        f"{method} of an unknown group": Case(
            method, put(group=any_of("nobody", "x" * 20_000, "水\0" * 5000)), "UNKNOWN_GROUP"
        )
        for method in ("ConfigureGroup", "CreateTasks", "TakeTask", "ListTasks")
    }
)

TOO_LARGE: Final = Case(
    "Claim",
    put(bounds=lambda *_: [n.to_bytes(4) for n in range(codec.MAX_RANGES + 2)], bound_micros=[]),
    field="bounds",
)
"""As the others, but it takes a second."""

IN_PART: Final[dict[str, tuple[Callable[[Pipeline], workers_pb2.GroupReport], str, list[int]]]] = {
    # Reports are refused claim by claim and range by range, in the acknowledgement: what, why, and which handles.
    "an unknown computation": (
        lambda p: workers_pb2.GroupReport(computation="nobody", sequencer=1, watermarks_micros=[1]),
        "UNKNOWN_COMPUTATION",
        [],
    ),
    "a name that no computation can have": (
        lambda p: workers_pb2.GroupReport(computation="n" * 300, sequencer=1, watermarks_micros=[1]),
        "INVALID_ARGUMENT",
        [],
    ),
    "sequencer 0": (
        lambda p: workers_pb2.GroupReport(computation="a", watermarks_micros=[1]),
        "STALE_SEQUENCER",
        [],
    ),
    "another claim": (
        lambda p: workers_pb2.GroupReport(computation="a", sequencer=2**64 - 1, watermarks_micros=[1]),
        "STALE_SEQUENCER",
        [],
    ),
    "no values": (lambda p: p.group("a"), "INVALID_ARGUMENT", []),
    "too few values": (lambda p: p.group("a", 20, 20), "INVALID_ARGUMENT", []),
    "too many values": (lambda p: p.group("a", 20, 20, 20, 20), "INVALID_ARGUMENT", []),
    "more values than handles": (lambda p: p.group("a", 20, 20, handles=[0]), "INVALID_ARGUMENT", [0]),
    "a handle out of range": (lambda p: p.group("a", 20, handles=[3]), "INVALID_ARGUMENT", [3]),
    "a handle far out of range": (lambda p: p.group("a", 20, handles=[2**32 - 1]), "INVALID_ARGUMENT", [2**32 - 1]),
    "a handle twice": (lambda p: p.group("a", 20, 20, handles=[1, 1]), "INVALID_ARGUMENT", [1, 1]),
    "a time beyond max skew": (lambda p: p.group("a", 14, 10**6, 16), "TOO_FAR_AHEAD", [1]),
    "MAX without finish": (lambda p: _max(p, 2), "FINISH_REQUIRED", [2]),
    "MAX less one": (lambda p: _max(p, 2, MAX - 1), "TOO_FAR_AHEAD", [2]),
    "an old version of the inputs": (
        lambda p: p.group("b", 20, 20, input_version=9, input_incarnations=[1]),
        "INPUT_VERSION",
        [],
    ),
    "inputs of an injector": (lambda p: p.group("a", 20, 20, 20, input_version=1), "INPUT_VERSION", []),
    "a mass whose starts do not ascend": (lambda p: _mass(p, [2, 1], [1, 1]), "INVALID_ARGUMENT", []),
    "a mass with unequal columns": (lambda p: _mass(p, [2], [1, 1]), "INVALID_ARGUMENT", []),
    "a mass with a count beyond 63 bits": (lambda p: _mass(p, [2], [2**64 - 1]), "INVALID_ARGUMENT", []),
    "a mass of too many records": (lambda p: _mass(p, [2], [2**40 + 1]), "INVALID_ARGUMENT", []),
    "a mass of too many recent records": (lambda p: _mass(p, [2], [1], recent=2**64 - 1), "INVALID_ARGUMENT", []),
    "a mass with a frontier of no share": (lambda p: _frontiers(p, 1_000_000), "INVALID_ARGUMENT", []),
    "a mass with a frontier twice": (lambda p: _frontiers(p, 5, 5), "INVALID_ARGUMENT", []),
    "a mass with too many frontiers": (lambda p: _frontiers(p, *range(1, 18)), "INVALID_ARGUMENT", []),
    "a mass with too many buckets": (
        lambda p: _mass(p, list(range(codec.MAX_BUCKETS + 1)), [1] * (codec.MAX_BUCKETS + 1)),
        "INVALID_ARGUMENT",
        [],
    ),
    "a mass of a claim with others, as slices have them": (lambda p: _others(p, [5]), "INVALID_ARGUMENT", []),
    "a mass of a claim that does not know all, as slices may": (
        lambda p: _mass(p, [2], [1], unknown=True),
        "INVALID_ARGUMENT",
        [],
    ),
    "a mass with too many others": (lambda p: _others(p, *[[5]] * (MOST_FRONTIERS + 1)), "INVALID_ARGUMENT", []),
    "a mass with a frontier of no share among others": (lambda p: _others(p, [5], [1_000_000]), "INVALID_ARGUMENT", []),
    "a mass with a frontier twice among others": (lambda p: _others(p, [5, 5]), "INVALID_ARGUMENT", []),
    "lateness with unequal columns": (lambda p: _lateness(p, [0, 1], [1]), "INVALID_ARGUMENT", []),
    "lateness whose buckets do not ascend": (lambda p: _lateness(p, [1, 0], [1, 1]), "INVALID_ARGUMENT", []),
    "lateness in a bucket that is not there": (lambda p: _lateness(p, [756], [1]), "INVALID_ARGUMENT", []),
    "lateness in too many buckets": (lambda p: _lateness(p, [*range(129)], [1] * 129), "INVALID_ARGUMENT", []),
    "lateness with too many counts": (lambda p: _lateness(p, [0], [1] * 129), "INVALID_ARGUMENT", []),
    "lateness of too many records": (lambda p: _lateness(p, [0, 1], [2**40, 1]), "INVALID_ARGUMENT", []),
    "more records behind than came": (lambda p: _lateness(p, [0], [3], 10_000), "INVALID_ARGUMENT", []),
    "records behind a budget twice": (lambda p: _lateness(p, [0], [9], 10_000, 10_000), "INVALID_ARGUMENT", []),
    "records behind too many budgets": (lambda p: _lateness(p, [0], [9], *range(5)), "INVALID_ARGUMENT", []),
    "lateness from beyond max skew": (lambda p: _lateness(p, [0], [9], frontier=MAX - 1), "TOO_FAR_AHEAD", []),
    "lateness behind what is beyond max skew": (lambda p: _lateness(p, [0], [9], reference=MAX), "TOO_FAR_AHEAD", []),
    "an oldest operation before 1970": (
        lambda p: p.group("a", 14, 15, 16, oldest_operation_micros=-1),
        "INVALID_ARGUMENT",
        [],
    ),
    "an oldest operation at MIN": (
        lambda p: p.group("a", 14, 15, 16, oldest_operation_micros=-(2**63)),
        "INVALID_ARGUMENT",
        [],
    ),
    "an oldest operation at MAX": (
        lambda p: p.group("a", 14, 15, 16, oldest_operation_micros=MAX),
        "INVALID_ARGUMENT",
        [],
    ),
    "more to wait for than is taken": (
        lambda p: p.group("a", 14, 15, 16, waiting_for="x" * 201),
        "INVALID_ARGUMENT",
        [],
    ),
    "more to wait for than is taken, in bytes": (
        lambda p: p.group("a", 14, 15, 16, waiting_for="\u00fc" * 101),
        "INVALID_ARGUMENT",
        [],
    ),
    "waiting for what a terminal obeys": (
        lambda p: p.group("a", 14, 15, 16, waiting_for="\x1b[2J"),
        "INVALID_ARGUMENT",
        [],
    ),
    "a failure that a terminal obeys": (
        lambda p: p.group("a", 14, 15, 16, remarks=types_pb2.Remarks(failure="\x1b[2J")),
        "INVALID_ARGUMENT",
        [],
    ),
    "a frontier beyond max skew": (
        lambda p: _mass(p, [2], [1], frontiers=[types_pb2.Heuristic(share_ppm=990_000, micros=MAX - 1)]),
        "TOO_FAR_AHEAD",
        [],
    ),
}


def _max(pipeline: Pipeline, handle: int, value: int = MAX) -> workers_pb2.GroupReport:
    group = pipeline.group("a", 14, 15, 16)
    group.watermarks_micros[handle] = value
    return group


def _mass(pipeline: Pipeline, starts: list[int], counts: list[int], **fields: Any) -> workers_pb2.GroupReport:
    mass = workers_pb2.Mass(pending=histogram(starts, counts), **fields)
    return pipeline.group("a", 14, 15, 16, mass=mass)


def _others(pipeline: Pipeline, *shares: list[int]) -> workers_pb2.GroupReport:
    others = [
        workers_pb2.FinishedAt(recent=1, frontiers=[types_pb2.Heuristic(share_ppm=share, micros=5) for share in each])
        for each in shares
    ]
    return _mass(pipeline, [2], [1], others=others)


def _lateness(
    pipeline: Pipeline, buckets: list[int], counts: list[int], *budgets: int, frontier: int = 0, reference: int = 0
) -> workers_pb2.GroupReport:
    behind = [workers_pb2.Behind(budget_ppm=ppm, records=5) for ppm in budgets]
    told = workers_pb2.Lateness(
        buckets=buckets, counts=counts, behind=behind, frontier_micros=frontier, reference_micros=reference
    )
    return pipeline.group("a", 14, 15, 16, lateness=told)


def _frontiers(pipeline: Pipeline, *shares: int) -> workers_pb2.GroupReport:
    return _mass(pipeline, [], [], frontiers=[types_pb2.Heuristic(share_ppm=share, micros=5) for share in shares])
