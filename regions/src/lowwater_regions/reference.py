"""The record of one reference: its owner, the adoption number, and how far it is published.

A *reference* is a computation together with the home inputs that it needs. These two are its
identity. The region that owns it may change. The owner commits at the sinks by its *adoption
number*, a token that grows with each adoption, move and re-issue: a region that was replaced has a
lower number, however long it slept.

Times are microseconds. Values only: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from lowwater_authority.core.times import MAX, MIN

REPLICATED: Final = "replicated"
"""Policy that publishes no more than the replicas in all other regions have.

If the owner's region is lost then, every published row is still in another region. With no other
region, nothing is published. See Reference.publishable."""

LOCAL: Final = "local"
"""Policy that publishes L. When the owner is lost, [R, L) is broken, and the record says so."""

WANTED: Final = "wanted"
STOPPED: Final = "stopped"
ARRIVED: Final = "arrived"
RELEASED: Final = "released"

SERVING: Final = "serving"
STOPPED_STORE: Final = "stopped"
ENROLLING: Final = "enrolling"

RELAY_NAMESPACE: Final = "global"

MOST_NUMBER: Final = 1 << 62
"""Bound of adoption numbers and incarnations."""

MOST_LIFE: Final = (1 << 64) - 1
"""Greatest incarnation of a local computation that a record can hold."""

MOST_NAME: Final = 128
"""Bound of a region's or sink's name, characters."""

MOST_EACH: Final = 100
"""Bound of the inputs, of the regions and of the sinks of a reference."""

MOST_POSITIONS: Final = 1000
"""Bound of positions in one field of a reference."""

MOST_TEXT: Final = 1024
"""Bound of a digest, a cut, and the name of a cluster or topic, characters."""


class Position(NamedTuple):
    """A place in a source.

    The same offset in another cluster is another place: a mirror counts by itself.
    """

    cluster: str
    topic: str
    partition: int
    offset: int
    """Offset to be read next; -1: unknown, as behind the last sync of a mirror."""


class Sink(NamedTuple):
    """A place where the owner commits."""

    name: str
    fences: bool
    """True when the sink compares the adoption number in the write itself."""
    fenced: int = 0
    """Newest adoption number that the sink is known to have."""
    cut: str = ""
    """Offset at which the lost region's topic ends for readers, where the sink cannot fence."""


class Replica(NamedTuple):
    """A region's copy of a reference that another region owns."""

    region: str
    replicated: int
    """R: rows of the owner's sources are in the region up to this event time."""
    output: int = MAX
    """The same of the outputs; MAX where they need no replica."""
    positions: tuple[Position, ...] = ()
    """Ends of the mirrored sources, in the coordinates of the source."""
    number: int = 0
    """Adoption number of the owner whose rows and outputs these are; 0: unknown, as in records of
    older versions. Under another number the replica counts for nothing: rows of an earlier owner
    do not show what the present one has accepted."""

    @property
    def frontier(self) -> int:
        """Event time up to which the region has the rows and the outputs."""
        return min(self.replicated, self.output)


class Hold(NamedTuple):
    """A bound above which only a lost region may have rows."""

    at: int
    region: str
    positions: tuple[Position, ...] = ()


class WriteOff(NamedTuple):
    """An operator's decision that rows are given up; their number is unknown."""

    source: str
    """The region that had the rows."""
    positions: tuple[Position, ...]
    """Where the rows begin, in the coordinates of the source."""
    replicated: int
    """Event time from which the rows are missing."""
    who: str
    when: int
    incarnation: int = 1
    """Incarnation in which the rows are missing. A later one may read them."""


class Broken(NamedTuple):
    """A span that a `local` reference published as complete, and that was lost with its owner."""

    start: int
    end: int
    who: str
    when: int
    region: str = ""
    """The lost region."""
    incarnation: int = 1
    """Incarnation in which the span is broken. A later one may read its rows."""


class Move(NamedTuple):
    """A planned move. Its steps are wanted, stopped, arrived, released; the claim ends it."""

    to: str
    step: str = WANTED


@dataclass(frozen=True, slots=True)
class Reference:
    """The global record of one reference, compared and set as a whole."""

    computation: str
    inputs: tuple[str, ...]
    """Home inputs, sorted. Two references of one computation share none."""
    regions: tuple[str, ...]
    """Regions that may own the reference, sorted. Those that do not own it keep a replica."""
    policy: str
    owner: str
    """Region that owns the reference; empty: unknown, as after a recovery."""
    number: int = 1
    incarnation: int = 1
    life: int = 0
    """Incarnation of the computation at the owner's local authority; 0: unknown since the last
    adoption."""
    jumped: bool = False
    """True when the number has jumped since the owner's last report. The owner then resets its
    computation, and ``life`` counts that reset already."""
    low: int = MIN
    """L, from the owner's last report."""
    published: int = MIN
    positions: tuple[Position, ...] = ()
    batch: int = -1
    digest: str = ""
    batch_number: int = 0
    """Adoption number by which the last batch was committed. A new owner counts batches anew."""
    sinks: tuple[Sink, ...] = ()
    replicas: tuple[Replica, ...] = ()
    automatic: bool = False
    decided: bool = False
    """True when an operator has decided on the policy. The policy in the regions' files then no
    longer counts."""
    holds: tuple[Hold, ...] = ()
    """One hold for each lost region whose rows no operator has decided on."""
    write_offs: tuple[WriteOff, ...] = ()
    broken: tuple[Broken, ...] = ()
    move: Move | None = None
    decision_number: int = 0
    """Number of operators' decisions that changed the record. Adoptions count in ``number``."""

    @property
    def name(self) -> str:
        """The name for people, shells, files and transaction ids.

        >>> Reference("hourly", ("clicks", "views"), ("A", "B"), REPLICATED, "A").name
        'hourly:clicks+views'
        """
        return name_of(self.computation, self.inputs)

    @property
    def released(self) -> bool:
        """True when the owner has released the reference, and the next one has not claimed it."""
        return self.move is not None and self.move.step == RELEASED

    @property
    def written_off(self) -> bool:
        """True when rows were given up, or may be lost after they had counted as complete.

        Whoever reads the published watermark is tainted by that.
        """
        return bool(self.write_offs or self.broken) or any(hold.at < self.published for hold in self.holds)

    @property
    def accepted(self) -> int:
        """Event time up to which all rows that any region accepted are included."""
        bounds = [self.published, *(hold.at for hold in self.holds)]
        bounds += [write_off.replicated for write_off in self.write_offs]
        bounds += [broken.start for broken in self.broken]
        return min(bounds)

    def replica(self, region: str) -> Replica:
        """Return a region's replica under the present owner's number; one at MIN if it has none."""
        replicas = (replica for replica in self.current_replicas if replica.region == region)
        return next(replicas, Replica(region, MIN, MIN))

    @property
    def current_replicas(self) -> tuple[Replica, ...]:
        """Replicas that were reported under the present adoption number; only these count.

        While the owner is unknown there are none.
        """
        return tuple(replica for replica in self.replicas if self.owner and replica.number == self.number)

    @property
    def replicated(self) -> int:
        """R: the least frontier, of rows and outputs, over the other regions.

        A silent region holds it. MIN: there is no other region.
        """
        others = (region for region in self.regions if region != self.owner)
        return min((self.replica(region).frontier for region in others), default=MIN)

    @property
    def publishable(self) -> int:
        """The watermark that may be published: within an incarnation it never goes back."""
        bounds = [self.low]
        if self.policy == REPLICATED:
            bounds.append(self.replicated)
        bounds += [hold.at for hold in self.holds]
        return max(self.published, min(bounds))

    def words(self) -> str:
        """Say for people what the published watermark is complete of."""
        parts = ["includes all that any region has accepted"]
        if self.written_off:
            parts = ["includes what survived, and not what was written off or lost"]
        for hold in self.holds:
            parts.append(f"holds for what only {hold.region or 'a lost region'} may have: {_FIX_HOLD}")
        return "; ".join(parts)


_FIX_HOLD: Final = "say `lowwater references arrived` when it is back and mirrored, or `write-off`"


def name_of(computation: str, inputs: Iterable[str]) -> str:
    """Return the name of a reference."""
    return f"{computation}:{'+'.join(sorted(inputs))}"


def relayed_name(computation: str) -> str:
    """Return the name by which local authorities publish a global watermark.

    Computations that differ only in the separator share a name, so only one of them is registered.

    >>> relayed_name("hourly"), relayed_name("sales/hourly")
    ('global/hourly', 'global/sales.hourly')
    """
    return f"{RELAY_NAMESPACE}/{computation.replace('/', '.')}"


class Tombstone(NamedTuple):
    """The rest of a forgotten reference. Its numbers go on when it is registered again."""

    number: int
    incarnation: int


class Store(NamedTuple):
    """Identity of the global store, and whether its records may be believed."""

    token: str = ""
    state: str = SERVING
    reason: str = ""
    recovers: str = ""
    """Token of the lost store that this one replaces."""
    expected: tuple[str, ...] = ()
    """Regions that must enrol."""
    enrolled: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()
    """Absent regions whose sinks an operator has fenced. They do not enrol."""
    unread: tuple[str, ...] = ()
    """References of which an enrolled region has an unreadable record. That record may be the
    newest, so the records of other regions do not count either."""
    named: tuple[str, ...] = ()
    """Regions that enrolled records name as possible owners. The store serves only when each of
    them is expected or fenced."""

    @property
    def left_out(self) -> list[str]:
        """Regions that enrolled records name and the recovery leaves out.

        One of them may own a reference by a number that no other region reports.
        """
        return sorted({*self.named} - {*self.expected} - {*self.fenced})

    @property
    def fix(self) -> str:
        """The steps before a stopped store serves again."""
        if self.left_out:
            return (
                f"the records of {', '.join(self.enrolled)} name {', '.join(self.left_out)}, which the recovery leaves out: "
                f"say `lowwater references recover` again, with {','.join(self.left_out)} added to --regions, "
                "or to --fenced when no number of theirs counts at any sink any more"
            )
        missing = [region for region in self.expected if region not in self.enrolled]
        if missing:
            return f"it waits for {', '.join(missing)}"
        return "an operator has to say `lowwater references recover`"
