"""Requests that are refused, and parts of reports: what is wrong with each, in a request that is valid otherwise."""

from __future__ import annotations

from typing import Any, Final

from lowwater.v1 import tasks_pb2, types_pb2, workers_pb2
from lowwater_authority.core.batches import MAX_PARTS
from lowwater_authority.core.names import slicing
from lowwater_authority.core.slicing import MOST_FRONTIERS
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.request_bounds import MAX_NAMES
from lowwater_authority.rpc.watermarks import MAX_HOLDERS, MAX_INTERVAL_MILLIS, MAX_PAGE
from tests.kit.times import HOUR, MAX, MIN
from tests.property.rpc_server import METHODS, Pipeline, opening, report

LONG_KEY, LONG_TEXT, ESCAPE = b"m" * 1025, "水" * 257, "exec\x1b[2J"
MOST = 2**64 - 1


def new_tasks(*names: str, **fields: Any) -> list[tasks_pb2.NewTask]:
    return [tasks_pb2.NewTask(**{"name": name, "at_micros": HOUR, "payload": b"p", **fields}) for name in names]


def attempts(*names: tuple[int, int]) -> list[workers_pb2.TaskAttempt]:
    return [workers_pb2.TaskAttempt(stage=1, partition=part, attempt=attempt) for part, attempt in names]


def histogram(starts: list[int], counts: list[int]) -> workers_pb2.Histogram:
    return workers_pb2.Histogram(starts_micros=starts, counts=counts)


def frontiers(*shares: int, micros: int = 0) -> list[types_pb2.Heuristic]:
    return [types_pb2.Heuristic(share_ppm=share, micros=micros) for share in shares]


Case = tuple[str, dict[str, Any]]
"""Method, reason (INVALID_ARGUMENT where none stands) and field of the refusal; and the fields that are set, by a function of the pipeline too."""

CASES: Final[list[Case]] = [
    # -- the graph
    ("Register name", {"name": "a/b/c"}),
    ("Register name", {"name": "a~0"}),
    ("Register inputs[1]", {"inputs": ["a", "a b"]}),
    ("Register inputs[1]", {"inputs": ["a", "a~0"]}),
    ("Register inputs", {"inputs": ["a", "b", "a"]}),
    ("Register inputs", {"inputs": [f"i{n}" for n in range(1001)]}),
    ("Register ESTIMATED_INPUT", {"inputs": ["a", "guess"]}),
    ("Register CYCLE inputs", {"inputs": ["new"]}),
    ("Register heuristics_ppm", {"heuristics_ppm": [1_000_000]}),
    ("Register heuristics_ppm", {"heuristics_ppm": [*range(1, 18)]}),
    ("Register lateness_budgets_ppm", {"lateness_budgets_ppm": [99]}),
    ("Register lateness_budgets_ppm", {"lateness_budgets_ppm": [100, 200, 300, 400, 500]}),
    ("Register all_pending", {"all_pending": True, "lateness_budgets_ppm": []}),
    ("Register all_pending", {"inputs": [], "slices": [b"m"], "all_pending": True, "lateness_budgets_ppm": [10_000]}),
    ("Register slices", {"slices": [LONG_KEY]}),
    ("Register slices", {"slices": [b"m", b"g"]}),
    ("Register slices", {"slices": [n.to_bytes(2) for n in range(1, 1001)]}),
    ("Register slices", {"inputs": [f"i{n}" for n in range(101)], "slices": [n.to_bytes(2) for n in range(1, 1000)]}),
    ("Register key_hash", {"key_hash": "x" * 65}),
    ("Register max_skew_micros", {"max_skew_micros": 2**62}),
    ("Register history_step_micros", {"history_step_micros": 999_999}),
    ("Register REGISTRATION_CONFLICT", {"name": "b", "inputs": ["a"], "slices": [b"m"]}),
    ("Register REGISTRATION_CONFLICT", {"name": "b", "inputs": ["a"], "heuristics_ppm": [990_000], "key_hash": ""}),
    ("SetInputs inputs", {"inputs": ["b", "b"]}),
    ("SetInputs inputs", {"inputs": [f"i{n}" for n in range(1001)]}),
    ("SetInputs CYCLE inputs", {"computation": "a", "inputs": ["n/c"]}),
    ("SetInputs WOULD_REGRESS", {"computation": "b", "inputs": ["a", "spare"]}),
    ("SetInputs computation", {"computation": "cut~0", "inputs": ["a"]}),
    ("SetInputs INPUT_VERSION", {"incarnation": 1, "input_version": 9}),
    ("SetInputs inputs[0]", {"inputs": ["a~0"]}),
    ("Reset computation", {"computation": "cut~0"}),
    ("Drop computation", {"computation": "cut~0"}),
    ("Drop STILL_READ", {"computation": "a"}),
    ("Drop OWNED_RANGES", {"computation": "d"}),
    ("Drop OWNED_RANGES", {"computation": "cut"}),
    ("SplitSlice slice", {"computation": "a", "slice": "a~0"}),
    ("SplitSlice slice", {"slice": "cut~9"}),
    ("SplitSlice computation", {"computation": "cut~0"}),
    ("SplitSlice at", {"at": b"z"}),
    ("Retire OTHER_SLICE", {"computation": "cut", "start": b"a", "end": b"g"}),
    ("Retire OTHER_SLICE", {"computation": "cut", "start": b"a", "end": b"z"}),
    ("Retire STALE_SEQUENCER", {"computation": "cut", "start": b"a", "end": b"b", "sequencer": Pipeline.slice_claim}),
    ("Retire sequencer", {"computation": "a", "start": b"", "end": b"", "sequencer": lambda p: p.sequencers["a"]}),
    ("Retire end", {"start": b"m", "end": b"lz"}),
    ("Retire end", {"end": LONG_KEY}),
    ("Retire OWNED_RANGES", {"computation": "a"}),
    ("ChangeLayout computation", {"computation": "cut"}),
    ("ChangeLayout starts", {"starts": []}),
    ("ChangeLayout starts", {"starts": [1, 2, 3]}),
    ("ChangeLayout starts", {"starts": [0, 5, 65_536]}),
    ("ChangeLayout starts", {"starts": [*range(16_385)], "tasks": []}),
    ("ChangeLayout tasks", {"tasks": [1]}),
    ("ChangeLayout LAYOUT_CONFLICT", {"expected_version": 7}),
    ("ChangeLayout INCARNATION_CHANGED", {"incarnation": 2}),
    # -- reading
    ("GetWatermarks computations", {"computations": ["a"] * (MAX_NAMES + 1)}),
    ("Watch computations", {"computations": ["a"] * (MAX_NAMES + 1)}),
    ("Watch interval_millis", {"interval_millis": MAX_INTERVAL_MILLIS + 1}),
    ("Identify token_sha256", {"token_sha256": "A" * 64}),
    ("CheckComplete max_holders", {"max_holders": MAX_HOLDERS + 1}),
    ("CheckComplete computation", {"computation": "cut~0"}),
    ("ListRanges page_size", {"page_size": MAX_PAGE + 1}),
    ("GetHistory page_size", {"page_size": MAX_PAGE + 1}),
    # -- claims
    ("Claim bounds", {"bounds": [b"g"]}),
    ("Claim bounds[2]", {"bounds": [b"", b"g", b"g"], "bound_micros": []}),
    ("Claim bounds[1]", {"bounds": [b"a", b"", b"z"], "bound_micros": []}),
    ("Claim bounds", {"bounds": [b"", b"a", LONG_KEY, b""], "bound_micros": []}),
    ("Claim bounds", {"bounds": [n.to_bytes(4) for n in range(codec.MAX_RANGES + 2)], "bound_micros": []}),
    ("Claim bounds", {"computation": "cut", "identity": slicing("cut"), "bounds": [b"a", b"g"], "bound_micros": []}),
    ("Claim OTHER_SLICE", {"computation": "cut", "bounds": [b"a", b"g"], "bound_micros": []}),
    ("Claim OTHER_SLICE", {"computation": "cut~0", "bounds": [b"g", b"z"], "bound_micros": []}),
    ("Claim identity", {"identity": slicing("spare")}),
    ("Claim identity", {"identity": LONG_TEXT}),
    ("Claim worker", {"worker": LONG_TEXT}),
    ("Claim host", {"host": ESCAPE}),
    ("Claim request_id", {"request_id": b"x" * 15}),
    ("Claim request_id", {"computation": "a", "request_id": (1).to_bytes(16), "bound_micros": []}),
    ("Claim bound_micros", {"bound_micros": [HOUR] * 3}),
    ("Claim TOO_FAR_AHEAD bound_micros", {"bound_micros": [MAX - 1]}),
    ("Claim batch_digest", {"batch_digest": b"d" * (codec.MAX_DIGEST + 1)}),
    ("Claim STALE_SEQUENCER", {"instead_of": 1}),
    ("Claim IDENTITY_MISMATCH", {"computation": "d", "identity": "other"}),
    ("Claim OLDER_CLAIM", {"computation": "d", "identity": "query", "generation": 2}),
    ("Claim REWOUND", {"computation": "d", "identity": "query", "generation": 3, "batch_digest": b"other"}),
    ("Release STALE_SEQUENCER", {"sequencer": MOST}),
    # -- micro-batches
    ("StageTask STALE_SEQUENCER", {"sequencer": 0}),
    ("StageTask task", {"task": None}),
    ("StageTask oldest_micros", {"oldest_micros": [HOUR]}),
    ("StageTask handles", {"handles": [1, 1]}),
    ("StageTask handles", {"handles": [0, 2]}),
    ("StageTask pending", {"pending": histogram([1, 2], [1])}),
    ("StageTask pending", {"pending": histogram([*range(codec.MAX_BUCKETS + 1)], [1] * (codec.MAX_BUCKETS + 1))}),
    ("StageTask pending.starts_micros", {"pending": histogram([MAX, MIN], [1, 1])}),
    ("StageTask pending.counts", {"pending": histogram([1], [2**63])}),
    ("StageTask pending+and+finished", {"pending": histogram([1, 2], [2**62, 2**62])}),
    ("PrepareBatch STALE_SEQUENCER", {"sequencer": 1}),
    ("PrepareBatch tasks", {"tasks": attempts(*((n, 1) for n in range(MAX_PARTS + 1)))}),
    ("PrepareBatch tasks", {"tasks": attempts((0, 7), (0, 8))}),
    ("PrepareBatch digest", {"digest": b"d" * (codec.MAX_DIGEST + 1)}),
    ("PrepareBatch oldest_operation_micros", {"oldest_operation_micros": MAX}),
    ("PrepareBatch frontiers.share_ppm", {"frontiers": frontiers(1_000_000)}),
    ("PrepareBatch frontiers", {"frontiers": frontiers(*range(1, 18))}),
    ("PrepareBatch frontiers.share_ppm", {"frontiers": frontiers(5, 5)}),
    ("CommitBatch STALE_SEQUENCER", {"sequencer": 1}),
    ("CommitBatch NOT_PREPARED", {"batch": 5}),
    ("CommitBatch layout.starts", {"layout": types_pb2.Layout(starts=[1])}),
    ("CommitBatch layout_refused", {"layout": types_pb2.Layout(starts=[0]), "layout_refused": "x" * 1025}),
    ("CommitBatch layout_refused", {"layout": types_pb2.Layout(starts=[0]), "layout_refused": ESCAPE}),
    ("CommitBatch loads", {"layout": types_pb2.Layout(starts=[0]), "loads": [types_pb2.RangeLoad(end=1)] * 65}),
    ("CommitBatch loads[0]", {"layout": types_pb2.Layout(starts=[0]), "loads": [types_pb2.RangeLoad(end=65_537)]}),
    ("Vouch STALE_SEQUENCER", {"sequencer": 1}),
    ("Vouch INPUT_VERSION", {"input_version": 1}),
    ("Vouch INCARNATION_CHANGED", {"input_incarnations": [7]}),
    ("Vouch TOO_FAR_AHEAD through_micros", {"through_micros": 2**62}),
    # -- tasks
    ("CreateGroup group", {"group": "a b"}),
    ("CreateGroup every_micros", {"every_micros": 999_999}),
    ("CreateGroup start_micros", {"start_micros": MIN}),
    ("CreateGroup start_micros", {"every_micros": 0, "start_micros": 5}),
    ("CreateGroup lease_micros", {"lease_micros": 1}),
    ("CreateGroup configuration", {"configuration": bytes(4097)}),
    ("CreateGroup REGISTRATION_CONFLICT", {"group": "hourly", "every_micros": HOUR, "start_micros": 0, "configuration": b"x"}),
    ("CreateGroup ESTIMATED_INPUT", {"computation": "guess"}),
    ("CreateGroup computation", {"computation": "cut~0"}),
    ("CreateGroup computation", {"computation": "cut~0", "every_micros": 0, "start_micros": 0}),
    ("ConfigureGroup configuration", {"configuration": bytes(4097)}),
    ("ConfigureGroup TASK_CONFLICT", {"configuration_version": 2}),
    ("CreateTasks tasks", {"tasks": new_tasks(*map(str, range(101)))}),
    ("CreateTasks tasks", {"tasks": []}),
    ("CreateTasks tasks.group", {"tasks": new_tasks("n1", group="hourly")}),
    ("CreateTasks tasks[0].group", {"group": "hourly"}),
    ("CreateTasks tasks[1].name", {"tasks": new_tasks("n1", "a b")}),
    ("CreateTasks tasks[0].at_micros", {"tasks": new_tasks("new", at_micros=MAX)}),
    ("CreateTasks tasks[0].payload", {"tasks": new_tasks("new", payload=bytes(1025))}),
    ("CreateTasks TASK_CONFLICT", {"tasks": new_tasks("n1", payload=b"q")}),
    ("CreateTasks INCARNATION_CHANGED", {"incarnation": 2}),
    ("TakeTask nonce", {"nonce": b"x" * 17}),
    ("TakeTask wait_millis", {"wait_millis": 30_001}),
    ("TakeTask worker", {"worker": LONG_TEXT}),
    ("TakeTask worker", {"worker": ESCAPE}),
    ("CommitTask server_token", {"server_token": ""}),
    ("RenewTask lease.nonce", {"lease": {"nonce": b"x"}}),
    ("CommitTask STALE_LEASE", {"lease": {"nonce": b"o" * 16}, "outputs": []}),
    ("RenewTask STALE_LEASE", {"lease": {"version": 3}}),
    ("ReleaseTask STALE_LEASE", {"lease": {"epoch": 1}}),
    ("CommitTask INCARNATION_CHANGED", {"lease": {"incarnation": 2}, "outputs": []}),
    ("RenewTask UNKNOWN_GROUP", {"lease": {"group": "nowhere"}}),
    ("CommitTask TASK_CONFLICT", {"lease": lambda p: p.committed.lease, "outputs": []}),
    ("CommitTask outputs[0]", {"outputs": ["part"]}),
    ("CommitTask outputs", {"outputs": ["x" * 2049]}),
    ("CommitTask outputs", {"outputs": ["x"] * 101}),
    ("CommitTask digest", {"digest": b"d" * (codec.MAX_DIGEST + 1)}),
    ("CommitTask successors", {"successors": new_tasks(*map(str, range(101)))}),
    ("CommitTask UNKNOWN_GROUP", {"successors": new_tasks("s1", group="nowhere")}),
    ("CommitTask successors[0].group", {"successors": new_tasks("s1", group="hourly")}),
    ("ListTasks page_size", {"page_size": 1001}),
    ("ListTasks state", {"state": 7}),
    # -- of all methods
    *((f"{name} SERVER_TOKEN_MISMATCH", {"server_token": "other"}) for name in METHODS if name != "Report"),
    *(
        (f"{name} UNKNOWN_COMPUTATION", {"computation": "水\0" * 5000})
        for name, method in METHODS.items()
        if "computation" in method.input_type.fields_by_name
    ),
    *((f"{name} UNKNOWN_GROUP", {"group": "nobody"}) for name in ("ConfigureGroup", "CreateTasks", "TakeTask", "ListTasks")),
]  # fmt: skip

NOTHING = workers_pb2.ReportRequest()


def opened_twice(pipeline: Pipeline) -> list[workers_pb2.ReportRequest]:
    newest = next(pipeline.streams)
    pipeline.server.call("Report", [opening(newest)])
    return [opening(newest), report(1, pipeline.group("a", 20))]


STREAMS: Final[list[tuple[str, Any]]] = [
    ("kind", lambda p: [report(1, p.group("a", 15, 16, 17))]),
    ("kind", lambda _: [NOTHING]),
    ("kind", lambda p: [opening(next(p.streams)), opening(next(p.streams))]),
    ("kind", lambda p: [opening(next(p.streams)), NOTHING]),
    ("open.sender", lambda _: [opening(sender=b"x" * 15)]),
    ("open.stream", lambda _: [opening(0)]),
    ("open.stream", lambda _: [opening(1 << 63)]),
    ("report.number", lambda p: [opening(next(p.streams)), report(0, p.group("a", 15, 16, 17))]),
    ("report.number", lambda p: [opening(next(p.streams)), report(2, p.group("a", 15, 16, 17))]),
    ("report.groups", lambda p: [opening(next(p.streams)), report(1, p.group("a", 15), p.group("a", 16))]),
    ("SERVER_TOKEN_MISMATCH", lambda _: [opening(token="other")]),
    ("OLD_STREAM", opened_twice),
]


def of_a(**fields: Any) -> workers_pb2.GroupReport:
    return workers_pb2.GroupReport(computation="a", watermarks_micros=[1], **fields)


def reported(pipeline: Pipeline, *last: int, **fields: Any) -> workers_pb2.GroupReport:
    group = pipeline.group("a", 14, 15, 16, **fields)
    group.watermarks_micros[2:] = last or group.watermarks_micros[2:]
    return group


def mass(pipeline: Pipeline, starts: list[int], counts: list[int], **fields: Any) -> workers_pb2.GroupReport:
    return reported(pipeline, mass=workers_pb2.Mass(pending=histogram(starts, counts), **fields))


def others(pipeline: Pipeline, *shares: list[int]) -> workers_pb2.GroupReport:
    return mass(
        pipeline, [2], [1], others=[workers_pb2.FinishedAt(recent=1, frontiers=frontiers(*share)) for share in shares]
    )


def late(
    pipeline: Pipeline, buckets: list[int], counts: list[int], *budgets: int, frontier: int = 0, reference: int = 0
) -> workers_pb2.GroupReport:
    behind = [workers_pb2.Behind(budget_ppm=ppm, records=5) for ppm in budgets]
    lateness = workers_pb2.Lateness(
        buckets=buckets, counts=counts, behind=behind, frontier_micros=frontier, reference_micros=reference
    )
    return reported(pipeline, lateness=lateness)


IN_PART: Final[list[tuple[str, list[int], Any]]] = [
    # Reports are refused claim by claim and range by range, in the acknowledgement: why (no reason: INVALID_ARGUMENT), which handles, what.
    ("UNKNOWN_COMPUTATION", [], lambda _: workers_pb2.GroupReport(computation="nobody", watermarks_micros=[1])),
    ("", [], lambda _: workers_pb2.GroupReport(computation="n" * 300, sequencer=1, watermarks_micros=[1])),
    ("STALE_SEQUENCER", [], lambda _: of_a()),
    ("STALE_SEQUENCER", [], lambda _: of_a(sequencer=MOST)),
    ("", [], lambda p: p.group("a", 20, 20)),
    ("", [0], lambda p: p.group("a", 20, 20, handles=[0])),
    ("", [3], lambda p: p.group("a", 20, handles=[3])),
    ("", [1, 1], lambda p: p.group("a", 20, 20, handles=[1, 1])),
    ("INPUT_VERSION", [], lambda p: p.group("b", 20, 20, input_version=9, input_incarnations=[1])),
    ("INPUT_VERSION", [], lambda p: p.group("a", 20, 20, 20, input_version=1)),
    ("", [], lambda p: mass(p, [], [], frontiers=frontiers(1_000_000))),
    ("", [], lambda p: mass(p, [], [], frontiers=frontiers(*range(1, 18)))),
    ("", [], lambda p: mass(p, [*range(codec.MAX_BUCKETS + 1)], [1] * (codec.MAX_BUCKETS + 1))),
    ("", [], lambda p: others(p, *[[5]] * (MOST_FRONTIERS + 1))),
    ("", [], lambda p: others(p, [5], [1_000_000])),
    ("", [], lambda p: late(p, [0, 1], [1])),
    ("", [], lambda p: late(p, [756], [1])),
    ("", [], lambda p: late(p, [*range(129)], [1] * 129)),
    ("", [], lambda p: late(p, [0], [9], 10_000, 10_000)),
    ("", [], lambda p: late(p, [0], [9], *range(5))),
    ("", [], lambda p: reported(p, oldest_operation_micros=MAX)),
    ("", [], lambda p: reported(p, waiting_for=ESCAPE)),
    ("", [], lambda p: reported(p, waiting_for="x" * 1025)),
    ("", [], lambda p: reported(p, remarks=types_pb2.Remarks(failure=ESCAPE))),
]

BESIDE: Final[list[tuple[str, list[int], Any]]] = [
    ("TOO_FAR_AHEAD", [1], lambda p: p.group("a", 14, 10**6, 16)),
    ("FINISH_REQUIRED", [2], lambda p: reported(p, MAX)),
    ("TOO_FAR_AHEAD", [2], lambda p: reported(p, MAX - 1)),
    ("", [], lambda p: mass(p, [2, 1], [1, 1])),
    ("", [], lambda p: mass(p, [2], [MOST])),
    ("", [], lambda p: mass(p, [2], [1], recent=MOST)),
    ("", [], lambda p: others(p, [5])),
    ("TOO_FAR_AHEAD", [], lambda p: mass(p, [2], [1], frontiers=frontiers(990_000, micros=MAX - 1))),
    ("", [], lambda p: late(p, [0, 1], [2**40, 1])),
    ("", [], lambda p: late(p, [0], [3], 10_000)),
    ("TOO_FAR_AHEAD", [], lambda p: late(p, [0], [9], frontier=MAX - 1)),
    ("TOO_FAR_AHEAD", [], lambda p: late(p, [0], [9], reference=MAX)),
]
"""Reports with a bad part, whose other part counts. It changes nothing, but no older report may count any more: its number is durable."""
