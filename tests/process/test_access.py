"""Each thing that somebody may not do, tried from a real client at a real server; and that what is allowed still works.

The oracle is ``RIGHTS``: a table by hand of who may do what to each of a few names. Everything beside it is forbidden, and tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

import lowwater
from lowwater import errors
from lowwater._pb.lowwater.v1 import cluster_pb2, topology_pb2, watermarks_pb2, workers_pb2, workers_pb2_grpc
from lowwater.cli import main as command
from lowwater_authority.access.methods import METHODS
from tests.process.accessing import CALLS, PATIENCE, Rules, Tokens, Wire, bearer, rules_of
from tests.process.serving import Serving

ROOT = Path(__file__).parents[2]

TOKENS = Tokens()

NAMES = (
    "flights/enriched",
    "flights/hourly",
    "flights/minute",
    "flights/circle",
    "flights/absent",
    "billing/sum",
    "solo",
)
INPUTS = {
    "flights/hourly": ["flights/enriched"],
    "flights/circle": ["billing/sum"],
    "billing/sum": ["flights/hourly"],
}
REGISTERED = tuple(name for name in NAMES if name != "flights/absent")
FLIGHTS = {name for name in NAMES if name.startswith("flights/")}

RULES: dict[str, Rules] = {
    "admin": [("*", {"report": ["*"], "read": ["*"], "operate": ["*"]})],
    "reporter": [("flights", {"report": ["enriched", "hour*"]})],
    "reader": [("flights", {"read": ["*"]})],
    "operator": [("flights", {"operate": ["*"]})],
    "stranger": [("other", {"report": ["*"], "read": ["*"], "operate": ["*"]})],
    "local": [("", {"report": ["sol*"], "read": ["solo"]})],
    "idle": [],
    "cyclist": [("flights", {"read": ["*"], "operate": ["*"]})],
}

RIGHTS: dict[str, dict[str, set[str]]] = {
    "reporter": {"report": {"flights/enriched", "flights/hourly"}},
    "reader": {"read": FLIGHTS},
    "operator": {"operate": FLIGHTS},
    "stranger": {},
    "local": {"report": {"solo"}, "read": {"solo"}},
    "idle": {},
    "cyclist": {"read": FLIGHTS, "operate": FLIGHTS},
}

NEEDS = {
    "report": (
        *("Claim", "Release", "Report", "StageTask", "PrepareBatch", "CommitBatch", "Vouch", "Register"),
        *("CreateGroup", "CreateTasks", "TakeTask", "RenewTask", "CommitTask", "ReleaseTask"),
    ),
    "read": ("GetWatermarks", "Watch", "CheckComplete", "ListRanges", "GetHistory", "ListTasks", "GetLayout"),
    "operate": ("SetInputs", "Reset", "SplitSlice", "Retire", "Drop", "ConfigureGroup", "ChangeLayout"),
    "any": ("Locate",),
    "everything": ("Drain", "Pin"),
}
FOR_ANYBODY_KNOWN = ("GetTopology", "ListShards", "Identify", "ServerReflectionInfo")

UNKNOWN = {
    "nobody": (),
    "wrong token": bearer("x" * 43),
    "empty token": (("authorization", "Bearer "),),
    "another scheme": (("authorization", f"Basic {TOKENS['admin']}"),),
    "a bare token": (("authorization", TOKENS["admin"]),),
    "two tokens": (*bearer(TOKENS["admin"]), *bearer(TOKENS["admin"])),
    "a token and more": bearer(f"{TOKENS['admin']} {TOKENS['admin']}"),
    "the hash of a token": bearer("f" * 64),
    "a removed principal": bearer(TOKENS["removed"]),
}


@dataclass(frozen=True)
class Thing:
    """Something that somebody may not do."""

    who: str
    rpc: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.who}-{self.rpc}-{self.name}".replace("/", ".")


def allowed(who: str, action: str, name: str) -> bool:
    rights = RIGHTS[who]
    if action == "any":
        return any(name in names for names in rights.values())
    return action != "everything" and name in rights.get(action, set())


NOT_KNOWN = [Thing(who, rpc, "flights/enriched") for who in UNKNOWN for rpc in CALLS]
NOT_ALLOWED = [
    Thing(who, rpc, name)
    for who in RIGHTS
    for action, rpcs in NEEDS.items()
    for rpc in rpcs
    for name in NAMES
    if not allowed(who, action, name)
]
ALLOWED = [
    Thing(who, rpc, name)
    for who in RIGHTS
    for action, rpcs in NEEDS.items()
    for rpc in rpcs
    for name in NAMES
    if allowed(who, action, name)
]


@dataclass
class Target:
    """A server with everything registered, and every range of it owned by the administrator."""

    server: Serving
    wire: Wire
    lw: lowwater.Client
    leases: dict[str, lowwater.Lease]

    def sequencer(self, name: str) -> int:
        """What a thief has found out."""
        return self.leases[name].sequencer if name in self.leases else 1


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("access")
    path = folder / "access.toml"
    path.write_text("".join(rules_of(name, TOKENS[name], rules) for name, rules in RULES.items()))
    with Serving(folder / "data", "--access", str(path), "--reflection") as server, server.channel() as channel:
        with lowwater.connect(server.address, token=TOKENS["admin"], timeout=PATIENCE) as lw:
            for name in REGISTERED:
                lw.register(name, inputs=INPUTS.get(name, []))
            leases = {name: lw.worker(name).claim() for name in REGISTERED}
            yield Target(server, Wire(channel, server.address), lw, leases)


@pytest.mark.parametrize(
    ("who", "arguments", "says"),
    [
        ("operator", [], "no computation is registered that operator may read: `read` in the access file says which those are"),
        ("reader", ["--namespace", "other"], "no computation is registered in the namespace other that reader may read; namespaces that have some: flights"),
    ],
)  # fmt: skip
def test_a_status_for_who_may_read_nothing_says_so(
    target: Target,
    who: str,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else he would look for a pipeline that reports nothing."""
    monkeypatch.setenv("LOWWATER_TOKEN", TOKENS[who])
    assert command(["status", "--address", target.server.address, *arguments]) == 0
    assert capsys.readouterr().out.strip() == says


def test_what_is_missing_upstream_is_told_apart_from_what_is_not_told(
    target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """flights/circle reads billing/sum, which the reader may not read. flights/typo reads what nobody has registered."""
    monkeypatch.setenv("LOWWATER_TOKEN", TOKENS["reader"])
    interval = ["--from", "2013-01-09T10:00Z", "--to", "2013-01-09T11:00Z", "--address", target.server.address]
    assert command(["complete", "flights/circle", *interval]) == 1
    said = capsys.readouterr().out
    assert "is not registered" not in said
    assert said.count("billing/sum may not be read by this client") == 1
    assert "held by billing/sum, which may not be read by this client" in said
    target.lw.register("flights/typo", inputs=["flights/absent"])
    try:
        assert command(["complete", "flights/typo", *interval]) == 1
    finally:
        target.lw.drop("flights/typo", force=True)
    said = capsys.readouterr().out
    assert said.count("flights/absent is not registered") == 1
    assert "held by flights/absent, which is not registered" in said
    assert "may not be read" not in said


# -- each forbidden thing ------------------------------------------------------------------------------------------------


def test_every_method_is_in_the_table() -> None:
    assert {path.rpartition("/")[2] for path in METHODS} == set(CALLS)
    assert {rpc for rpcs in NEEDS.values() for rpc in rpcs} | set(FOR_ANYBODY_KNOWN) == set(CALLS)


@pytest.mark.parametrize("who", UNKNOWN)
def test_who_is_not_known_may_do_nothing(target: Target, who: str) -> None:
    for thing in (each for each in NOT_KNOWN if each.who == who):
        refused = target.wire.attempt(
            thing.rpc, UNKNOWN[who], thing.name, sequencer=target.sequencer(thing.name), server_token="another"
        )
        assert isinstance(refused, errors.Unauthenticated), (str(thing), refused)
        assert "LOWWATER_TOKEN" in refused.message, str(thing)
        assert thing.name not in refused.message


@pytest.mark.parametrize("who", RIGHTS)
def test_what_no_rule_allows_is_refused(target: Target, who: str) -> None:
    for thing in (each for each in NOT_ALLOWED if each.who == who):
        # Also with the numbers of the claim that somebody else holds, and whatever deployment is meant.
        refused = target.wire.attempt(
            thing.rpc, bearer(TOKENS[who]), thing.name, sequencer=target.sequencer(thing.name)
        )
        assert isinstance(refused, errors.PermissionDenied), (str(thing), refused)
        assert who in refused.message, str(thing)
        if thing.rpc not in NEEDS["everything"]:
            [needed] = [action for action, rpcs in NEEDS.items() if thing.rpc in rpcs]
            needed = "read" if needed == "any" else needed
            namespace, _, plain = thing.name.rpartition("/")
            on = f"{plain!r} of the namespace {namespace!r}"
            large = {"Report", "Claim", "StageTask", "PrepareBatch", "CommitBatch", "ChangeLayout", "Register"}
            if (thing.rpc in large and not any(needed in rights for _, rights in RULES[who])) or (
                thing.rpc in {"GetWatermarks", "Watch", "Locate"} and not RULES[who]
            ):
                on = "anything"  # what may carry much is refused before it is parsed
            assert f"the permission {needed} on {on}" in refused.message, str(thing)


def test_what_a_rule_allows_is_let_through(target: Target) -> None:
    """Up to the service, which finds that another deployment is meant, and changes nothing."""
    for thing in ALLOWED:
        refused = target.wire.attempt(thing.rpc, bearer(TOKENS[thing.who]), thing.name, server_token="another")
        assert refused is not None, str(thing)
        assert refused.reason == "SERVER_TOKEN_MISMATCH", str(thing)


# -- with more in the request than a name --------------------------------------------------------------------------------

MORE: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "adopt with report alone": ("reporter", "Claim", "flights/enriched", {"adopt": True}, "operate"),
    "register what reads what one may not": (
        "reporter",
        "Register",
        "flights/hourX",
        {"inputs": ["flights/enriched"]},
        "read",
    ),
    "register what reads what is not there": ("reporter", "Register", "flights/hourX", {"inputs": ["x/y"]}, "read"),
    "change inputs by registering": ("reporter", "Register", "flights/hourly", {"inputs": ["solo"]}, "read"),
    "set inputs one may not read": ("operator", "SetInputs", "flights/minute", {"inputs": ["billing/sum"]}, "read"),
    "one forbidden name in a read": (
        "reader",
        "GetWatermarks",
        "",
        {"computations": ["flights/hourly", "solo", "billing/sum"]},
        "read",
    ),
    "one forbidden name in a watch": (
        "reader",
        "Watch",
        "",
        {"computations": ["flights/hourly", "flights/absent", "solo"]},
        "read",
    ),
    "one forbidden name in a question where": (
        "reader",
        "Locate",
        "",
        {"computations": ["flights/hourly", "solo"]},
        "read",
    ),
    "reset what others read": ("operator", "Reset", "flights/hourly", {}, "operate"),
    "reset what is read two hops away": ("operator", "Reset", "flights/enriched", {}, "operate"),
    "wildcard is no infix": ("reporter", "Register", "flights/anhour", {}, "report"),
    "wildcard needs its beginning": ("reporter", "Register", "flights/hou", {}, "report"),
    "wildcard minds case": ("reporter", "Register", "flights/Hourly", {}, "report"),
    "wildcard of another namespace": ("reporter", "Register", "flights2/hourly", {}, "report"),
    "wildcard without a namespace": ("reporter", "Register", "hourly", {}, "report"),
    "an exact name is no prefix": ("reporter", "Register", "flights/enriched2", {}, "report"),
    "no namespace is not all": ("local", "Register", "flights/solo", {}, "report"),
    "a namespace called star": ("local", "GetWatermarks", "*/solo", {}, "read"),
    "an empty namespace": ("local", "Register", "/solo", {}, "report"),
    "no name at all": ("reporter", "Claim", "", {}, "report"),
    "a name that is too long": ("stranger", "Register", f"other/{'x' * 129}", {}, "report"),
    "a name that can be nobody's": ("stranger", "Reset", "other/a b", {}, "operate"),
    "a name of a name": ("idle", "GetHistory", "flights/flights/hourly", {}, "read"),
}


def test_what_else_a_request_asks_is_refused_too(target: Target) -> None:
    for case, (who, rpc, name, fields, permission) in MORE.items():
        refused = target.wire.attempt(rpc, bearer(TOKENS[who]), name, **fields)
        assert isinstance(refused, errors.PermissionDenied), (case, refused)
        assert (refused.metadata["permission"], refused.metadata["principal"]) == (permission, who), case


def test_whether_something_exists_is_not_said(target: Target) -> None:
    """To somebody who may do nothing with it, what exists and what does not differ in nothing but the name."""
    for rpc in (rpc for action in ("report", "read", "operate") for rpc in NEEDS[action]):
        told = []
        for name in ("flights/minute", "flights/absent"):
            refused = target.wire.attempt(rpc, bearer(TOKENS["idle"]), name)
            assert refused is not None, rpc
            told.append((type(refused), refused.message.replace(name.partition("/")[2], "X"), refused.metadata.keys()))
        assert told[0] == told[1], rpc


def test_a_list_of_all_has_what_one_may_read_and_nothing_else(target: Target) -> None:
    stubs, patience = target.wire.stubs, {"timeout": PATIENCE}
    for who, rights in RIGHTS.items():
        metadata, seen = bearer(TOKENS[who]), rights.get("read", set()) & set(REGISTERED)
        graph = stubs.graph.GetTopology(topology_pb2.GetTopologyRequest(), metadata=metadata, **patience)
        assert {each.name for each in graph.computations} == seen
        if not RULES[who]:
            assert isinstance(target.wire.attempt("GetWatermarks", metadata), errors.PermissionDenied)
            continue
        got = stubs.watermarks.GetWatermarks(watermarks_pb2.GetWatermarksRequest(), metadata=metadata, **patience)
        assert {each.computation for each in got.watermarks} == seen
        if not any(
            "read" in allowed for _, allowed in RULES[who]
        ):  # it would follow nothing, in a place that others could have
            assert isinstance(target.wire.attempt("Watch", metadata), errors.PermissionDenied)
            continue
        watch = stubs.watermarks.Watch(watermarks_pb2.WatchRequest(), metadata=metadata, **patience)
        assert {each.computation for each in next(iter(watch)).watermarks} == seen
        watch.cancel()


def test_a_watch_of_all_never_tells_of_what_one_may_not_read(target: Target) -> None:
    request = watermarks_pb2.WatchRequest()
    watch = target.wire.stubs.watermarks.Watch(request, metadata=bearer(TOKENS["local"]), timeout=PATIENCE)
    messages = iter(watch)
    next(messages)
    low = 1_500_000_000_000_000
    for name in ("flights/minute", "flights/enriched", "solo"):
        target.leases[name].advance(None, oldest=None, frontier=low)
        target.leases[name].flush(timeout=PATIENCE)
    seen = set()
    while "solo" not in seen:
        seen |= {each.computation for each in next(messages).watermarks}
    watch.cancel()
    assert seen == {"solo"}


def test_an_error_does_not_name_what_one_may_not_know(target: Target) -> None:
    """The circle goes through billing/sum, of which one of the two may know nothing."""
    told: dict[str, errors.Cycle] = {}
    fields: dict[str, Any] = {"inputs": ["flights/circle"]}
    for who in ("admin", "cyclist"):
        refused = target.wire.attempt("SetInputs", bearer(TOKENS[who]), "flights/enriched", **fields)
        assert isinstance(refused, errors.Cycle), refused
        told[who] = refused
    assert "billing/sum" in told["admin"].message
    assert "billing/sum" in told["admin"].metadata["cycle"]
    assert "sum" not in f"{told['cyclist'].message} {told['cyclist'].metadata}"
    assert "flights/hourly" in told["cyclist"].message


# -- from the client library ---------------------------------------------------------------------------------------------


def test_calls_of_the_client_end_at_once(target: Target) -> None:
    with lowwater.connect(target.server.address, token="wrong", timeout=10 * PATIENCE) as lw:
        for call in (
            lambda: lw.register("solo"),
            lambda: lw.get("solo"),
            lambda: lw.wait("solo", until=lowwater.Watermark.FINISHED),
            lambda: next(iter(lw.watch("solo"))),
            lambda: lw.complete("solo", lowwater.Watermark(0)),
            lambda: lw.why("solo"),
            lambda: lw.reset("solo"),
            lambda: lw.worker("solo").claim(),
        ):
            with pytest.raises(errors.Unauthenticated, match="is nobody's"):
                call()


def test_one_may_wait_for_what_one_may_read_beside_what_one_may_not(target: Target) -> None:
    with lowwater.connect(target.server.address, token=TOKENS["reader"], timeout=PATIENCE) as lw:
        with pytest.raises(errors.PermissionDenied, match="read on 'solo'"):
            lw.wait("solo", until=lowwater.Watermark(0))
        with pytest.raises(errors.PermissionDenied, match="operate on 'minute'"):
            lw.reset("flights/minute")
        low = 1_500_000_000_000_001
        target.leases["flights/minute"].advance(None, oldest=None, frontier=low)
        assert lw.wait("flights/minute", until=lowwater.Watermark(low), timeout=PATIENCE).low.micros == low


def test_a_stolen_claim_moves_nothing(target: Target) -> None:
    """After all that was tried: every claim is whose it was, and reports of its owner count."""
    before = target.lw.get(*REGISTERED)
    for number, name in enumerate(REGISTERED):
        assert before[name].incarnation == 1
        if not before[name].inputs:
            low = 1_600_000_000_000_000 + number
            target.leases[name].advance(None, oldest=None, frontier=low)
            target.leases[name].flush(timeout=PATIENCE)
            assert target.lw.get(name)[name].low.micros == low
    assert set(target.lw.topology().computations) == set(REGISTERED)


def test_health_is_for_anybody(target: Target) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(target.server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_moving_computations_takes_everything(target: Target) -> None:
    """The administrator gets as far as the service, which has no other shards."""
    request = cluster_pb2.DrainRequest(address="127.0.0.1:1")
    with pytest.raises(grpc.RpcError, match="this authority is alone"):
        target.wire.stubs.cluster.Drain(request, metadata=bearer(TOKENS["admin"]), timeout=PATIENCE)


def test_the_number_of_forbidden_things_is_that_of_the_documentation() -> None:
    assert "about sixteen hundred forbidden things" in (ROOT / "docs" / "security.md").read_text()
    assert 1500 < len({*NOT_KNOWN, *NOT_ALLOWED, *MORE}) < 1700


def test_only_who_may_report_says_what_is_waited_for_and_who_may_read_is_told(target: Target) -> None:
    name, said = "flights/enriched", "/in/daily.json"
    lease = target.leases[name]
    lease.advance(None, oldest=None, frontier=1, waiting_for=said)
    lease.flush()

    def told(who: str) -> str:
        with lowwater.connect(target.server.address, token=TOKENS[who], timeout=PATIENCE) as lw:
            return lw.ranges(name).ranges[0].waiting_for

    group = workers_pb2.GroupReport(
        computation=name, sequencer=lease.sequencer, watermarks_micros=[2], turn=9, waiting_for="something else"
    )
    messages = [
        workers_pb2.ReportRequest(open=workers_pb2.ReportOpen(sender=bytes(16), stream=1)),
        workers_pb2.ReportRequest(report=workers_pb2.Report(number=1, groups=[group])),
    ]
    with target.server.channel() as channel:
        stub = workers_pb2_grpc.WorkerServiceStub(channel)
        answers = list(stub.Report(iter(messages), metadata=bearer(TOKENS["local"])))
    [refused] = [each.reason for answer in answers for each in answer.ack.refused]
    assert (refused, told("reader"), told("admin")) == ("PERMISSION_DENIED", said, said)
    with pytest.raises(errors.PermissionDenied):
        told("stranger")
