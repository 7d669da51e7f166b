"""A tree of authorities, simulated: how far the root lags, what each node carries, how long a loss lasts, and what breaks first.

Nothing here is measured. A child serves a slice of a computation's key space, and reports its durable minimum to the node above; the root's map of
intervals is the map of the slices. Each node is the commit loop of one authority: a round takes what has arrived, journals it, publishes the minimum and
acknowledges; the next round starts when this one has ended. A sender has one message under way, and sends again one spacing later, or when it is
acknowledged if that comes later. What a message, an update, a round and a delivery cost comes from measured figures of one shard: see :class:`Costs`.

Events are the messages of workers and nodes, not single key ranges: a worker's message carries all of its ranges, which count by what they cost and weigh.
Nothing goes down the tree but acknowledgements, so a level is simulated after the one below it, node by node. Time is virtual, in seconds; the same seed
gives the same figures.

``python -m benchmarks.tree_model`` prints tables, ``--json`` one object a line (docs/results/tree_model.jsonl); docs/scale.md tells what follows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

import numpy as np

from benchmarks.result import Result, Spread

UNKNOWN: Final = -math.inf
"""The value of who has not reported: it holds all others."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that the work of one authority takes, from the kept lines of the benchmarks (docs/results/benchmarks.jsonl)."""

    hop: float = 220e-6
    """gRPC one way, on the loopback: half of the 440 us in docs/performance.md. A real network comes on top."""
    message: float = 296e-6
    """The event loop for one message: `batches`, 3,377 messages of one update a second."""
    update: float = 0.0889e-6
    """The event loop and the journal for one more update in it: `ingest`, 8.44 M a second in messages of 10,000."""
    round: float = 415e-6
    """What a round takes beside its messages and its sync: `latency` has 1.38 ms from end to end, less two hops, a message and a sync."""
    sync: float = 230e-6
    """The write and sync of a round, median (docs/performance.md)."""
    sync_sigma: float = 0.623
    """Of its logarithm: `latency` has 2.13 ms at p99."""
    stall_share: float = 0.0
    """How many rounds meet a slow sync. `scale` has 19.8 ms at p99 with ten million ranges, while the kernel writes back: one in a hundred."""
    stall: float = 18e-3
    delivery: float = 65.7e-6
    """A new value to one reader: `fanout`."""


MEASURED: Final = Costs()
STALLING: Final = replace(MEASURED, stall_share=0.01)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a loss takes, in seconds."""

    detection: float = 1.5
    """Silence after which a shard counts as dead."""
    take: float = 0.164
    """From then until another shard has taken over: `failover`, taken less noticed."""
    find: float = 0.344
    """From then until its clients are there and have reported: `failover`, new less taken."""
    replay: float = 0.175e-6
    """For each key range: `recovery`, ten million against none."""
    client: float = 1.19e-3
    """For each client that comes back: `herd`, 2.37 s for 2,000."""

    def outage(self, at: float, ranges: int) -> Outage:
        """Return how long a node is away that is lost at ``at`` and holds so many ranges."""
        return Outage(at, at + self.detection + self.take + self.find + self.replay * ranges, self.client)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is away; what is under way to it is lost, and its senders come back one after the other."""

    start: float
    end: float
    each: float


class Steps(NamedTuple):
    """A value that only grows: ``values[i]`` holds from ``times[i]`` on."""

    times: list[float]
    values: list[float]

    def at(self, when: float) -> float:
        """Return the value at a time."""
        index = bisect_right(self.times, when) - 1
        return self.values[index] if index >= 0 else UNKNOWN

    def reaches(self, value: float) -> float:
        """Return when the value is that far; infinite if it never is."""
        return next((when for when, each in zip(*self, strict=True) if each >= value), math.inf)


@dataclass(slots=True)
class Sender:
    """Who reports to a node: a worker, whose oldest work is always now, or a node below with its published minimum."""

    first: float
    spacing: float
    updates: int = 1
    """Key ranges of a message."""
    source: Steps | None = None
    """Without one it is a worker."""
    told: int = -1
    """Which step of the source was sent last."""

    def next(self, when: float, *, again: bool = False) -> tuple[float, float] | None:
        """Return when it sends next, not before ``when``, and what; None if there is nothing new. ``again`` repeats the newest."""
        if self.source is None:
            return when, when
        times, values = self.source
        newest = bisect_right(times, when) - 1
        index = max(newest, self.told + (not again), 0)
        if index >= len(times):
            return None
        self.told = index
        return max(when, times[index]), values[index]


@dataclass(slots=True)
class Node:
    """What one authority did."""

    senders: int
    until: float
    ranges: int = 0
    published: Steps = field(default_factory=lambda: Steps([], []))
    sent: int = 0
    acknowledged: int = 0
    lost: int = 0
    """Sent while it was away, or not yet durable when it was lost; each was sent again."""
    waiting: int = 0
    """Sent, or planned, and not taken at the end."""
    updates: int = 0
    rounds: int = 0
    busy: float = 0.0
    """Seconds of its core, the journal's thread included: measured processes take the whole of a round's time."""
    deliveries: int = 0

    def core(self) -> float:
        """Share of a core."""
        return self.busy / self.until

    def messages(self) -> float:
        """Messages a second that it took."""
        return self.acknowledged / self.until

    def received(self) -> float:
        """Bytes a second that came from below."""
        return (self.acknowledged * MESSAGE_BYTES + self.updates * UPDATE_BYTES) / self.until

    def delivered(self) -> float:
        """Bytes a second to readers, and acknowledgements."""
        return (self.acknowledged + self.deliveries) * MESSAGE_BYTES / self.until

    def memory(self) -> float:
        """Bytes that it holds."""
        return memory(self.ranges, self.senders)


MESSAGE_BYTES: Final = 110
"""A report of one range is 36 to 42 bytes of protobuf; with frames of gRPC, HTTP/2, TCP and IP."""
UPDATE_BYTES: Final = 12
"""A handle and a value."""
BYTES_A_RANGE: Final = ((1e5, 60.3), (5e5, 52.2), (1e7, 36.5))
"""`scale`."""
EMPTY_BYTES: Final = 87.3e6
CLIENT_BYTES: Final = 36e3
"""For each process that reports (docs/operations.md)."""


def memory(ranges: int, senders: int) -> float:
    """Return what a process with so many ranges and streams holds, in bytes."""
    known, bytes_each = zip(*BYTES_A_RANGE, strict=True)
    each = float(np.interp(math.log(max(ranges, 1)), np.log(known), bytes_each))
    return EMPTY_BYTES + each * ranges + CLIENT_BYTES * senders


def node(
    senders: Sequence[Sender],
    costs: Costs,
    until: float,
    random: Random,
    *,
    readers: int = 0,
    outage: Outage | None = None,
) -> Node:
    """Run one authority until a time."""
    done = Node(len(senders), until, sum(sender.updates for sender in senders))
    queue: list[tuple[float, int, float, float]] = []  # arrival, sender, when it was sent, value

    def leave(index: int, when: float, *, again: bool = False) -> None:
        found = senders[index].next(when, again=again)
        if found is not None:
            done.sent += 1
            heappush(queue, (found[0] + costs.hop, index, found[0], found[1]))

    for index, sender in enumerate(senders):
        leave(index, sender.first)
    values = np.full(len(senders), UNKNOWN)
    low, free = UNKNOWN, 0.0
    while queue:
        begin = max(free, queue[0][0])
        if begin > until:
            break
        taken = []
        while queue and queue[0][0] <= begin:
            taken.append(heappop(queue))
        updates = sum(senders[index].updates for _, index, _, _ in taken)
        work = costs.round + len(taken) * costs.message + updates * costs.update
        end = begin + work + _sync(costs, random)
        if outage is not None and end > outage.start:
            lost = sorted([*taken, *queue])
            queue.clear()
            done.lost += len(lost)
            for rank, (_, index, _, _) in enumerate(lost):
                leave(index, outage.end + rank * outage.each, again=True)
            free, outage = outage.end, None
            continue
        for _, index, _, value in taken:
            values[index] = value
        done.rounds += 1
        done.acknowledged += len(taken)
        done.updates += updates
        done.busy += work + costs.sync
        free = end
        least = float(values.min())
        if least > low:
            low = least
            done.published.times.append(end)
            done.published.values.append(low)
            done.deliveries += readers
            done.busy += readers * costs.delivery
            free += readers * costs.delivery
        for _, index, sent, _ in taken:
            leave(index, max(sent + senders[index].spacing, end + costs.hop))
    done.waiting = len(queue)
    return done


def _sync(costs: Costs, random: Random) -> float:
    spent = costs.sync
    if costs.sync_sigma:
        spent *= random.lognormvariate(0.0, costs.sync_sigma)
    if costs.stall_share and random.random() < costs.stall_share:
        spent += costs.stall
    return spent


class Lag(NamedTuple):
    """How old a published value is, in seconds."""

    p50: float
    p99: float


def lag(published: Steps, since: float, until: float) -> Lag:
    """Return how far a value is behind the truth, which is that everything until now is done, at evenly spaced times."""
    if not published.times or published.times[0] > since:
        return Lag(math.inf, math.inf)
    when = np.linspace(since, until, 20_001)
    index = np.searchsorted(published.times, when, side="right") - 1
    behind = when - np.asarray(published.values)[index]
    return Lag(float(np.percentile(behind, 50)), float(np.percentile(behind, 99)))


WIDE: Final = 10_000
NARROW: Final = 100
"""Key ranges of a worker."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A tree, or without fans one authority: ``fans`` are how many nodes report to one of the level above, from the root."""

    ranges: int
    fans: tuple[int, ...] = ()
    per_worker: int = WIDE
    """Key ranges of a worker, and so of a message."""
    spacing: float = 1.0
    """Seconds between two reports of a worker."""
    up: float = 0.02
    """The same between two reports of a node."""
    readers: int = 1
    """Of the root."""

    @property
    def workers(self) -> int:
        """How many report to the lowest level."""
        return math.ceil(self.ranges / self.per_worker)

    @property
    def leaves(self) -> int:
        """How many nodes the lowest level has."""
        return math.prod(self.fans)

    @property
    def name(self) -> str:
        """What to call it."""
        return " x ".join(str(fan) for fan in self.fans) if self.fans else "flat"

    @property
    def label(self) -> str:
        """What its figures begin with."""
        levels = ("flat", "two", "three")[len(self.fans)]
        return levels if self.per_worker == WIDE else f"narrow_{levels}"

    def warm(self) -> float:
        """From when on the figures count: all have reported, and again; who is overloaded is as far behind as it will be."""
        all_at_once = math.ceil(self.workers / self.leaves) * (MEASURED.message + self.per_worker * MEASURED.update)
        return 2 * max(self.spacing, 2 * all_at_once) + (len(self.fans) + 1) * (self.up + 0.1)


class Loss(NamedTuple):
    """The first node of a level is lost; 0 is the root."""

    level: int
    at: float
    recovery: Recovery


Levels = list[list[Node]]


def simulate(plan: Plan, costs: Costs, until: float, *, seed: int = 1, loss: Loss | None = None) -> Levels:
    """Return all nodes by level, the root's first."""

    def run(level: int, index: int, senders: list[Sender]) -> Node:
        outage = None
        if loss is not None and (loss.level, 0) == (level, index):
            outage = loss.recovery.outage(loss.at, sum(sender.updates for sender in senders))
        random = Random(f"{seed} {level} {index}")
        return node(senders, costs, until, random, readers=plan.readers * (level == 0), outage=outage)

    depth = len(plan.fans)
    first = Random(f"{seed} first")
    nodes = [
        run(
            depth,
            leaf,
            [
                Sender(first.uniform(0, plan.spacing), plan.spacing, plan.per_worker)
                for _ in range(leaf, plan.workers, plan.leaves)
            ],
        )
        for leaf in range(plan.leaves)
    ]
    found = [nodes]
    for level, fan in reversed(list(enumerate(plan.fans))):
        below, nodes = nodes, []
        for at in range(0, len(below), fan):
            senders = [
                Sender(_starts(each, first.uniform(0, plan.up)), plan.up, 1, each.published)
                for each in below[at : at + fan]
            ]
            nodes.append(run(level, len(nodes), senders))
        found.insert(0, nodes)
    return found


def _starts(below: Node, phase: float) -> float:
    """Return when a node reports first: all know something at about the same time, and would go on in step."""
    return phase + (below.published.times[0] if below.published.times else 0.0)


def recovered(levels: Levels, at: float) -> float:
    """Return the seconds from a time until the root publishes a value that is newer."""
    return levels[0][0].published.reaches(at) - at


# What there is to find out ----------------------------------------------------------------------------------------------------------

STREAMS: Final = 8_192
"""Report streams of a process (docs/guarantees.md)."""
APPENDS: Final = 20_000
"""Appends a second of one Redis, assumed; docs/shards.md says some thousand rounds a second."""
STORE_BYTES: Final = 250e6
"""Bytes a second of one Redis with its file, assumed."""
MEMORY: Final = 8e9
"""Bytes of a process, assumed."""
NETWORK: Final = 1.25e9
"""Bytes a second of a machine, assumed: 10 Gbit/s."""
MASS: Final = 0.646e-3
"""What a report with a histogram takes more than one without, in seconds: `growth`, at 100 claims as at 10,000."""
UPS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
HALF: Final = 0.5


def spaced(plan: Plan, costs: Costs = MEASURED) -> Plan:
    """Return the plan with the least spacing at which messages take half of the core of no node above the children."""
    widest = max(plan.fans, default=0)
    fit = (up for up in UPS if widest / up * costs.message <= HALF)
    return replace(plan, up=next(fit, UPS[-1]))


PLANS: Final = tuple(
    spaced(Plan(ranges, fans, per_worker))
    for ranges, fans, per_worker in (
        (10**5, (), WIDE),
        (10**6, (), WIDE),
        (10**6, (4,), WIDE),
        (5 * 10**6, (), WIDE),
        (10**7, (), WIDE),
        (10**7, (4,), WIDE),
        (10**7, (64,), NARROW),
        (10**7, (8, 8), NARROW),
        (10**8, (), WIDE),
        (10**8, (25,), WIDE),
        (10**8, (5, 5), WIDE),
        (10**9, (), WIDE),
        (10**9, (240,), WIDE),
        (10**9, (16, 15), WIDE),
    )
)

EARLIER: Final = (
    ("100 x 100, 20/10 ms", Plan(10**6, (100,), 100, 0.02, 0.01), (50, 72)),
    ("100 x 100, 50/10 ms", Plan(10**6, (100,), 100, 0.05, 0.01), (77, 92)),
    ("100 x 100, 1000/100 ms", Plan(10**6, (100,), 100, 1.0, 0.1), (1095, 1119)),
    ("flat, 1000 ms", Plan(10**6, (), 100, 1.0), (1007, 1026)),
    ("flat, 500 ms", Plan(10**6, (), 100, 0.5), (636, 750)),
)
"""An earlier simulation, of 10,000 children with a hundred ranges each, and what it said (p50, p99, ms). It let a node take 20,000 messages a second."""

QUICKER: Final = replace(MEASURED, message=50e-6)
"""The nodes of the earlier simulation."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of something is used up."""

    what: str
    figure: float
    of: float
    unit: str

    @property
    def share(self) -> float:
        """The greatest is what breaks first."""
        return self.figure / self.of

    def __str__(self) -> str:
        return f"{self.what}: {_short(self.figure)} of {_short(self.of)} {self.unit} ({self.share:.0%})"


def name_of(level: int, depth: int) -> str:
    """Return what the nodes of a level are called."""
    return "root" if level == 0 else "child" if level == depth else "inner node"


def refused(plan: Plan) -> bool:
    """Whether a node has more senders than streams: then there is nothing to simulate."""
    return math.ceil(plan.workers / plan.leaves) > STREAMS or max(plan.fans, default=0) > STREAMS


def limits(plan: Plan, levels: Levels) -> list[Limit]:
    """Return what is used up how far, the scarcest first. Of a level its busiest node counts."""
    depth = len(plan.fans)
    found = []
    for level, nodes in enumerate(levels):
        where = name_of(level, depth)
        found += [
            Limit(f"core of a {where}", max(each.core() for each in nodes), 1.0, "cores"),
            Limit(
                f"core of a {where} with heuristic watermarks",
                max(each.core() + each.messages() * MASS for each in nodes),
                1.0,
                "cores",
            ),
            Limit(f"streams of a {where}", max(each.senders for each in nodes), STREAMS, "streams"),
            Limit(f"memory of a {where}", max(each.memory() for each in nodes), MEMORY, "bytes"),
            Limit(
                f"network of a {where}", max(each.received() + each.delivered() for each in nodes), NETWORK, "bytes/s"
            ),
        ]
    everyone = [each for nodes in levels for each in nodes]
    if depth:
        found += [
            Limit("appends of one Redis for all", sum(each.rounds / each.until for each in everyone), APPENDS, "1/s"),
            Limit(
                "bytes of one Redis for all",
                sum(each.updates / each.until for each in everyone) * UPDATE_BYTES,
                STORE_BYTES,
                "bytes/s",
            ),
        ]
    return sorted(found, key=lambda each: -each.share)


@dataclass(frozen=True, slots=True)
class Found:
    """What a plan comes to."""

    plan: Plan
    levels: Levels
    lags: list[Lag]
    """By level, the root's first; of the others the median node."""
    stalled: Lag
    """At the root, where one sync in a hundred is slow."""
    limits: list[Limit]


def examine(plan: Plan, *, seed: int = 1, seconds: float = 4.0) -> Found:
    """Return the figures of a plan, over some seconds behind the warm-up."""
    since = plan.warm()
    seconds = max(seconds, since)
    until = since + seconds
    levels = simulate(plan, MEASURED, until, seed=seed)
    lags = []
    for nodes in levels:
        each = [lag(one.published, since, until) for one in nodes]
        lags.append(Lag(float(np.median([one.p50 for one in each])), float(np.median([one.p99 for one in each]))))
    stalled = lag(simulate(plan, STALLING, until, seed=seed)[0][0].published, since, until)
    return Found(plan, levels, lags, stalled, limits(plan, levels))


def losses(plan: Plan, detection: float, *, seed: int = 1) -> dict[str, float]:
    """Return the seconds until the root is past the moment of a loss, by what was lost; "none" is without one."""
    at = plan.warm()
    recovery = Recovery(detection)
    until = at + 12.0
    found = {"none": recovered(simulate(plan, MEASURED, until, seed=seed), at)}
    for level in range(len(plan.fans), -1, -1):
        lost = simulate(plan, MEASURED, until, seed=seed, loss=Loss(level, at, recovery))
        found[name_of(level, len(plan.fans))] = recovered(lost, at)
    return found


Facts = dict[str, object]

DETECTIONS: Final = (1.5, 0.45)


def results(plans: Sequence[Plan]) -> Iterator[Result]:
    """Yield all figures."""
    for plan in plans:
        if refused(plan):
            continue
        yield from _results(examine(plan))
        for detection in DETECTIONS:
            for what, seconds in losses(plan, detection).items():
                metric = f"{what.replace(' ', '_')}_loss_{detection * 1e3:.0f}"
                yield _result(plan, metric, seconds, "s", {"detection": detection})


def _results(found: Found) -> Iterator[Result]:
    plan, depth = found.plan, len(found.plan.fans)
    for level, (nodes, behind) in enumerate(zip(found.levels, found.lags, strict=True)):
        where = name_of(level, depth).replace(" ", "_")
        yield _result(plan, f"{where}_lag_p50", behind.p50 * 1e3, "ms")
        yield _result(plan, f"{where}_lag_p99", behind.p99 * 1e3, "ms")
        for metric, unit, each in (
            ("core", "cores", [one.core() for one in nodes]),
            ("messages", "1/s", [one.messages() for one in nodes]),
            ("received", "bytes/s", [one.received() for one in nodes]),
            ("rounds", "1/s", [one.rounds / one.until for one in nodes]),
            ("values", "1/s", [len(one.published.times) / one.until for one in nodes]),
            ("memory", "bytes", [one.memory() for one in nodes]),
        ):
            yield _result(plan, f"{where}_{metric}", float(np.median(each)), unit)
    yield _result(plan, "stalling_root_lag_p50", found.stalled.p50 * 1e3, "ms")
    yield _result(plan, "stalling_root_lag_p99", found.stalled.p99 * 1e3, "ms")
    for rank, limit in enumerate(found.limits[:4], 1):
        facts = {"what": limit.what, "figure": limit.figure, "of": limit.of, "figure_unit": limit.unit}
        yield _result(plan, f"breaks_{rank}", limit.share, "share", facts)


def earlier() -> Iterator[Result]:
    """Yield the figures of the earlier simulation's trees, with nodes as measured, and with nodes as quick as it had them."""
    for name, plan, (p50, p99) in EARLIER:
        since = plan.warm() + 2.0
        until = 2 * since
        for costs, nodes in ((MEASURED, "measured"), (QUICKER, "quick")):
            root = simulate(plan, costs, until)[0][0]
            behind = lag(root.published, since, until)
            start = f"earlier_{nodes}_{plan.spacing * 1e3:.0f}"
            yield _result(plan, f"{start}_p50", behind.p50 * 1e3, "ms", {"case": name}, baseline=p50)
            yield _result(plan, f"{start}_p99", behind.p99 * 1e3, "ms", {"case": name}, baseline=p99)


def relayed() -> Iterator[Result]:
    """Yield what readers do to a root: as many as it has children, when a computation of the same shape reads it."""
    for fans in ((240,), (16, 15)):
        plan = spaced(Plan(10**9, fans, readers=fans[0]))
        since = plan.warm()
        root = simulate(plan, MEASURED, since + 4.0)[0][0]
        behind = lag(root.published, since, since + 4.0)
        facts: Facts = {"readers": plan.readers}
        yield _result(plan, "relayed_root_lag_p50", behind.p50 * 1e3, "ms", facts)
        yield _result(plan, "relayed_root_lag_p99", behind.p99 * 1e3, "ms", facts)
        yield _result(plan, "relayed_root_core", root.core(), "cores", facts)
        yield _result(plan, "relayed_root_deliveries", root.deliveries / root.until, "1/s", facts)


class Need(NamedTuple):
    """What a number of ranges needs: no simulation, only sums."""

    plan: Plan
    messages: float
    """A second, of all workers."""
    received: float
    """Bytes a second."""
    shards: int
    """Of which each has half of its core's time for messages and updates left."""


def need(ranges: int, per_worker: int, spacing: float = 1.0) -> Need:
    """Return it."""
    plan = Plan(ranges, (), per_worker, spacing)
    messages = plan.workers / spacing
    load = messages * (MEASURED.message + per_worker * MEASURED.update)
    received = messages * (MESSAGE_BYTES + per_worker * UPDATE_BYTES)
    return Need(plan, messages, received, math.ceil(load / HALF))


def needs() -> Iterator[Need]:
    """Yield them for all sizes."""
    for per_worker in (WIDE, NARROW):
        for power in range(6, 10):
            yield need(10**power, per_worker)


def _needs() -> Iterator[Result]:
    for each in needs():
        yield _result(each.plan, "need_messages", each.messages, "1/s")
        yield _result(each.plan, "need_received", each.received, "bytes/s")
        yield _result(each.plan, "need_shards", each.shards, "shards")


def _facts(plan: Plan) -> Facts:
    return {
        "simulated": True,
        "ranges": plan.ranges,
        "shape": plan.name,
        "workers": plan.workers,
        "per_worker": plan.per_worker,
        "spacing_ms": plan.spacing * 1e3,
        "up_ms": plan.up * 1e3 if plan.fans else None,
    }


def _result(
    plan: Plan, metric: str, value: float, unit: str, facts: Facts | None = None, *, baseline: float | None = None
) -> Result:
    name = None if baseline is None else "an earlier simulation"
    other = None if baseline is None else Spread((baseline,))
    metric = f"{plan.label}_{metric}_{plan.ranges}"
    return Result("tree_model", metric, Spread((value,)), unit, name, other, {**_facts(plan), **(facts or {})})


def _short(value: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


# What is printed --------------------------------------------------------------------------------------------------------------------


def table(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the lines of a table for people."""
    yield f"{'ranges':>8} {'tree':8} {'up ms':>6} {'node':10} {'nodes':>5} {'lag p50':>9} {'p99 ms':>8} {'msg/s':>8} {'B/s in':>8} {'rounds/s':>8} {'core':>5} {'memory':>7}"
    for plan in plans:
        start = f"{_short(plan.ranges):>8} {plan.name:8}"
        if refused(plan):
            yield f"{start} refused: {plan.workers:,} workers, and {STREAMS:,} streams of a process"
            continue
        found = examine(plan)
        for level, (nodes, behind) in enumerate(zip(found.levels, found.lags, strict=True)):
            middle = sorted(nodes, key=Node.core)[len(nodes) // 2]
            yield (
                f"{start} {plan.up * 1e3 if plan.fans else 0:6.0f} {name_of(level, len(plan.fans)):10} {len(nodes):5} "
                f"{behind.p50 * 1e3:9.1f} {behind.p99 * 1e3:8.1f} {_short(middle.messages()):>8} {_short(middle.received()):>8} "
                f"{middle.rounds / middle.until:8.0f} {middle.core():5.2f} {_short(middle.memory()):>7}"
            )
        yield f"{'':17} with slow syncs the root lags {found.stalled.p50 * 1e3:.1f} and {found.stalled.p99 * 1e3:.1f} ms"
        for limit in found.limits[:4]:
            yield f"{'':17} breaks: {limit}"
        for detection in DETECTIONS:
            each = ", ".join(f"{what} {seconds:.2f}" for what, seconds in losses(plan, detection).items())
            yield f"{'':17} recovery, seconds, detection {detection} s: {each}"


def main(arguments: Sequence[str]) -> int:
    """Print what was found."""
    parse = argparse.ArgumentParser("python -m benchmarks.tree_model", description=(__doc__ or "").partition("\n")[0])
    parse.add_argument("--json", action="store_true", help="print one JSON object a line")
    parse.add_argument(
        "--most", type=float, default=1e9, metavar="RANGES", help="leave out larger sizes (default: 1e9)"
    )
    args = parse.parse_args(arguments)
    plans = [plan for plan in PLANS if plan.ranges <= args.most]
    others = [*_needs(), *earlier(), *relayed()] if args.most >= 1e9 else []
    if args.json:
        for one in (*results(plans), *others):
            print(json.dumps(one.line({})), flush=True)
        return 0
    for line in table(plans):
        print(line, flush=True)
    for one in others:
        print(one.text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
