"""Scenarios of a client: the first line of each says what is expected, and the scenario fails when that does not come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import grpc

from conformance.program import Broken, Pending, Program
from conformance.scripted import Claim, Deployment, Refusal
from lowwater.v1 import types_pb2, workers_pb2

HOUR: Final = 3_600_000_000
AWAY: Final = grpc.StatusCode.UNAVAILABLE
LOST: Final = Refusal("", AWAY)
"""A connection that breaks."""

STALE: Final = "STALE_SEQUENCER"
FEW: Final = 3
"""Times that a request is refused before it works."""
AT_ONCE: Final = 0.5
"""Seconds in which a client that does not wait has answered."""
MANY: Final = 500
"""Values that follow each other at once."""


@dataclass(frozen=True)
class Scenario:
    """A scenario of a client."""

    name: str
    run: Callable[[Program, Deployment], None]
    shards: int

    @property
    def expected(self) -> str:
        """The rule that a client has to keep."""
        return (self.run.__doc__ or "").splitlines()[0]


SCENARIOS: Final[list[Scenario]] = []


def scenario(
    shards: int = 1,
) -> Callable[[Callable[[Program, Deployment], None]], Callable[[Program, Deployment], None]]:
    """Add a scenario."""

    def add(run: Callable[[Program, Deployment], None]) -> Callable[[Program, Deployment], None]:
        SCENARIOS.append(Scenario(run.__name__.replace("_", "-"), run, shards))
        return run

    return add


def connect(client: Program, world: Deployment) -> None:
    """Have the client connect to the first shard."""
    client.shown.clear()
    client.do("connect", address=world.address)


def claim(client: Program, world: Deployment, ranges: int = 2, name: str = "clicks") -> Claim:
    """Have the client register and claim all keys, in some ranges."""
    client.do("register", name=name, inputs=[])
    claimed(client, name, ranges).result()
    with world.changed:
        claims = [granted for granted in world.claims.values() if granted.name == name]
    expect(claims, f"a claim of {name} was expected: " + "; ".join(world.broken))
    return claims[-1]


def claimed(client: Program, name: str = "clicks", ranges: int = 2) -> Pending:
    """Send the client the command to claim."""
    bounds = ["", *(bytes([96 + i]).hex() for i in range(1, ranges)), ""]
    return client.start("claim", name=name, bounds=bounds, **{"as": name})


def advance(client: Program, world: Deployment, which: Claim, *hours: int) -> None:
    """Have the client stage a state."""
    values = [hour * HOUR for hour in hours]
    world.staged(which, values)
    client.do("advance", claim=which.name, micros=values)


def flush(client: Program, which: Claim) -> Pending:
    """Send the client the command to wait until all is durable."""
    return client.start("flush", claim=which.name)


def is_durable(world: Deployment, which: Claim, *hours: int) -> None:
    """Check that the authority has the state that the client calls durable."""
    acked = [value / HOUR for value in which.values]
    if acked != list(hours):
        raise Broken(f"flush was expected to return when {list(hours)} are acknowledged, but the authority has {acked}")


def stands(claim: Claim, values: list[int]) -> bool:
    """Return True when the authority has a state."""
    return claim.values == values


def hours(client: Program, name: str = "clicks") -> list[int]:
    """The hours that the client has shown."""
    with client.changed:
        return [low // HOUR for computation, _, low in client.shown if computation == name]


def expect(condition: object, what: str) -> None:
    """Check what is left in the end."""
    if not condition:
        raise Broken(what)


# -- what works ------------------------------------------------------------------------------------


@scenario()
def a_day(client: Program, world: Deployment) -> None:
    """Register, claim, report, read, release: each once."""
    connect(client, world)
    which = claim(client, world)
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    is_durable(world, which, 1, 2)
    advance(client, world, which, 3, 2)
    flush(client, which).result()
    is_durable(world, which, 3, 2)
    got = client.do("get", name="clicks")
    expect(got.get("low") == 2 * HOUR, f"get was expected to tell low {2 * HOUR}, but told {got}")
    client.do("release", claim="clicks")
    world.only("Register", 1, "as it was commanded")
    world.only("Claim", 1, "as it was commanded")
    world.only("Release", 1, "as it was commanded")


@scenario()
def several_claims_on_one_stream(client: Program, world: Deployment) -> None:
    """All claims of a process at one shard share a report stream."""
    connect(client, world)
    one, two = claim(client, world), claim(client, world, 3, "views")
    advance(client, world, one, 1, 2)
    advance(client, world, two, 3, 4, 5)
    flush(client, one).result()
    flush(client, two).result()
    is_durable(world, one, 1, 2)
    is_durable(world, two, 3, 4, 5)
    expect(len(world.opened) == 1, f"one report stream was expected, but {len(world.opened)} were opened")


@scenario()
def lowering(client: Program, world: Deployment) -> None:
    """A claim may lower its own ranges."""
    connect(client, world)
    which = claim(client, world)
    advance(client, world, which, 5, 6)
    flush(client, which).result()
    advance(client, world, which, 2, 6)
    flush(client, which).result()
    is_durable(world, which, 2, 6)


# -- what was lost ---------------------------------------------------------------------------------


@scenario()
def lost_acknowledgement(client: Program, world: Deployment) -> None:
    """A stream that breaks before the acknowledgement: the full newest state comes again, on a stream with a greater number."""
    connect(client, world)
    which = claim(client, world)
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    world.plans["report"].append(LOST)
    advance(client, world, which, 3, 2)
    flush(client, which).result()
    expect(len(world.opened) > 1, "another report stream was expected")
    expect(
        which.sequencer in world.opened[-1].named,
        "the claim was expected on the new stream again: nobody acknowledged it",
    )
    is_durable(world, which, 3, 2)


@scenario()
def lost_report(client: Program, world: Deployment) -> None:
    """The authority ends a stream for a gap: the client begins anew, with the full state and the number 1."""
    connect(client, world)
    which = claim(client, world)
    metadata = {"field": "report.number", "fix": "open a new stream and send the full state"}
    world.plans["report"].append(Refusal("INVALID_ARGUMENT", grpc.StatusCode.INVALID_ARGUMENT, metadata=metadata))
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    expect(len(world.opened) > 1, "another report stream was expected")
    is_durable(world, which, 1, 2)


@scenario()
def lost_answer_of_a_claim(client: Program, world: Deployment) -> None:
    """A claim of unknown outcome is repeated as it is, under its request_id."""
    connect(client, world)
    client.do("register", name="clicks", inputs=[])
    world.plans["Claim"].extend([Refusal("", AWAY, done=True), Refusal("UNAVAILABLE", AWAY, done=True)])
    claimed(client).result()
    expect(len(world.claims) == 1, f"one claim was expected, under one request_id, but {len(world.claims)} were made")
    world.only("Claim", 3, "twice in vain")


@scenario()
def restart(client: Program, world: Deployment) -> None:
    """The authority says that it goes, ends, and comes back under a greater epoch: reports and watches go on."""
    connect(client, world)
    which = claim(client, world)
    client.do("watch", name="clicks")
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    with world.changed:
        away = types_pb2.GoAway(reason="it stops", retry_after_millis=50)
        for stream in world.reports:
            stream.out.put(workers_pb2.ReportResponse(go_away=away))
    [shard] = world.shards
    shard.stop()
    with world.changed:
        world.computations["clicks"].epoch += 1
    shard.start()
    advance(client, world, which, 4, 5)
    flush(client, which).result()
    is_durable(world, which, 4, 5)
    world.until(lambda: world.watches, "another watch stream")
    world.publish("clicks", 9 * HOUR)
    client.until_seen("clicks", 9 * HOUR)
    world.only("Claim", 1, "since a claim outlives its authority")


@scenario()
def another_deployment(client: Program, world: Deployment) -> None:
    """Another deployment answers at the address: nothing that it says is used."""
    connect(client, world)
    client.do("register", name="clicks", inputs=[])
    client.do("get", name="clicks")
    with world.changed:
        world.token, world.computations["clicks"].low = "another", 77 * HOUR
    client.start("get", name="clicks").error("SERVER_TOKEN_MISMATCH")
    world.broken.clear()  # it names the first one, as it has to


# -- who serves ------------------------------------------------------------------------------------


@scenario(shards=2)
def moved_call(client: Program, world: Deployment) -> None:
    """A call is refused with MOVED: it goes to the address that was told, and so does what follows."""
    connect(client, world)
    client.do("register", name="clicks", inputs=[])
    world.move("clicks", world.shards[1])
    claimed(client).result()
    claims = world.calls_of("Claim")
    expect(claims[-1].shard is world.shards[1], f"the claim was expected at {world.shards[1].address}, as MOVED said")
    [which] = world.claims.values()
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    is_durable(world, which, 1, 2)


@scenario(shards=2)
def moved_report(client: Program, world: Deployment) -> None:
    """Reports are redirected: the full state goes to the other shard, on a stream with a greater number. What stays goes on."""
    connect(client, world)
    which, stays = claim(client, world), claim(client, world, 1, "views")
    advance(client, world, which, 1, 2)
    advance(client, world, stays, 1)
    flush(client, which).result()
    flush(client, stays).result()
    world.move("clicks", world.shards[1])
    advance(client, world, which, 3, 2)
    advance(client, world, stays, 7)
    flush(client, which).result()
    flush(client, stays).result()
    is_durable(world, which, 3, 2)
    is_durable(world, stays, 7)
    with world.changed:
        carriers = [stream.shard for stream in world.opened if which.sequencer in stream.named]
    expect(carriers[-1] is world.shards[1], "the claim was expected on a report stream to the other shard")
    world.only("Claim", 2, "since a claim goes with its computation")


@scenario(shards=2)
def back_again(client: Program, world: Deployment) -> None:
    """A computation goes away and comes back: on the stream of before nothing of it counts, so a new one has its full state."""
    connect(client, world)
    which = claim(client, world)
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    with world.changed:
        for stream in world.reports:
            stream.moved.add("clicks")
    world.computations["clicks"].epoch += 2
    advance(client, world, which, 3, 2)
    flush(client, which).result()
    is_durable(world, which, 3, 2)
    expect(len(world.opened) > 1, "another report stream was expected")


@scenario(shards=2)
def asleep(client: Program, world: Deployment) -> None:
    """A redirect to an epoch below one that was seen is not followed: the client asks where the computation is, with the epoch seen."""
    connect(client, world)
    client.do("register", name="clicks", inputs=[])
    world.computations["clicks"].epoch = 7
    claimed(client).result()
    [which] = world.claims.values()
    other = world.shards[1]
    with world.changed:
        world.lies["clicks"] = types_pb2.Redirect(computation="clicks", address=other.address, epoch=3)
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    is_durable(world, which, 1, 2)
    with world.changed:
        misdirected = [call.method for call in world.calls if call.shard is other and call.method != "Locate"]
        pairs = [
            tuple(call.request.epochs) for call in world.calls_of("Locate") if "clicks" in call.request.computations
        ]
    expect(not misdirected, f"nothing was expected at the shard of the lower epoch but Locate, but {misdirected} came")
    expect((7,) in pairs, f"Locate was expected with the epoch 7 of clicks, but had {pairs}")


# -- who owns --------------------------------------------------------------------------------------


@scenario()
def fenced(client: Program, world: Deployment) -> None:
    """A claim that lost its ranges says STALE_SEQUENCER, reports no more, and is not claimed again by the client itself."""
    connect(client, world)
    which = claim(client, world)
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    world.fence(which, tell=True)
    _is_told_stale(client, world, which)


@scenario()
def fenced_without_a_word(client: Program, world: Deployment) -> None:
    """A lost claim says STALE_SEQUENCER also when only the acknowledgement tells the client of the loss."""
    connect(client, world)
    which = claim(client, world)
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    world.fence(which, tell=False)
    _is_told_stale(client, world, which)


def _is_told_stale(client: Program, world: Deployment, which: Claim) -> None:
    values = [3 * HOUR, 4 * HOUR]
    world.staged(which, values)
    if client.start("advance", claim=which.name, micros=values).outcome() != STALE:
        flush(client, which).error(STALE)
    is_durable(world, which, 1, 2)
    world.only("Claim", 1, "as it was commanded")


@scenario()
def fenced_in_part(client: Program, world: Deployment) -> None:
    """A claim that lost some ranges goes on with the others, on another stream, too."""
    connect(client, world)
    which = claim(client, world, 3)
    advance(client, world, which, 1, 2, 3)
    flush(client, which).result()
    world.fence(which, 0, tell=True)
    for hours in ((4, 5, 6), (7, 8, 9)):
        values = [hour * HOUR for hour in hours]
        world.staged(which, values)
        # It may say, once, that ranges were lost, and stage nothing then.
        outcome = client.start("advance", claim=which.name, micros=values).outcome()
        if outcome == STALE:
            client.do("advance", claim=which.name, micros=values)
        expect(outcome in ("", STALE), f"advance was expected to work, or to say {STALE}, but said {outcome}")
        flush(client, which).outcome()  # it may say again that some are lost
        expected = [HOUR, *values[1:]]
        world.until(partial(stands, which, expected), f"the state {expected}, of which the first range is lost,")
        world.end_streams(LOST)
    world.only("Claim", 1, "as it was commanded")


@scenario()
def refused_in_part(client: Program, world: Deployment) -> None:
    """A range is refused as TOO_FAR_AHEAD: flush says so, the stream goes on, and a later state of it counts."""
    connect(client, world)
    which = claim(client, world)
    which.ahead = 50 * HOUR
    advance(client, world, which, 1, 99)
    flush(client, which).error("TOO_FAR_AHEAD")
    expect(which.values[0] == HOUR, "the other range of the report was expected to count")
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    is_durable(world, which, 1, 2)
    expect(len(world.opened) == 1, "the stream was expected to go on: what is refused in an acknowledgement ends none")


@scenario()
def an_older_report(client: Program, world: Deployment) -> None:
    """OLD_STREAM in an acknowledgement: the claim begins anew with its full state, on a greater stream, or under a greater turn."""
    connect(client, world)
    which = claim(client, world)
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    which.newest = world.opened[-1].number + 4
    advance(client, world, which, 3, 2)
    flush(client, which).result()
    is_durable(world, which, 3, 2)


# -- what is repeated ------------------------------------------------------------------------------


@scenario()
def not_to_be_repeated(client: Program, world: Deployment) -> None:
    """Refusals that never pass, reasons that nobody knows, and calls that may not come twice: each is sent once."""
    connect(client, world)
    world.plans["Register"].append(Refusal("REGISTRATION_CONFLICT", grpc.StatusCode.ALREADY_EXISTS))
    client.start("register", name="clicks", inputs=["views"]).error("REGISTRATION_CONFLICT")
    world.only("Register", 1, "since REGISTRATION_CONFLICT never passes")
    client.do("register", name="clicks", inputs=[])
    world.plans["Claim"].append(Refusal("OLDER_CLAIM"))
    claimed(client).error("OLDER_CLAIM")
    world.only("Claim", 1, "since OLDER_CLAIM says that the run was replaced")
    world.plans["Claim"].append(Refusal("OF_A_LATER_RELEASE"))
    claimed(client).error("OF_A_LATER_RELEASE")
    world.only("Claim", 2, "since a reason that nobody knows may mean anything")
    claimed(client).result()
    world.plans["Release"].append(Refusal("UNAVAILABLE", AWAY, done=True))
    client.start("release", claim="clicks").error("UNAVAILABLE")
    world.only("Release", 1, "since its outcome is not known, and it may not be repeated")


@scenario()
def later(client: Program, world: Deployment) -> None:
    """OVERLOADED with a delay: the call is repeated, and not before the delay is over."""
    connect(client, world)
    client.do("register", name="clicks", inputs=[])
    delay = 0.3
    world.plans["Claim"].extend(Refusal("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED, delay) for _ in range(FEW))
    claimed(client).result()
    world.only("Claim", FEW + 1, "as often as it was refused, and once more")
    _apart(world, "Claim", delay)


@scenario()
def later_for_streams(client: Program, world: Deployment) -> None:
    """Refused report streams are opened again, not before the delay is over, and the state is not lost."""
    connect(client, world)
    which = claim(client, world)
    delay = 0.3
    world.plans["Report"].extend(Refusal("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED, delay) for _ in range(FEW))
    advance(client, world, which, 1, 2)
    flush(client, which).result()
    is_durable(world, which, 1, 2)
    _apart(world, "Report", delay)


@scenario()
def away_for_a_while(client: Program, world: Deployment) -> None:
    """UNAVAILABLE, with a reason and without: a call that may be repeated is."""
    connect(client, world)
    world.plans["Register"].extend([Refusal("UNAVAILABLE", AWAY), LOST, Refusal("SHUTTING_DOWN", AWAY)])
    client.do("register", name="clicks", inputs=[])
    world.only("Register", FEW + 1, "three times in vain")


def _apart(world: Deployment, method: str, delay: float) -> None:
    times = [call.at for call in world.calls_of(method)][: FEW + 1]
    gaps = [after - before for before, after in pairwise(times)]
    expect(
        min(gaps) >= delay,
        f"at least {delay:g} s were expected between two calls of {method}, as RetryInfo says, but they came after {gaps}",
    )


# -- who is slow -----------------------------------------------------------------------------------


@scenario()
def slow_authority(client: Program, world: Deployment) -> None:
    """Acknowledgements that do not come: states wait in the client, conflated, and the newest one arrives."""
    connect(client, world)
    which = claim(client, world)
    with world.changed:
        world.acknowledging = False
    advance(client, world, which, 1, 1)
    world.until(lambda: world.reports and world.reports[-1].newest, "a report")
    waiting = flush(client, which)
    expect(not waiting.comes(AT_ONCE), "flush was expected to wait for the acknowledgement, but returned without one")
    world.acknowledge_all()
    waiting.result()
    with world.changed:
        world.acknowledging = False
    for hour in range(2, MANY):
        advance(client, world, which, hour, hour)
    waiting = flush(client, which)
    world.acknowledge_all()
    waiting.result()
    is_durable(world, which, MANY - 1, MANY - 1)


@scenario()
def monotone(client: Program, world: Deployment) -> None:
    """Values never go back, over a reconnect either, and none is shown of an epoch below one that was seen."""
    connect(client, world)
    client.do("register", name="clicks", inputs=[])
    world.computations["clicks"].epoch = 5
    client.do("watch", name="clicks")
    world.until(lambda: world.watches, "a watch stream")
    world.publish("clicks", 20 * HOUR)
    client.until_seen("clicks", 20 * HOUR)
    with world.changed:
        before = len(world.calls_of("Watch"))
        world.computations["clicks"].low = 15 * HOUR
    world.end_streams(LOST)
    world.until(lambda: len(world.calls_of("Watch")) > before and world.watches, "another watch stream")
    # A watch may leave out the lower value, and then shows nothing of a client that takes it. An
    # answer leaves out none.
    got = client.do("get", name="clicks")
    expect(got.get("low") == 20 * HOUR, f"get was expected to tell low {20 * HOUR}, as watch has, but told {got}")
    world.publish("clicks", 99 * HOUR, epoch=4)
    world.until(lambda: world.watches, "another watch stream")
    world.publish("clicks", 30 * HOUR)
    _shown_in_the_end(client, world, 30)
    expect(99 not in hours(client), "nothing was expected of the epoch 4 after the epoch 5, but its value was shown")


@scenario()
def many_values(client: Program, world: Deployment) -> None:
    """Values that come faster than they are read: some may be left out, none comes late, and the newest is shown."""
    connect(client, world)
    client.do("register", name="clicks", inputs=[])
    client.do("watch", name="clicks")
    world.until(lambda: world.watches, "a watch stream")
    for hour in range(1, MANY):
        world.publish("clicks", hour * HOUR)
    _shown_in_the_end(client, world, MANY - 1)


def _shown_in_the_end(client: Program, world: Deployment, hour: int) -> None:
    """Wait for the newest value, and look at the order of all."""
    client.until_seen("clicks", hour * HOUR)
    shown: Sequence[int] = hours(client)
    expect(list(shown) == sorted(shown), f"values were expected to grow, but {shown} were shown")
