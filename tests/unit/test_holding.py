"""What a shard has of one computation: its states, those of a memory that is not as the store has it, its log, and what is done once at a time."""

from __future__ import annotations

import pytest

from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.holding import (
    NOBODY,
    Taken,
)
from lowwater_authority.engine.holdings import Holdings
from lowwater_authority.engine.logs import SNAPSHOT_AGAIN, SNAPSHOT_BYTES, Log
from lowwater_authority.journal import GRAPH, JournalFailed, LoadedLog, Ownership
from lowwater_authority.ops.observer import Observer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.shards import Deployment, turns


def none_yet() -> Holdings:
    """What a shard holds in the beginning."""
    return Holdings(MemoryJournal(MemoryDisk(), shared=True), Observer(), lambda: True)


@pytest.mark.parametrize("ownership", [NOBODY, Ownership(epoch=1, nonce=7)])
async def test_rule4_nothing_is_held_by_an_ownership_that_is_over(ownership: Ownership) -> None:
    among = none_yet()
    await among.journal.open()
    among.topology = among.topology.register(Spec("x"))
    holding = among.of("x")
    with pytest.raises(JournalFailed, match="x was dropped while its log was taken"):
        holding.hold(Taken(ownership, LoadedLog(0, None, [])))
    taken = await holding.own()
    holding.disown(ownership)
    assert holding.hold(taken) is holding.held
    assert holding.ownership == taken.ownership
    assert holding.ownership.epoch


@pytest.mark.parametrize("name", ["x", GRAPH])
def test_a_snapshot_that_was_refused_is_tried_again_later(name: str) -> None:
    log = Log(name)
    log.behind = SNAPSHOT_BYTES + 1
    assert log.due(0)
    log.snapshot_refused(log.behind, SNAPSHOT_BYTES, now=0)
    assert not log.due(SNAPSHOT_AGAIN - 1)
    assert log.due(SNAPSHOT_AGAIN)
    log.snapshot_taken(7, log.behind, 10)
    assert (log.behind, log.snapshot_position, log.refused, log.due(SNAPSHOT_AGAIN)) == (0, 7, 0, False)


async def test_rule7_nothing_is_remembered_of_names_that_nobody_has_registered(deployment: Deployment) -> None:
    one = await deployment.start("one:1")
    for number in range(10):
        await one.shard.serve_those([f"nobody-{number}", "nor-me"])
    await turns()
    assert one.shard.held.known("nobody-0") is None
    assert one.shard.held.known("nor-me") is None
