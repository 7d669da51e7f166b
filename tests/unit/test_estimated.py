"""An exact computation never reads an estimated one, however the two come together."""

from __future__ import annotations

from itertools import count

import pytest

from lowwater import errors
from lowwater.cli.render import line, status_table, view_record
from lowwater.core.why import explain
from lowwater.views import Ranges, WatermarkView
from lowwater.watermark import Watermark
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.times import MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.rpc import codec
from tests.kit.shards import Deployment

GUESS = Spec("guess", estimated=True)
NOON = Watermark(1_357_732_800_000_000)


HOURLY = Spec("hourly", ("guess",))
DAILY = Spec("daily", ("hourly",))


def estimated(topology: Topology) -> set[str]:
    return {name for name in topology.computations if topology.is_estimated(name)}


def healed_of_two_halves() -> list[Topology]:
    """Two shards knew different halves of a graph that the store had lost: neither could refuse."""
    one = Topology().register(HOURLY).register(DAILY).register(Spec("sure"))
    other = Topology().register(GUESS)
    return [one.merged(other), other.merged(one)]


def test_what_becomes_a_reader_of_an_estimate_by_a_heal_is_exact_no_longer() -> None:
    for healed in healed_of_two_halves():
        assert estimated(healed) == {"guess", "hourly", "daily"}
        assert estimated(Topology.decode(healed.encode())) == {"guess", "hourly", "daily"}
        assert healed.merged(Topology().register(HOURLY)) is healed
        assert codec.computation_message(healed.get("daily"), healed).estimated
        with pytest.raises(errors.EstimatedInput):
            healed.register(Spec("weekly", ("daily",)))


async def test_a_guess_is_no_promise_after_the_store_has_lost_that_it_is_one(deployment: Deployment) -> None:
    one, other = await deployment.start("one:1"), await deployment.start("other:1")
    await deployment.settle(one, other)
    await one.shard.graph.register(Spec("base"))
    await other.shard.confirmation.refresh()
    copy = deployment.disk.backup()
    name = next(name for name in map("g{}".format, count()) if one.cluster.mine(name))
    await one.shard.graph.register(Spec(name, estimated=True))
    grant = await one.claim(name)
    assert await one.report(name, grant, 10) == []
    deployment.disk.put_back(copy)
    # Another shard, which has not heard of it, is told that it is exact, and of an exact reader, before its owner has looked.
    await other.shard.graph.register(Spec(name))
    await other.shard.graph.register(Spec("hourly", (name,)))
    await deployment.settle(one, other, seconds=6)
    for process in (one, other):
        assert estimated(process.shard.topology) == {name, "hourly"}
    # It is repaired: what it has published by then is not compared with anything, and binds nobody.
    owner = deployment.owner("hourly")
    spec = await owner.shard.graph.set_inputs("hourly", ["base"])
    assert (spec.incarnation, spec.input_version) == (2, 2)
    assert estimated(owner.shard.topology) == {name}
    assert owner.low("hourly") == MIN
    grant = await owner.claim("hourly")
    base = Fold(2, (1,))
    [(_, refused)] = await owner.report("hourly", grant, 11, Fold(1, (1,)))
    assert refused.reason == "INPUT_VERSION"
    assert await owner.report("hourly", grant, 12, base) == []


async def test_rule4_what_another_shard_has_granted_meanwhile_becomes_no_estimate(deployment: Deployment) -> None:
    one, other = await deployment.start("one:1"), await deployment.start("other:1")
    await deployment.settle(one, other)
    name = next(name for name in map("g{}".format, count()) if one.cluster.mine(name))
    await one.shard.graph.register(Spec(name))
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    await other.shard.confirmation.refresh()
    assert await other.shard.takeover.serve(name)
    await other.claim(name)
    with pytest.raises(errors.RegistrationConflict):
        await one.shard.graph.register(Spec(name, estimated=True))
    assert estimated(other.shard.topology) == set()


VIEW = WatermarkView("guess", registered=True, incarnation=1, low=NOON, estimated=True)


def test_everything_that_shows_it_says_so() -> None:
    now = NOON.micros + 60_000_000
    assert view_record(VIEW, now)["estimated"] is True
    assert f"{NOON} (estimated)" in status_table([VIEW], now, {})
    assert f"{NOON} (estimated)" in line(VIEW, now, VIEW)
    sentence = str(explain("guess", {"guess": VIEW}, now, Ranges((), 0)))
    assert sentence.startswith("guess, which is only estimated, is at 12:00 UTC, 1 min behind")
    assert f"\nguess, which is only estimated, stands at {NOON}" in sentence
