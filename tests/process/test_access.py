"""Each thing that somebody may not do, tried from a real client at a real server; and that what is allowed still works.

The oracle is ``RIGHTS``: a table by hand of who may do what to each of a few names. Everything beside it is forbidden, and tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

import lowwater
from lowwater import errors
from lowwater.v1 import topology_pb2, watermarks_pb2
from lowwater_authority.access.methods import METHODS
from tests.process.accessing import CALLS, PATIENCE, Rules, Tokens, Wire, bearer, rules_of
from tests.process.serving import Serving

TOKENS = Tokens()

NAMES = ("flights/enriched", "flights/hourly", "flights/minute", "flights/absent", "billing/sum", "solo")
INPUTS = {"flights/hourly": ["flights/enriched"], "billing/sum": ["flights/hourly"]}
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
}

RIGHTS: dict[str, dict[str, set[str]]] = {
    "reporter": {"report": {"flights/enriched", "flights/hourly"}},
    "reader": {"read": FLIGHTS},
    "operator": {"operate": FLIGHTS},
    "stranger": {},
    "local": {"report": {"solo"}, "read": {"solo"}},
    "idle": {},
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
    "two tokens": (*bearer(TOKENS["admin"]), *bearer(TOKENS["admin"])),
    "a removed principal": bearer(TOKENS["removed"]),
}


def allowed(who: str, action: str, name: str) -> bool:
    rights = RIGHTS[who]
    if action == "any":
        return any(name in names for names in rights.values())
    return action != "everything" and name in rights.get(action, set())


@dataclass
class Target:
    """A server with everything registered, and every range of it owned by the administrator."""

    server: Serving
    wire: Wire
    lw: lowwater.Client
    leases: dict[str, lowwater.Lease]

    def sequencer(self, name: str) -> int:
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


def test_every_method_is_in_the_table() -> None:
    assert {path.rpartition("/")[2] for path in METHODS} == set(CALLS)
    assert {rpc for rpcs in NEEDS.values() for rpc in rpcs} | set(FOR_ANYBODY_KNOWN) == set(CALLS)


@pytest.mark.parametrize("who", UNKNOWN)
def test_who_is_not_known_may_do_nothing(target: Target, who: str) -> None:
    name = "flights/enriched"
    for rpc in CALLS:
        refused = target.wire.attempt(rpc, UNKNOWN[who], name, sequencer=target.sequencer(name))
        assert isinstance(refused, errors.Unauthenticated), (rpc, refused)
        assert "LOWWATER_TOKEN" in refused.message, rpc
        assert name not in refused.message


@pytest.mark.parametrize("who", RIGHTS)
def test_what_no_rule_allows_is_refused_and_the_rest_is_let_through(target: Target, who: str) -> None:
    """The call goes up to the service, which finds that another deployment is meant, and changes nothing."""
    metadata = bearer(TOKENS[who])
    for action, rpcs in NEEDS.items():
        for rpc, name in product(rpcs, NAMES):
            if allowed(who, action, name):
                refused = target.wire.attempt(rpc, metadata, name, server_token="another")
                assert refused is not None, (rpc, name)
                assert refused.reason == "SERVER_TOKEN_MISMATCH", (rpc, name)
                continue
            # Also with the numbers of the claim that somebody else holds.
            refused = target.wire.attempt(rpc, metadata, name, sequencer=target.sequencer(name))
            assert isinstance(refused, errors.PermissionDenied), (rpc, name, refused)
            assert who in refused.message, (rpc, name)


MORE: list[tuple[str, str, str, dict[str, Any]]] = [
    ("reporter", "Claim", "flights/enriched", {"adopt": True}),
    ("reporter", "Register", "flights/hourly", {"inputs": ["solo"]}),
    ("operator", "SetInputs", "flights/minute", {"inputs": ["billing/sum"]}),
    ("reader", "GetWatermarks", "", {"computations": ["flights/hourly", "solo"]}),
    ("reader", "Watch", "", {"computations": ["flights/hourly", "solo"]}),
    ("reader", "Locate", "", {"computations": ["flights/hourly", "solo"]}),
    ("operator", "Reset", "flights/enriched", {}),  # what billing reads is reset with it
    ("local", "Register", "flights/solo", {}),
    ("local", "GetWatermarks", "*/solo", {}),
    ("stranger", "Reset", "other/a b", {}),
]


@pytest.mark.parametrize(("who", "rpc", "name", "fields"), MORE)
def test_what_a_request_adds_is_refused(target: Target, who: str, rpc: str, name: str, fields: dict[str, Any]) -> None:
    refused = target.wire.attempt(rpc, bearer(TOKENS[who]), name, **fields)
    assert isinstance(refused, errors.PermissionDenied), refused


def test_whether_something_exists_is_not_said(target: Target) -> None:
    for rpc in (rpc for action in ("report", "read", "operate") for rpc in NEEDS[action]):
        seen_ = []
        for name in ("flights/minute", "flights/absent"):
            refused = target.wire.attempt(rpc, bearer(TOKENS["idle"]), name)
            assert refused is not None, rpc
            seen_.append((type(refused), refused.message.replace(name.partition("/")[2], "X"), refused.metadata.keys()))
        assert seen_[0] == seen_[1], rpc


def test_a_list_of_all_has_what_one_may_read_and_nothing_else(target: Target) -> None:
    stubs, patience = target.wire.stubs, {"timeout": PATIENCE}
    for who, rights in RIGHTS.items():
        metadata, readable = bearer(TOKENS[who]), rights.get("read", set()) & set(REGISTERED)
        graph = stubs.graph.GetTopology(topology_pb2.GetTopologyRequest(), metadata=metadata, **patience)
        assert {computation.name for computation in graph.computations} == readable
        if not RULES[who]:
            assert isinstance(target.wire.attempt("GetWatermarks", metadata), errors.PermissionDenied)
            continue
        got = stubs.watermarks.GetWatermarks(watermarks_pb2.GetWatermarksRequest(), metadata=metadata, **patience)
        assert {watermark.computation for watermark in got.watermarks} == readable
        if not any(
            "read" in allowed for _, allowed in RULES[who]
        ):  # it would follow nothing, in a place that others could have
            assert isinstance(target.wire.attempt("Watch", metadata), errors.PermissionDenied)
            continue
        watch = stubs.watermarks.Watch(watermarks_pb2.WatchRequest(), metadata=metadata, **patience)
        assert {watermark.computation for watermark in next(iter(watch)).watermarks} == readable
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
    names = set()
    while "solo" not in names:
        names |= {watermark.computation for watermark in next(messages).watermarks}
    watch.cancel()
    assert names == {"solo"}


def test_a_stolen_claim_moves_nothing(target: Target) -> None:
    before = target.lw.get(*REGISTERED)
    for number, name in enumerate(REGISTERED):
        assert before[name].incarnation == 1
        if not before[name].inputs:
            low = 1_600_000_000_000_000 + number
            target.leases[name].advance(None, oldest=None, frontier=low)
            target.leases[name].flush(timeout=PATIENCE)
            assert target.lw.get(name)[name].low.micros == low
    assert set(target.lw.topology().computations) == set(REGISTERED)
