"""A list of moves that go wrong, and when, made from a seed, so that it can be shortened and repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final


@dataclass(frozen=True)
class Move:
    at: float
    kind: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        facts = " ".join(f"{key}={value}" for key, value in self.facts.items())
        return f"{self.at:8.3f} s  {self.kind} {facts}"


COMMON: Final = {
    # kind: how often, against the others
    "bad network": 8,
    "hostile reports": 4,
    "cut": 4,
    "bad store": 8,
    "crash a worker": 5,
    "pause a worker": 5,
    "replace a paused worker": 5,
    "replace a run": 4,
    "share out anew": 5,
    "crash a reader": 2,
    "pause a reader": 2,
    "reset": 1,
    "drop": 2,
    "new inputs": 2,
}

ALONE = {"crash the authority": 6, "pause the authority": 3, "stop the authority": 2, "turn the authority's clock": 1}

SHARDED: Final = {
    "crash a shard": 6,
    "freeze a shard": 5,
    "replace a frozen shard": 3,
    "restart a shard": 3,
    "scale in": 2,
    "scale out": 4,
    "drain": 2,
    "end the drains": 2,
    "pin": 2,
    "unpin": 1,
    "turn a shard's clock": 1,
    "cut a shard off from clients": 2,
    "cut a shard off from the store": 4,
    "take the store away": 2,
    "fail the store over": 4,
    "make the store forget": 4,
    "put a backup back": 1,
    "lose views": 2,
}

DAMAGE: Final = "damage a log"
"""A move that happens so many times in every world whose store keeps its word otherwise."""

DAMAGES: Final = 2

DAMAGE_GRAPH: Final = "damage the graph"
"""A move that happens as often in some worlds with several shards: each of them has all of the graph in memory."""

RETIRE: Final = "retire"
"""A move that happens some times in worlds with slices: an operator retires a slice, or all of them."""

RETIREMENTS: Final = 4

SPLIT: Final = "split a slice"

RESET: Final = "reset"
RESETS: Final = 2

HOLD: Final = "hold a slice"
"""A move in worlds with slices: the workers of one slice stop, and when others have gone on, somebody adds an input behind it."""

HOLDS: Final = 2

INPUT: Final = "new inputs"
INPUTS: Final = 3
"""The number of tries to give a computation another input in worlds with slices, besides; it has it once."""

VISIT: Final = "a visit"
"""A guest registers a computation, has its tasks done, and drops it for good. ``crash``: a process of the authority dies at that moment."""

VISITS: Final = 4

HALF: Final = "fail a request half way"
"""Some of the next requests fail as none ever should, when they have changed a computation."""

LATE: Final = "late messages"
"""Connections break for some seconds, and what was sent over them arrives up to a minute later.

``brief``: this move also shortens the delays that an earlier one has set.
"""

LAG: Final = "let the replica lag"
"""The store executes writes, shows them to all readers and acknowledges none, until its replica catches up or takes over."""

DIE_BEHIND: Final = "crash a shard behind a write"
"""A shard dies when one of its next writes has ended, so also between the two writes of a heal."""

HARSH: Final = {LATE: 6, INPUT: 3}
"""Moves that happen in every harsh world besides. Where there are slices, operators retire three times as many."""

REPLICATED: Final = {LAG: 16, DIE_BEHIND: 6}
"""Moves that happen besides in harsh worlds with several shards, which use a store across the network."""

OPERATORS: Final = (RESET, "drop", INPUT, RETIRE, SPLIT, HOLD)
"""Moves of operators. In harsh worlds the replica may lag, and connections may break, during them."""

MASTERS_SEATS: Final = 4

KINDS: Final = (
    *(*COMMON, *ALONE, *SHARDED, DAMAGE, DAMAGE_GRAPH, RETIRE, SPLIT, HOLD),
    *(LATE, LAG, DIE_BEHIND, VISIT, HALF),
)

WEATHER: Final = ("bad network", "bad store", "hostile reports", LATE)

GAP: Final = 1.5


def is_sharded(seed: int) -> bool:
    return seed % 2 == 1


def is_weak(seed: int) -> bool:
    return Random(f"strength of {seed}").random() < 0.25


def is_budgeted(seed: int) -> bool:
    return seed % 5 == 2


def is_sliced(seed: int) -> bool:
    """Return True if computations are cut into slices in the world of a seed: in two of seven, where the store keeps its word."""
    return seed % 7 in (1, 4) and not is_weak(seed)


def is_rotten(seed: int) -> bool:
    return seed % 10 == 9


def is_harsh(seed: int) -> bool:
    return seed % 4 in (1, 2)


def is_visited(seed: int) -> bool:
    return seed % 9 in (0, 7)


def is_hasty(seed: int) -> bool:
    """Return True if new workers claim a retired slice at once in the world of a seed, if it is harsh.

    Every third world is hasty, whatever else it is.
    """
    return seed % 3 == 0


def schedule(
    random: Random,
    moves: int,
    *,
    sharded: bool,
    rotten: bool = False,
    sliced: bool = False,
    harsh: bool = False,
    hasty: bool = False,
    visited: bool = False,
) -> list[Move]:
    """Return what will happen. Everything that a move leaves open is decided here, by ``pick`` as well: a number from 0 to 1."""
    at = 5.0
    scheduled = []
    kinds = COMMON | (SHARDED if sharded else ALONE)
    if harsh:
        kinds |= HARSH | (REPLICATED if sharded else {})
    for _ in range(moves):
        at += random.expovariate(1 / GAP)
        kind = random.choices(list(kinds), weights=list(kinds.values()))[0]
        scheduled.append(Move(round(at, 3), kind, _facts(kind, random)))
        if harsh and kind in OPERATORS:
            scheduled += _beside(scheduled[-1], random, sharded=sharded, hasty=hasty)
    for kind in (DAMAGE, DAMAGE_GRAPH) if rotten else (DAMAGE,):
        scheduled += [Move(round(random.uniform(5.0, at), 3), kind, _facts(kind, random)) for _ in range(DAMAGES)]
    if sliced:
        for kind in (
            *[RETIRE] * RETIREMENTS * (3 if harsh else 1),
            *[INPUT] * INPUTS,
            *[SPLIT] * RETIREMENTS,
            *[RESET] * RESETS,
            *[HOLD] * HOLDS,
        ):
            when = random.uniform(5.0, at)
            scheduled.append(Move(round(when, 3), kind, _facts(kind, random)))
            if harsh:
                scheduled += _beside(scheduled[-1], random, sharded=sharded, hasty=hasty)
    for kind in [VISIT, HALF] * VISITS if visited else []:
        scheduled.append(Move(round(random.uniform(5.0, at), 3), kind, _facts(kind, random)))
    return sorted(scheduled, key=lambda move: move.at)


def _beside(move: Move, random: Random, *, sharded: bool, hasty: bool) -> list[Move]:
    """Return what happens while an operator acts in a harsh world.

    A request takes seconds to reach a slice: messages come late for as long, those of shards where
    there are several. In a hasty world, new workers mostly claim a retired slice at once: before
    the slice repeats to its root a retirement that is still on its way.
    """
    beside = ((), (LATE,), (LATE,), (LAG,), (LAG,), (LATE, LAG)) if sharded else ((), (LATE,), (LATE,))
    claimed = hasty and move.kind == RETIRE and random.random() < 0.8
    kinds = (LATE,) if claimed else random.choice(beside)
    concurrent = [Move(round(move.at - 0.2 * random.random(), 3), kind, _facts(kind, random)) for kind in kinds]
    for facts in (late.facts for late in concurrent if late.kind == LATE):
        facts |= {
            "seconds": round(random.uniform(2, 12), 3),
            "pick": round(random.uniform(0, 0.5 if sharded else 1), 4),
        }
    if claimed:
        move.facts.update(claimed=True, late=False)
        concurrent[0].facts.update(sender=0.6, pick=0.0, most=4.0, brief=True)
    return concurrent


def _facts(kind: str, random: Random) -> dict[str, Any]:
    def seconds(low: float, high: float) -> float:
        return round(low * math.exp(random.random() * math.log(high / low)), 3)

    def chance() -> float:
        return round(random.random(), 4)

    match kind:
        case "crash the authority":
            return {"down": seconds(0.01, 5), "keep": random.randrange(3)}
        case "stop the authority":
            return {"down": seconds(0.1, 5)}
        case "pause the authority":
            return {"seconds": seconds(0.05, 25)}
        case "turn the authority's clock":
            return {"by": random.choice([-3600, -5, 5, 120])}
        case "turn a shard's clock":
            return {"pick": chance(), "by": random.choice([-3600, -5, 5, 120])}
        case "crash a shard" | "restart a shard":
            return {"pick": chance(), "down": seconds(0.05, 8)}
        case "freeze a shard" | "replace a frozen shard":
            return {"pick": chance(), "seconds": seconds(0.2, 25)}
        case "cut a shard off from clients" | "cut a shard off from the store":
            return {"pick": chance(), "seconds": seconds(0.3, 12)}
        case "take the store away":
            return {"seconds": seconds(0.2, 8)}
        case "pin":
            return {"pick": chance(), "shard": chance()}
        case "fail the store over":
            return {"views": random.randrange(3)}
        case "make the store forget":
            return {"writes": int(seconds(1, 60)), "crash": chance() < 0.3, "pick": chance()}
        case "put a backup back":
            return {"old": seconds(1, 20), "crash": chance() < 0.3, "pick": chance()}
        case "lose views":
            return {"views": random.randrange(1, 6)}
        case "bad network":
            return {
                "seconds": seconds(1, 15),
                "slow": chance() / 4,
                "slowness": seconds(0.1, 12),
                "lose_request": random.choice([0, 0.05, 0.3]),
                "lose_response": random.choice([0, 0.05, 0.3]),
                "repeat": random.choice([0, 0.1, 0.5]),
                "break": random.choice([0, 0.005, 0.05]),
            }
        case "hostile reports":
            return {"seconds": seconds(1, 10), "lost": 0.05, "doubled": 0.2, "swapped": 0.1}
        case "cut":
            return {"pick": chance(), "seconds": seconds(0.5, 20)}
        case "bad store":
            return {
                "seconds": seconds(0.5, 10),
                "slow": random.choice([0, 0.2, 0.5]),
                "slowness": seconds(0.05, 5),
                "failed": random.choice([0, 0.05, 0.3]),
                "lost": random.choice([0, 0.05, 0.3]),
                "written": random.choice([0, 0.05, 0.3]),
                "hang": random.random() < 0.1,
            }
        case "late messages":
            return {
                "seconds": seconds(1, 10),
                "late": random.choice([0.01, 0.05, 0.3]),
                "most": seconds(2, 60),
                "sender": random.choice([0.03, 0.1, 0.8]),
                "pick": chance() if chance() < 0.6 else None,
                "brief": False,
            }
        case "let the replica lag":
            return {
                "seconds": seconds(0.3, 6),
                "fails": chance() < 0.7,
                "kept": random.choice([0.0, 0.0, chance()]),
                "with": [[chance() < 0.4, random.choice([0, 0, 1, 2, 3])] for _ in range(MASTERS_SEATS)],
                "down": seconds(0.05, 5),
                "views": random.randrange(2),
            }
        case "crash a shard behind a write":
            return {"pick": chance(), "writes": random.randrange(1, 5)}
        case "crash a worker" | "crash a reader":
            return {"pick": chance()}
        case "pause a worker" | "pause a reader" | "replace a paused worker":
            return {"pick": chance(), "seconds": seconds(0.2, 25)}
        case "hold a slice":
            return {"pick": chance(), "seconds": seconds(4, 20)}
        case "retire":
            return {"pick": chance(), "late": chance() < 0.7, "claimed": False}
        case "a visit":
            return {"pick": chance(), "crash": chance() < 0.5}
        case "fail a request half way":
            return {"requests": random.randrange(1, 4)}
        case "share out anew":
            return {"pick": chance(), "cut": random.randrange(1 << 30)}
        case _:
            return {"pick": chance()}


def length(moves: Sequence[Move]) -> float:
    return moves[-1].at + 5.0 if moves else 10.0


def dump(seed: int, moves: Sequence[Move], seconds: float) -> str:
    return json.dumps({"seed": seed, "seconds": seconds, "moves": [asdict(move) for move in moves]})


def load(text: str) -> tuple[int, list[Move], float]:
    content = json.loads(text)
    return content["seed"], [Move(**move) for move in content["moves"]], content["seconds"]
