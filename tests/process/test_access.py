"""Each thing that somebody may not do, tried from a real client at a real server; and that what is allowed still works.

The oracle is ``RIGHTS``: a table by hand of who may do what to each of a few names. Everything beside it is forbidden, and tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater import errors
from lowwater.v1 import topology_pb2, watermarks_pb2
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
INPUTS = {"flights/hourly": ["flights/enriched"], "flights/circle": ["billing/sum"], "billing/sum": ["flights/hourly"]}
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
    "register what reads others": ("reporter", "Register", "flights/hourX", {"inputs": ["flights/enriched"]}, "read"),
    "change inputs by registering": ("reporter", "Register", "flights/hourly", {"inputs": ["solo"]}, "read"),
    "set inputs one may not read": ("operator", "SetInputs", "flights/minute", {"inputs": ["billing/sum"]}, "read"),
    "one forbidden name in a read": (
        "reader",
        "GetWatermarks",
        "",
        {"computations": ["flights/hourly", "solo"]},
        "read",
    ),
    "one forbidden name in a watch": ("reader", "Watch", "", {"computations": ["flights/hourly", "solo"]}, "read"),
    "one forbidden name in a question": ("reader", "Locate", "", {"computations": ["flights/hourly", "solo"]}, "read"),
    "reset what is read two hops away": ("operator", "Reset", "flights/enriched", {}, "operate"),
    "no namespace is not all": ("local", "Register", "flights/solo", {}, "report"),
    "a namespace called star": ("local", "GetWatermarks", "*/solo", {}, "read"),
    "no name at all": ("reporter", "Claim", "", {}, "report"),
    "a name that can be nobody's": ("stranger", "Reset", "other/a b", {}, "operate"),
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


# -- from the client library ---------------------------------------------------------------------------------------------


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


def test_the_number_of_forbidden_things_is_that_of_the_documentation() -> None:
    assert "about sixteen hundred forbidden things" in (ROOT / "docs" / "security.md").read_text()
    assert 1500 < len({*NOT_KNOWN, *NOT_ALLOWED, *MORE}) < 1700
