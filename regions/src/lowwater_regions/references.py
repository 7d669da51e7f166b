"""The state machine of all references: which region makes what, by which adoption number, and how far it is published.

A *reference* is a computation together with the set of home inputs that it needs. That is its identity: the region that makes it may change,
and is only its *owner*. The owner commits at the sinks by its *adoption number*, a token that grows with each adoption, move and re-issue. A
region that was replaced has a lower one, wherever it was asleep meanwhile.

The global record of a reference is compared and set as a whole. Each change of it is one journal record; a change is made in two steps, so
that nothing is shown before it is durable: a method here looks at the state and returns a `Change`, which changes nothing yet; whoever called
writes it down and then calls `apply`. Replay calls `apply` with the same records. The steps have the names of the model
(tests/model/regions.pml): SUSPECT, adopt, confirm, publish, stand by; `raise` and `commit` happen at the sinks.

Two things are told in memory only, because they are about processes: when each region was heard of, and which agent speaks for it. After a start of the
global authority silence counts from that start, and every agent is *unconfirmed* until it has asked by which numbers its region owns what.

Silence makes a region SUSPECT and moves nothing. What is published holds, at the least of L, the frontier R of every region that keeps a replica,
and the *hold* of the last adoption: the R of the region that took over. Above it there may be rows that only the lost region has. Somebody has to
say what becomes of them: that they have arrived, or that they are written off.

Times are microseconds. ``now`` is of a clock that makes no steps and has no date, ``when`` is the date for people. No I/O, no clock and no randomness here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from lowwater import errors
from lowwater.core.checks import is_name
from lowwater_authority.core.times import MAX, MIN

FORMAT: Final = 1
"""Of the journal's records. A newer one is refused, not guessed at."""

REPLICATED: Final = "replicated"
"""Publishes min(L, R, the frontier of the outputs' replica): nothing that was published can be lost
with a region."""

LOCAL: Final = "local"
"""Publishes L. When the owner is lost, [R, L) is broken, and the record says so."""

AUTOMATIC: Final = "automatic"
"""Who decides, where nobody does."""

WANTED: Final = "wanted"
STOPPED: Final = "stopped"
ARRIVED: Final = "arrived"
RELEASED: Final = "released"

SERVING: Final = "serving"
STOPPED_STORE: Final = "stopped"
ENROLLING: Final = "enrolling"

GAP: Final = 1 << 10
"""How far numbers jump when a region is absent from a recovery: it may have one that nobody
reports."""

RELAY_NAMESPACE: Final = "global"

MOST_REGIONS: Final = 1000

MOST_REFERENCES: Final = 1000
"""Each of them is told to its regions once a second, whole: about a kilobyte."""

MOST_NUMBER: Final = 1 << 62
"""Of adoption numbers and incarnations."""

MOST_NAME: Final = 128
"""Characters of a region's or sink's name."""

MOST_EACH: Final = 100
"""Inputs, regions and sinks of a reference."""

MOST_POSITIONS: Final = 1000
"""Of a reference in one place."""

MOST_TEXT: Final = 1024
"""Characters of a digest, of a place where readers cut, and of a cluster's or topic's name."""


class Position(NamedTuple):
    """A place in a source.

    Of another cluster it is another place, whatever the offset: a mirror counts by itself.
    """

    cluster: str
    topic: str
    partition: int
    offset: int
    """The next one to be read; -1 is unknown, as behind the last sync of a mirror."""


class Sink(NamedTuple):
    """Where the owner commits."""

    name: str
    fences: bool
    """Whether it compares the adoption number in the write itself."""
    fenced: int = 0
    """The newest adoption number that it is known to have."""
    cut: str = ""
    """What readers go by where the sink itself cannot fence: the offset at which the lost region's
    topic ends for them."""


class Replica(NamedTuple):
    """What a region has of a reference that another one makes, as far as the owner of one adoption number had it."""

    region: str
    replicated: int
    """R: what was complete at the owner's sources is here up to this event time."""
    output: int = MAX
    """Likewise of the outputs; MAX where they need no replica."""
    positions: tuple[Position, ...] = ()
    """How far the sources are mirrored, in the coordinates of the source."""
    number: int = 0
    """Adoption number of the owner whose rows and outputs these are; 0: not told, as in records of
    older versions. Under any other number the replica counts for nothing: rows of the owner before
    say nothing of what the next owner has accepted."""

    @property
    def frontier(self) -> int:
        """Up to where the region has the rows, and the outputs."""
        return min(self.replicated, self.output)


class Hold(NamedTuple):
    """Above it there may be rows that only a lost region has."""

    at: int
    region: str
    positions: tuple[Position, ...] = ()


class WriteOff(NamedTuple):
    """An operator's word that rows are given up. How many is not known."""

    source: str
    """The region that had them."""
    positions: tuple[Position, ...]
    """From where on, in the coordinates of the source."""
    replicated: int
    """From which event time on."""
    who: str
    when: int
    incarnation: int = 1
    """In a later one the rows may be read."""


class Broken(NamedTuple):
    """Of a `local` reference: what was published as complete, and lost with its owner."""

    start: int
    end: int
    who: str
    when: int
    region: str = ""
    """The one that was lost."""
    incarnation: int = 1
    """As of a write-off."""


class Move(NamedTuple):
    """A planned move: intent, stop, arrival, release, and then the claim, which ends it."""

    to: str
    step: str = WANTED


@dataclass(frozen=True, slots=True)
class Reference:
    """The global record of one reference."""

    computation: str
    inputs: tuple[str, ...]
    """The home inputs it needs, sorted. Two references of one computation share none."""
    regions: tuple[str, ...]
    """Those that may own it, and keep a replica while they do not, sorted."""
    policy: str
    owner: str
    """Empty where nobody is known to be it, after a recovery."""
    number: int = 1
    incarnation: int = 1
    life: int = 0
    """The incarnation of the computation at the owner's local authority; 0: not told since the last
    adoption."""
    jumped: bool = False
    """Whether the number has jumped since the owner told of it. The owner then resets its own
    computation, and ``life`` counts that reset already."""
    low: int = MIN
    """L, as the owner has told it."""
    published: int = MIN
    positions: tuple[Position, ...] = ()
    batch: int = -1
    digest: str = ""
    batch_number: int = 0
    """The adoption number by which the last batch was committed: a new owner begins to count anew.
    """
    sinks: tuple[Sink, ...] = ()
    replicas: tuple[Replica, ...] = ()
    automatic: bool = False
    decided: bool = False
    """Whether an operator has decided on the policy: the one in the regions' files was the first
    one, and says nothing any more."""
    holds: tuple[Hold, ...] = ()
    """One for each lost region of which nobody has said what becomes of its rows."""
    write_offs: tuple[WriteOff, ...] = ()
    broken: tuple[Broken, ...] = ()
    move: Move | None = None
    decision_number: int = 0
    """How many decisions of operators have changed the record, but for adoptions, which change
    ``number``."""

    @property
    def name(self) -> str:
        """What it is called by: fit for a shell, a file and a transaction id.

        >>> Reference("hourly", ("clicks", "views"), ("A", "B"), REPLICATED, "A").name
        'hourly:clicks+views'
        """
        return name_of(self.computation, self.inputs)

    @property
    def released(self) -> bool:
        """Whether its owner has let go of it, and the next one has not claimed it yet."""
        return self.move is not None and self.move.step == RELEASED

    @property
    def written_off(self) -> bool:
        """Whether rows were given up, or may be lost after they had counted as complete: what is published taints who reads it."""
        return bool(self.write_offs or self.broken) or any(each.at < self.published for each in self.holds)

    @property
    def accepted(self) -> int:
        """Up to where everything that any region has accepted is included, in this incarnation."""
        bounds = [self.published, *(each.at for each in self.holds)]
        bounds += [each.replicated for each in self.write_offs]
        bounds += [each.start for each in self.broken]
        return min(bounds)

    def replica(self, region: str) -> Replica:
        """Return what a region has of what this owner makes; unknown when it has not told so under this owner's number."""
        return next((each for each in self.current_replicas if each.region == region), Replica(region, MIN, MIN))

    @property
    def current_replicas(self) -> tuple[Replica, ...]:
        """Replicas that were told under the present owner's adoption number: no other one counts, and none while no owner is known."""
        return tuple(each for each in self.replicas if self.owner and each.number == self.number)

    @property
    def replicated(self) -> int:
        """R, the least of all regions that keep a replica: one that is silent or was never heard of holds."""
        return min((self.replica(each).frontier for each in self._others), default=MIN)

    @property
    def _others(self) -> list[str]:
        return [each for each in self.regions if each != self.owner]

    @property
    def publishable(self) -> int:
        """What may be shown: a ratchet within an incarnation."""
        bounds = [self.low]
        if self.policy == REPLICATED:
            bounds.append(self.replicated)
        bounds += [each.at for each in self.holds]
        return max(self.published, min(bounds))

    def words(self) -> str:
        """Say of what it is complete."""
        said = ["includes all that any region has accepted"]
        if self.written_off:
            said = ["includes what survived, and not what was written off or lost"]
        for hold in self.holds:
            said.append(f"holds for what only {hold.region or 'a lost region'} may have: {_FIX_HOLD}")
        return "; ".join(said)


_FIX_HOLD: Final = "say `lowwater references arrived` when it is back and mirrored, or `write-off`"


def name_of(computation: str, inputs: Iterable[str]) -> str:
    """Return the name of a reference."""
    return f"{computation}:{'+'.join(sorted(inputs))}"


def relayed_name(computation: str) -> str:
    """Return the name by which a global watermark is read at a local authority.

    Two that differ in the separator alone have one name, so that only one of them is registered.

    >>> relayed_name("hourly"), relayed_name("sales/hourly")
    ('global/hourly', 'global/sales.hourly')
    """
    return f"{RELAY_NAMESPACE}/{computation.replace('/', '.')}"


class Tombstone(NamedTuple):
    """What is kept of a reference that was forgotten: its numbers go on."""

    number: int
    incarnation: int


class Store(NamedTuple):
    """The identity of the global store, and whether it may be believed."""

    token: str = ""
    state: str = SERVING
    reason: str = ""
    recovers: str = ""
    """The token of the store in whose place this one is."""
    expected: tuple[str, ...] = ()
    """Regions that have to enrol."""
    enrolled: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()
    """Regions that do not, because an operator has fenced their sinks."""
    unread: tuple[str, ...] = ()
    """References of which a region that enrolled has a record that cannot be read: it may be the
    newest, so that no other one counts."""
    named: tuple[str, ...] = ()
    """Regions that the enrolled records name as possible owners: each of them is expected or fenced
    before the store serves."""

    @property
    def left_out(self) -> list[str]:
        """Regions that enrolled records name and the recovery does not: one of them may own a reference, by a number that nobody else reports."""
        return sorted({*self.named} - {*self.expected} - {*self.fenced})

    @property
    def fix(self) -> str:
        """What has to happen before a store that does not serve serves again."""
        if self.left_out:
            return (
                f"the records of {', '.join(self.enrolled)} name {', '.join(self.left_out)}, which the recovery leaves out: "
                f"say `lowwater references recover` again, with {','.join(self.left_out)} added to --regions, "
                "or to --fenced when no number of theirs counts at any sink any more"
            )
        missing = [each for each in self.expected if each not in self.enrolled]
        return (
            f"it waits for {', '.join(missing)}" if missing else "an operator has to say `lowwater references recover`"
        )


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written down, all or nothing, and what was refused beside it.

    Without anything to write it is only an answer.
    """

    put: tuple[Reference, ...] = ()
    forget: Mapping[str, Tombstone] = field(default_factory=dict)
    store: Store | None = None
    unread: Mapping[str, Any] = field(default_factory=dict)
    """By reference what is written down as it was found, though it cannot be read."""
    refused: Mapping[str, errors.LowwaterError] = field(default_factory=dict)
    """By reference: what became of the rest of a request is not touched by it."""
    raises: errors.LowwaterError | None = None
    """To be raised when it is written down: the store has been found to be old."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.put and not self.forget and self.store is None and not self.unread

    def encode(self) -> bytes:
        """Return it as a journal record."""
        record: dict[str, Any] = {"format": FORMAT}
        if self.put or self.unread:
            record["put"] = {**self.unread, **{each.name: asdict(each) for each in self.put}}
        if self.forget:
            record["forget"] = self.forget
        if self.store is not None:
            record["store"] = self.store._asdict()
        return json.dumps(record, separators=(",", ":")).encode()


class Agent(NamedTuple):
    """A process that speaks for a region.

    ``run`` grows with each start over one state file; ``nonce`` is made at each.
    """

    agent: str
    run: int
    nonce: str


class Caller(NamedTuple):
    """Who asks, and what it knows."""

    region: str
    agent: Agent
    turn: int
    """Grows with each request of a process: an older one that comes late does not count."""
    token: str = ""
    """Of the store; empty in the very first request of a region."""
    seen: int = 0
    """The greatest position of the store's log that it was told: a store that ends before it is an
    old one."""


@dataclass(slots=True)
class Session:
    """What is known of the agent that speaks for a region, in memory."""

    agent: Agent
    heard: int
    turn: int = 0
    confirmed: bool = False


class Progress(NamedTuple):
    """What an owner tells of a reference."""

    reference: str
    number: int
    """By which it believes to own it."""
    life: int
    low: int
    batch: int = -1
    """The last one that is committed; -1: not told, as by an agent that has just started."""
    digest: str = ""
    positions: tuple[Position, ...] = ()


class References:
    """All references of a deployment.

    Args:
        suspect_after: How long a region may be silent, microseconds.
        lately: For how long after an adoption, and after the start, there is none by itself.
        now: When the process started.
    """

    def __init__(self, suspect_after: int, lately: int, now: int) -> None:
        self.store = Store()
        self.references: dict[str, Reference] = {}
        self.forgotten: dict[str, Tombstone] = {}
        self.damaged: dict[str, str] = {}
        """References whose record cannot be read, and why; they are refused, and nothing else is.
        """
        self._unread: dict[str, Any] = {}
        """Their records, which a snapshot keeps as they are: a name that is missing could be
        registered anew, by a number that is in use."""
        self.sessions: dict[str, Session] = {}
        self.suspect_after = suspect_after
        self.lately = lately
        self._started = self._watched = now
        self._adopted: dict[str, int] = {}

    # -- what is there -----------------------------------------------------------------------------

    def get(self, name: str) -> Reference:
        """Return a reference. Raises UnknownReference, RegionRefused when it is damaged."""
        if name in self.damaged:
            raise _no(
                name,
                f"its record is damaged ({self.damaged[name]})",
                "recover the store, which takes it from the regions",
            )
        found = self.references.get(name)
        if found is None:
            msg = f"there is no reference {name!r}: `lowwater references list` says what there is"
            raise errors.UnknownReference(msg, metadata={"reference": name})
        return found

    def silent(self, region: str, now: int) -> int:
        """Return for how long a region has not been heard of; at most since the start."""
        session = self.sessions.get(region)
        return now - (self._started if session is None else session.heard)

    def is_suspect(self, region: str, now: int) -> bool:
        """Whether a region has been silent for too long. That alone moves nothing."""
        return not region or self.silent(region, now) >= self.suspect_after

    def watched(self, now: int) -> None:
        """To be called a few times in `suspect_after`.

        When it was not, this process was asleep, and heard nobody: silence counts from now.
        """
        self.held_up(self._watched, now)
        self._watched = now

    def held_up(self, since: int, now: int) -> None:
        """For so long nobody could be heard, as while the store kept everybody waiting: when that was long, silence counts from now."""
        if now - since >= self.suspect_after // 2:
            self._started = now
            for session in self.sessions.values():
                session.heard = now

    def watermarks(self) -> dict[str, tuple[int, int, bool]]:
        """By computation: the incarnation, what is published, and whether rows were written off.

        The least of its references. One that comes or goes begins a new incarnation, because the
        minimum over others may be lower.
        """
        found: dict[str, list[Reference]] = {}
        for each in self.references.values():
            found.setdefault(each.computation, []).append(each)
        gone: dict[str, int] = {}
        for name, tombstone in self.forgotten.items():
            computation = name.partition(":")[0]
            gone[computation] = gone.get(computation, 0) + tombstone.incarnation + 1
        for name in self.damaged:  # nobody can tell; who knows an earlier value holds it
            found.pop(name.partition(":")[0], None)
        return {
            name: (
                sum(each.incarnation for each in each_of) + gone.get(name, 0),
                min(each.published for each in each_of),
                any(each.written_off for each in each_of),
            )
            for name, each_of in found.items()
        }

    # -- the journal -------------------------------------------------------------------------------

    def apply(self, record: bytes) -> None:
        """Take over what is written down. Raises ValueError when the whole of it cannot be read."""
        told = json.loads(record)
        if told["format"] != FORMAT:
            msg = f"format {told['format']}"
            raise ValueError(msg)
        for name, fields in told.get("put", {}).items():
            try:
                if isinstance(fields, dict) and "unread" in fields:
                    raise ValueError(fields["unread"])
                found = decode(fields)
                if found.name != name:
                    raise ValueError(f"it is called {found.name}")
            except (ValueError, TypeError, KeyError) as error:
                self.damaged[name] = f"{type(error).__name__}: {error}"
                self._unread[name] = fields
                self.references.pop(name, None)
            else:
                self.references[name] = found
                self._readable(name)
                self.forgotten.pop(name, None)
        for name, tombstone in told.get("forget", {}).items():
            self.references.pop(name, None)
            self._readable(name)
            self.forgotten[name] = Tombstone(*tombstone)
        if "store" in told:
            before, self.store = self.store, _store(told["store"])
            if before.token != self.store.token:  # a region asks anew by which numbers it owns what
                for session in self.sessions.values():
                    session.confirmed = False

    def _readable(self, name: str) -> None:
        self.damaged.pop(name, None)
        self._unread.pop(name, None)

    def snapshot(self) -> bytes:
        """Return everything that is durable as one record, also what cannot be read."""
        return Change(tuple(self.references.values()), self.forgotten, self.store, self._unread).encode()

    # -- what regions ask --------------------------------------------------------------------------

    def confirm(self, caller: Caller, numbers: Mapping[str, int], now: int, position: int) -> Change:
        """A region that was restarted, or had its link back, asks by which numbers it owns what.

        Until then it publishes and commits nothing.

        ``numbers`` are the greatest that it was ever told, whoever owned what. Raises SecondAgent,
        Recovering, ServerTokenMismatch.
        """
        if (old := self._enter(caller, numbers, now, position, confirms=True)) is not None:
            return old
        self.sessions[caller.region].confirmed = True
        return Change()

    def register(self, caller: Caller | None, wanted: Reference, now: int, position: int) -> Change:
        """Make a reference known; ``caller`` is None for an operator, who speaks for no region.

        Repeating it is harmless. Raises RegistrationConflict, InvalidArgument, and as confirm does.
        """
        self._check_serving()
        if caller is not None and (old := self._enter(caller, {}, now, position)) is not None:
            return old
        _check(wanted)
        if wanted.name in self.damaged:
            self.get(wanted.name)
        found = self.references.get(wanted.name)
        if found is not None:
            same = ("regions",) if found.decided else ("policy", "regions")
            differ = [each for each in same if getattr(found, each) != getattr(wanted, each)]
            if tuple((each.name, each.fences) for each in found.sinks) != tuple(
                (each.name, each.fences) for each in wanted.sinks
            ):
                differ.append("sinks")
            if differ:
                fix = "give all regions the same, or forget it first"
                if differ == ["policy"]:
                    fix = f"{found.policy} is in force; give all regions the same, or decide with `lowwater references policy`"
                msg = f"{wanted.name} is registered with other {', '.join(differ)}: {fix}"
                raise errors.RegistrationConflict(msg, metadata={"reference": wanted.name, "fields": " ".join(differ)})
            return Change()
        for other in self.references.values():
            if other.computation != wanted.computation and relayed_name(other.computation) == relayed_name(
                wanted.computation
            ):
                msg = f"{wanted.computation} and {other.computation} would both be relayed as {relayed_name(wanted.computation)}: rename one of them"
                raise errors.RegistrationConflict(msg, metadata={"reference": wanted.name, "other": other.name})
            shared = set(other.inputs) & set(wanted.inputs)
            if other.computation == wanted.computation and shared:
                msg = f"{other.name} has the home input {min(shared)} already: the homes of one computation share none"
                raise errors.RegistrationConflict(msg, metadata={"reference": wanted.name, "other": other.name})
        if len(self.references) >= MOST_REFERENCES:
            msg = f"{MOST_REFERENCES} references are registered already: forget some first"
            raise errors.Overloaded(msg)
        before = self.forgotten.get(wanted.name, Tombstone(0, -1))
        return Change((replace(wanted, number=before.number + 1, incarnation=before.incarnation + 2),))

    def concerned(self, wanted: Reference) -> list[str]:
        """Return the regions that a new reference concerns: its own, and those of others of its computation, whose global watermark it changes."""
        others = (each for each in self.references.values() if each.computation == wanted.computation)
        return sorted({*wanted.regions, *(region for each in others for region in each.regions)})

    def progress(
        self, caller: Caller, told: Iterable[Progress], replicas: Mapping[str, Replica], now: int, position: int
    ) -> Change:
        """The sign of life of a region, and how far it is: one compare-and-set a second.

        What is refused of one reference is in the change, and touches no other. Raises Unconfirmed,
        and as confirm does.
        """
        told = list(told)
        numbers = {name: each.number for name, each in replicas.items()} | {
            each.reference: each.number for each in told
        }
        if (old := self._enter(caller, numbers, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        changed: dict[str, Reference] = {}
        refused: dict[str, errors.LowwaterError] = {}
        for name, replica in replicas.items():
            try:
                changed[name] = _with_replica(self.get(name), replica._replace(region=caller.region))
            except errors.LowwaterError as error:
                refused[name] = error
        for each in told:
            try:
                changed[each.reference] = self._advanced(
                    changed.get(each.reference) or self.get(each.reference), caller.region, each
                )
            except errors.LowwaterError as error:
                refused[each.reference] = error
        published = (replace(each, published=each.publishable) for each in changed.values())
        return Change(tuple(each for each in published if each != self.references[each.name]), refused=refused)

    def _advanced(self, found: Reference, region: str, told: Progress) -> Reference:
        self._check_owner(found, region, told.number)
        _check_told(found, told.positions, told.digest)
        if told.life < found.life:
            msg = (
                f"{found.name}: the local incarnation {told.life} is older than {found.life}, which was told before. Was the local authority "
                f"set up anew? Then reset the computation there until its incarnation is {found.life}"
            )
            raise errors.Rewound(msg, metadata={"reference": found.name})
        _check_batch(found, told)
        _check_tail(found, told)
        if found.life and told.life > found.life:
            # It was reset at home, on purpose: another life, in which what was written off may be
            # read. Whether it is, an operator has to say.
            found = replace(found, incarnation=found.incarnation + 1, published=MIN)
        if told.batch >= 0:
            found = replace(found, batch=told.batch, digest=told.digest, batch_number=found.number)
        return replace(found, life=told.life, jumped=False, low=told.low, positions=told.positions or found.positions)

    def fenced(self, caller: Caller, name: str, number: int, sink: str, cut: str, now: int, position: int) -> Change:
        """The owner has raised its number at a sink, or knows where readers cut the lost region's topic."""
        if (old := self._enter(caller, {name: number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        found = self.get(name)
        self._check_owner(found, caller.region, number)
        _check_told(found, (), cut)
        if sink not in {each.name for each in found.sinks}:
            raise _no(name, f"it has no sink {sink!r}", f"name one of {', '.join(each.name for each in found.sinks)}")
        sinks = tuple(
            each._replace(fenced=number, cut=cut or (each.cut if each.fenced == number else ""))
            if each.name == sink
            else each
            for each in found.sinks
        )
        return self._put(replace(found, sinks=sinks))

    # -- a planned move ----------------------------------------------------------------------------

    def stop(self, caller: Caller, told: Progress, now: int, position: int) -> Change:
        """The owner has stopped at a batch, of which this is the state."""
        if (old := self._enter(caller, {told.reference: told.number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        found = self.get(told.reference)
        move = self._moving(found)
        if (
            move.step != WANTED
            and found.owner == caller.region
            and (found.batch, found.digest) == (told.batch, told.digest)
        ):
            return Change()
        if move.step != WANTED:
            raise _no(found.name, f"its move is {move.step}", "cancel it, and begin anew")
        stopped = self._advanced(found, caller.region, told)
        return self._put(replace(stopped, published=stopped.publishable, move=move._replace(step=STOPPED)))

    def arrive(
        self,
        caller: Caller,
        name: str,
        replica: Replica,
        batch: int,
        digest: str,
        positions: tuple[Position, ...],
        now: int,
        position: int,
    ) -> Change:
        """The next owner has R, the outputs and the state of the batch at which the owner has stopped."""
        if (old := self._enter(caller, {}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        found = self.get(name)
        move = self._moving(found)
        self._check_target(found, caller.region)
        if move.step in (ARRIVED, RELEASED):
            _check_same_state(found, batch, digest, positions)
            return Change()
        if move.step != STOPPED:
            raise _no(name, f"{found.owner} has not stopped yet", "wait until the move is stopped")
        _check_same_state(found, batch, digest, positions)
        if replica.number != found.number:
            what = f"what {caller.region} has was read under number {replica.number}, and {found.owner} stopped by {found.number}"
            raise _no(name, what, "read R and the outputs' replica anew")
        for what, value in (("R", replica.replicated), ("the output's replica", replica.output)):
            if value < found.low:
                raise _no(
                    name, f"{what} is at {value}, and {found.owner} stopped at {found.low}", "wait until it has arrived"
                )
        return self._put(
            replace(_with_replica(found, replica._replace(region=caller.region)), move=move._replace(step=ARRIVED))
        )

    def release(self, caller: Caller, name: str, number: int, digest: str, now: int, position: int) -> Change:
        """The owner lets go; from here on there is no way back but an adoption."""
        if (old := self._enter(caller, {name: number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        found = self.get(name)
        move = self._moving(found)
        if found.released and found.owner == caller.region and (found.number, found.digest) == (number, digest):
            return Change()
        self._check_owner(found, caller.region, number)
        if move.step != ARRIVED:
            raise _no(name, f"{move.to} has not everything yet", "wait until the move has arrived")
        if digest != found.digest:
            raise _no(
                name, "the digest is not that of the batch at which it stopped", "cancel the move, and begin anew"
            )
        return self._put(replace(found, move=move._replace(step=RELEASED)))

    def claim(
        self,
        caller: Caller,
        name: str,
        number: int,
        batch: int,
        digest: str,
        positions: tuple[Position, ...],
        now: int,
        position: int,
    ) -> Change:
        """The next owner takes over at equal positions; ``number`` is the one that was released."""
        if (old := self._enter(caller, {name: number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        found = self.get(name)
        if found.owner == caller.region and found.number == number + 1 and found.move is None:
            return Change()  # said again
        move = self._moving(found)
        self._check_target(found, caller.region)
        if move.step != RELEASED or number != found.number:
            raise _no(name, f"{found.owner} has not released it", "wait until the move is released")
        _check_same_state(found, batch, digest, positions)
        return self._put(self._owned_by(found, caller.region))

    def begin_move(self, name: str, to: str, now: int) -> Change:
        """An operator wants another region to own a reference; nothing is lost by it."""
        self._check_serving()
        found = self.get(name)
        self._check_candidate(found, to, now)
        if found.move is not None:
            if found.move.to == to:
                return Change()
            raise _no(name, f"it is being moved to {found.move.to}", "cancel that first")
        if self.is_suspect(found.owner, now):
            raise _no(name, f"its owner {found.owner or '(unknown)'} is not heard of", "wait for it, or adopt")
        return self._put(replace(found, move=Move(to)))

    def cancel_move(self, name: str) -> Change:
        """Take a move back, before it is released."""
        self._check_serving()
        found = self.get(name)
        if found.move is None:
            return Change()
        if found.released:
            raise _no(name, f"{found.owner} has released it", f"wait until {found.move.to} has claimed it, or adopt")
        return self._put(replace(found, move=None))

    # -- what operators decide ---------------------------------------------------------------------

    def check_decision(self, name: str, number: int, decision_number: int) -> None:
        """Refuse a decision about another state of a reference: it comes late.

        ``number`` 0: about any. Raises RegionRefused.
        """
        found = self.references.get(name)
        if found is not None and number and (number, decision_number) != (found.number, found.decision_number):
            raise _no(
                name, "it has changed since this was decided, and nothing was done", "look at it again, and decide anew"
            )

    @staticmethod
    def decided(change: Change) -> Change:
        """Return the change that an operator has decided on, counted."""
        return replace(
            change, put=tuple(replace(each, decision_number=each.decision_number + 1) for each in change.put)
        )

    def adopt(self, name: str, to: str, who: str, when: int, now: int) -> Change:
        """Give a reference to another region, because its owner is lost, or seems so.

        Above what that region has, rows and outputs, nothing is published until somebody has said
        what becomes of the rest.
        """
        self._check_serving()
        found = self.get(name)
        if not found.released:
            self._check_candidate(found, to, now)
            if not self.is_suspect(found.owner, now):
                fix = "move it, which loses nothing; or wait until it is silent for long enough"
                raise _no(name, f"its owner {found.owner} is alive", fix)
        elif to not in found.regions or self.is_suspect(to, now):
            raise _no(name, f"{to} is none of its regions, or not heard of", "name one that is")
        replica = found.replica(to)
        adopted = self._owned_by(found, to)
        if found.released and found.move is not None and to in (found.owner, found.move.to):
            return self._put(adopted)  # both have all of it, as after the claim that did not come
        if found.policy == LOCAL:
            # Also where R is ahead of L: what the lost region had accepted behind R is missing from
            # what is published next.
            end = max(replica.frontier, found.published)
            broken = Broken(replica.frontier, end, who, when, found.owner, found.incarnation)
            same = [each for each in found.broken if each[-2:] == broken[-2:]]
            if same:  # lost once more: one entry says both
                start, end = min(each.start for each in (*same, broken)), max(each.end for each in (*same, broken))
                broken = broken._replace(start=start, end=end)
            adopted = replace(adopted, broken=(*(each for each in found.broken if each not in same), broken))
        else:
            hold = Hold(replica.frontier, found.owner, replica.positions)
            if all(each.region != hold.region or each.at > hold.at for each in found.holds):
                others = (each for each in found.holds if each.region != hold.region)
                adopted = replace(adopted, holds=(*others, hold))
        return self._put(adopted)

    def adoptions(self, now: int) -> list[tuple[str, str]]:
        """Return what may be adopted without an operator: reference and region.

        Only if the operator has allowed it, every sink fences, the next region knows R and
        positions, and there was no adoption lately.
        """
        found: list[tuple[str, str]] = []
        if self.store.state != SERVING:
            return found
        for name, each in self.references.items():
            if not each.automatic or not each.sinks or not all(sink.fences for sink in each.sinks):
                continue
            if not self.is_suspect(each.owner, now) or now - self._adopted.get(name, self._started) < self.lately:
                continue
            able = [
                replica
                for replica in each.current_replicas
                if replica.region != each.owner
                and not self.is_suspect(replica.region, now)
                and replica.replicated > MIN
                and replica.output > MIN
                and replica.positions
                and all(place.offset >= 0 for place in replica.positions)
            ]
            if able:
                found.append((name, max(able, key=lambda replica: (replica.replicated, replica.region)).region))
        return found

    def adopt_by_itself(self, name: str, to: str, when: int, now: int) -> Change:
        """Adopt what `adoptions` has offered, if it still does."""
        return self.adopt(name, to, AUTOMATIC, when, now) if (name, to) in self.adoptions(now) else Change()

    def write_off(self, name: str, who: str, when: int, region: str = "") -> Change:
        """Give up what only a lost region may have, or all of them.

        What is published says so until `arrived` in a later incarnation.
        """
        self._check_serving()
        found = self.get(name)
        over, kept = _holds_of(found, region)
        entries = tuple(WriteOff(each.region, each.positions, each.at, who, when, found.incarnation) for each in over)
        return self._publish(replace(found, holds=kept, write_offs=(*found.write_offs, *entries)))

    def arrived(self, name: str, now: int, region: str = "") -> Change:
        """A lost region is back, and all that it had accepted is mirrored: nothing is given up.

        What was given up in an earlier incarnation is included as well by now, as far as the region
        had it.
        """
        self._check_serving()
        found = self.get(name)
        kept = replace(
            found,
            holds=tuple(each for each in found.holds if region not in ("", each.region)),
            write_offs=tuple(each for each in found.write_offs if not _read_anew(found, each, each.source, region)),
            broken=tuple(each for each in found.broken if not _read_anew(found, each, each.region, region)),
        )
        if kept == found:
            if found.written_off:
                fix = "reset the computation where it is owned, let it read them, and say so then"
                raise _no(name, "windows were closed without these rows", fix)
            _holds_of(found, region)
        gone = {each.region for each in found.holds} - {each.region for each in kept.holds}
        gone |= {each.source for each in found.write_offs if each not in kept.write_offs}
        gone |= {each.region for each in found.broken if each not in kept.broken}
        if "" in gone:  # who owned it was not known, so that any of its regions may be the lost one
            gone = (gone - {""}) | set(found.regions)
        for each in sorted(gone):
            if self.is_suspect(each, now):
                raise _no(name, f"{each} is not heard of", "start its agent first, or write off what it has")
        return self._publish(kept)

    def allow_automatic(self, name: str, *, allowed: bool) -> Change:
        """Say whether it may be adopted without an operator.

        Raises RegionRefused where a sink does not fence.
        """
        self._check_serving()
        found = self.get(name)
        bad = [each.name for each in found.sinks if not each.fences]
        if allowed and (bad or not found.sinks):
            what = f"its sinks {', '.join(bad)} cannot fence" if bad else "it has no sink that is known"
            raise _no(name, what, "an operator has to adopt it, after the lost region's writers are stopped")
        return self._put(replace(found, automatic=allowed))

    def set_policy(self, name: str, policy: str) -> Change:
        """Say what is published: min(L, R), or L."""
        self._check_serving()
        found = replace(self.get(name), policy=policy, decided=True)
        _check(found)
        return self._publish(found)

    def forget(self, name: str, now: int) -> Change:
        """Take a reference out.

        Its numbers and incarnations go on, should it be registered again.
        """
        self._check_serving()
        found = self.references.get(name)
        if name in self.damaged:
            raise _no(name, "its numbers cannot be read", "recover the store, which takes them from the regions")
        found = self.get(name)
        if not self.is_suspect(found.owner, now):
            raise _no(
                name,
                f"its owner {found.owner} is alive",
                "stop its agent, or take the reference out of its file, first",
            )
        return Change(forget={name: Tombstone(found.number, found.incarnation)})

    # -- a store that was lost ---------------------------------------------------------------------

    def begin(self, token: str) -> Change:
        """The first record of a store."""
        return Change(store=Store(token)) if not self.store.token else Change()

    def recover(
        self, token: str, recovers: str, expected: Iterable[str], fenced: Iterable[str], answers: str = ""
    ) -> Change:
        """An operator says that the store was lost, or put back to an older copy.

        All regions enrol anew, under a new token.

        ``recovers`` is the token of the store that was lost, as the regions have it; ``fenced`` are
        regions that are absent, at whose sinks the operator has seen to it that none of their
        numbers counts any more. ``answers`` is the token of the store that the operator has seen;
        empty: any. After a recovery the store has another one, so a message that comes late begins
        no second recovery. Raises ServerTokenMismatch.
        """
        if answers not in ("", self.store.token):
            msg = "the store has another token than the one that this was decided on, and nothing was done: look at it again"
            raise errors.ServerTokenMismatch(msg, metadata={"expected": self.store.token, "found": answers})
        expected, fenced = tuple(sorted(set(expected))), tuple(sorted(set(fenced)))
        known = {each for found in self.references.values() for each in found.regions} | {*self.store.named}
        lost = self.store.recovers if self.store.state == ENROLLING else self.store.token
        left_out = known - set(expected) - set(fenced)
        if left_out or not expected:
            msg = f"recover leaves out {', '.join(sorted(left_out)) or 'all regions'}: name each region, or fence its sinks and name it as fenced"
            raise errors.InvalidArgument(msg, metadata={"field": "regions"})
        return Change(store=Store(token, ENROLLING, "an operator recovers it", recovers or lost, expected, (), fenced))

    def enrol(self, caller: Caller, records: Mapping[str, str], now: int) -> Change:
        """A region tells what it was told last, by reference.

        When all have, numbers go on above the greatest of them.

        A record that cannot be read makes its reference a damaged one, whatever others have: it may
        have had the greatest number, and a hold that nobody else knows. The rest of the region
        enrols.
        """
        if self.store.state != ENROLLING:
            return Change()  # said again; what it has to do next is to confirm
        if caller.token not in (self.store.recovers, self.store.token):
            msg = "the store that is recovered is not the one that this region belongs to: check --global"
            raise errors.ServerTokenMismatch(msg, metadata={"expected": self.store.recovers})
        if caller.region not in self.store.expected:
            raise _no(caller.region, "the recovery does not name this region", "recover again, with all regions")
        self._listen(caller, now)
        best = dict(self.references)
        named = {*self.store.named}
        refused: dict[str, errors.LowwaterError] = {}
        unread: dict[str, Any] = {}
        for name, record in records.items():
            try:
                told = _enrolled(name, record)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, errors.InvalidArgument) as error:
                what = f"the record that {caller.region} has of it cannot be read ({type(error).__name__}: {error})"
                fix = f"stop the agent of {caller.region}, remove its --state folder, and recover with {caller.region} as --fenced"
                refused[name], unread[name] = _no(name, what, fix), {"unread": what, "record": record}
            else:
                if told.number > self.forgotten.get(name, Tombstone(0, 0)).number:
                    named |= {*told.regions}
                    best[name] = _better(best.get(name), told)
        spoiled = {*self.store.unread, *unread}
        best = {name: each for name, each in best.items() if name not in spoiled}
        store = self.store._replace(
            enrolled=tuple(sorted({*self.store.enrolled, caller.region})),
            unread=tuple(sorted(spoiled)),
            named=tuple(sorted(named)),
        )
        if set(store.enrolled) >= set(store.expected) and not store.left_out:
            # Above the greatest that anybody has; of an absent region one may be missing.
            more = 1 + GAP * len(store.fenced)
            best = {name: replace(each, number=each.number + more, move=None) for name, each in best.items()}
            if self.store.fenced:
                best = {name: _jumped(each) for name, each in best.items()}
            store = Store(store.token, recovers=store.recovers)
        put = tuple(each for each in best.values() if each != self.references.get(each.name))
        return Change(put, store=store, unread=unread, refused=refused)

    # -- inside ------------------------------------------------------------------------------------

    def _enter(
        self, caller: Caller, numbers: Mapping[str, int], now: int, position: int, *, confirms: bool = False
    ) -> Change | None:
        """Who may ask. Returns a change when the store has been found to be old.

        Only a region of some reference finds that out, when it confirms or has been confirmed:
        anybody else's word would stop the store for all.
        """
        self._check_serving()
        if caller.token and caller.token != self.store.token:
            msg = "another global store answers here than this region belongs to: check --global; after a loss, an operator recovers it"
            metadata = {"expected": caller.token, "found": self.store.token, "recovers": self.store.recovers}
            raise errors.ServerTokenMismatch(msg, metadata=metadata)
        self._listen(caller, now)
        above = [name for name, number in numbers.items() if number > self._known_number(name)]
        if not caller.token or not (caller.seen > position or above):
            return None
        if not confirms:
            self._check_confirmed(caller)
        what = (
            f"{caller.region} has a number of {above[0]} above its own"
            if above
            else f"{caller.region} has seen more of it"
        )
        strangers = [each for each in above if each in self.references and caller.region not in self.get(each).regions]
        if strangers or not any(caller.region in each.regions for each in self.references.values()):
            where = f"{strangers[0]} is none of its references" if strangers else "it is in no reference here"
            fix = "check --global and --state of its agent; when this store is an older copy, an operator has to recover it"
            raise _no(caller.region, f"{what}, and {where}", fix)
        reason = f"this store is older than what it has said: {what}"
        stopped = self.store._replace(state=STOPPED_STORE, reason=reason)
        return Change(store=stopped, raises=_recovering(stopped))

    def _known_number(self, name: str) -> int:
        if name in self.damaged:
            return MAX
        found = self.references.get(name)
        return self.forgotten.get(name, Tombstone(0, 0)).number if found is None else found.number

    def _listen(self, caller: Caller, now: int) -> None:
        """Take a request for a sign of life of the one agent that speaks for a region.

        Raises SecondAgent, OldStream.
        """
        known = self.sessions.get(caller.region)
        if known is None and len(self.sessions) >= MOST_REGIONS:
            msg = f"{MOST_REGIONS} regions were heard of already: check the names"
            raise errors.Overloaded(msg)
        if known is None or known.agent != caller.agent:
            if known is not None and not self._succeeds(known, caller.agent, now):
                msg = f"another agent speaks for region {caller.region}: stop one of the two. This one was refused"
                raise errors.SecondAgent(msg, metadata={"region": caller.region})
            known = self.sessions[caller.region] = Session(caller.agent, now)
        if caller.turn <= known.turn:
            msg = "a newer request of this agent was heard already"
            raise errors.OldStream(msg, metadata={"region": caller.region})
        known.turn, known.heard = caller.turn, now

    def _succeeds(self, known: Session, agent: Agent, now: int) -> bool:
        """Whether an agent takes the place of the one that spoke last: the next run over its state file, or any when that is silent."""
        silent = now - known.heard >= self.suspect_after
        if known.agent.agent == agent.agent:
            return agent.run > known.agent.run or (agent.run == known.agent.run and silent)
        return silent

    def _check_confirmed(self, caller: Caller) -> None:
        if not self.sessions[caller.region].confirmed:
            msg = f"region {caller.region} has not been confirmed since it, or the global authority, was started: confirm first"
            raise errors.Unconfirmed(msg, metadata={"region": caller.region})

    def _check_owner(self, found: Reference, region: str, number: int) -> None:
        if found.owner != region or found.number != number or found.released:
            now = "nobody, it is being moved," if found.released else found.owner or "nobody that is known"
            msg = f"{region} does not own {found.name} by {number}: {now} does, by {found.number}. Stand by, and commit nothing"
            metadata = {"reference": found.name, "owner": found.owner, "number": str(found.number)}
            raise errors.StaleAdoption(msg, metadata=metadata)

    def _check_candidate(self, found: Reference, to: str, now: int) -> None:
        if to not in found.regions:
            raise _no(found.name, f"{to!r} is none of its regions", f"name one of {', '.join(found.regions)}")
        if to == found.owner:
            raise _no(found.name, f"{to} owns it already", "there is nothing to do")
        if self.is_suspect(to, now):
            raise _no(found.name, f"{to} is not heard of", "start `lowwater region` there first")

    def _check_target(self, found: Reference, region: str) -> None:
        if self._moving(found).to != region:
            raise _no(found.name, f"it is moved to {self._moving(found).to}, not to {region}", "stand by")

    def _moving(self, found: Reference) -> Move:
        if found.move is None:
            raise _no(found.name, "it is not being moved", "begin with `lowwater references move`")
        return found.move

    def _check_serving(self) -> None:
        if self.store.state != SERVING:
            raise _recovering(self.store)

    def _owned_by(self, found: Reference, region: str) -> Reference:
        """Return the record under its next owner.

        What it publishes stays; what only the owner could tell is unknown again.

        So is what other regions told of their replicas: who had all rows of the last owner has none
        that the next one accepts (`current_replicas`).
        """
        replicas = tuple(each for each in found.replicas if each.region != region)
        owned = replace(found, owner=region, number=found.number + 1, move=None, replicas=replicas)
        if found.owner == region:
            return owned  # as after a move that was not claimed: it goes on, and a reset of it is to be seen
        return replace(owned, life=0, jumped=False, low=MIN)

    def adopted(self, name: str, now: int) -> None:
        """Remember when it was adopted, for whoever asks whether that was lately."""
        self._adopted[name] = now

    def _publish(self, changed: Reference) -> Change:
        return self._put(replace(changed, published=changed.publishable))

    def _put(self, changed: Reference) -> Change:
        return Change((changed,)) if changed != self.references[changed.name] else Change()


# -- checks and decoding ---------------------------------------------------------------------------


def _no(name: str, what: str, fix: str) -> errors.RegionRefused:
    return errors.RegionRefused(f"{name}: {what}; {fix}", metadata={"reference": name, "fix": fix})


def _recovering(store: Store) -> errors.Recovering:
    msg = f"the global authority answers nothing: {store.reason}; {store.fix}"
    return errors.Recovering(
        msg, metadata={"state": store.state, "recovers": store.recovers, "token": store.token, "fix": store.fix}
    )


def _check(wanted: Reference) -> None:
    """Raise InvalidArgument for a record that nobody may register."""
    problems = (
        (not is_name(wanted.computation), "computation", "take [namespace/]name"),
        (not wanted.inputs or not all(map(is_name, wanted.inputs)), "inputs", "name the home inputs that it needs"),
        (tuple(sorted(set(wanted.inputs))) != wanted.inputs, "inputs", "name each once, sorted"),
        (tuple(sorted(set(wanted.regions))) != wanted.regions, "regions", "name each once, sorted"),
        (
            any(not each or len(each) > MOST_NAME or not each.isprintable() for each in wanted.regions),
            "regions",
            "give each a name",
        ),
        (wanted.owner not in ("", *wanted.regions), "owner", "name one of its regions"),
        (wanted.policy not in (REPLICATED, LOCAL), "policy", f"take {REPLICATED} or {LOCAL}"),
        (
            wanted.policy == REPLICATED and len(wanted.regions) < 2,
            "regions",
            "a replica needs a second region; or take local",
        ),
        (len({each.name for each in wanted.sinks}) < len(wanted.sinks), "sinks", "name each once"),
        (
            any(not each.name or len(each.name) > MOST_NAME or not each.name.isprintable() for each in wanted.sinks),
            "sinks",
            "give each a name",
        ),
        *(
            (len(getattr(wanted, name)) > MOST_EACH, name, f"name at most {MOST_EACH}")
            for name in ("inputs", "regions", "sinks")
        ),
    )
    for wrong, name, fix in problems:
        if wrong:
            raise errors.InvalidArgument(f"{name}: {fix}", metadata={"field": name, "fix": fix})


def _check_told(found: Reference, positions: tuple[Position, ...], *texts: str) -> None:
    """Raise RegionRefused for more than all regions can be told once a second."""
    texts += tuple(text for place in positions for text in place[:2])
    if len(positions) > MOST_POSITIONS or any(len(each) > MOST_TEXT for each in texts):
        what = f"more than {MOST_POSITIONS} positions, or a text of more than {MOST_TEXT} characters"
        raise _no(found.name, f"{what} was told", "tell less, or divide it into several references")


def _check_batch(found: Reference, told: Progress) -> None:
    """Raise Rewound when a batch comes again as another one, or the owner's checkpoint went back; RegionRefused behind a stop."""
    if told.batch < 0 or found.batch_number != found.number:
        return
    if told.batch < found.batch or (told.batch == found.batch and told.digest != found.digest):
        msg = f"{found.name}: batch {told.batch} is not what comes after batch {found.batch}: a checkpoint went back, or two runs work on it"
        raise errors.Rewound(msg, metadata={"reference": found.name})
    if told.batch > found.batch and found.move is not None and found.move.step != WANTED:
        raise _no(
            found.name, f"it has stopped at batch {found.batch} to be moved", "commit nothing more, or cancel the move"
        )


def _check_tail(found: Reference, told: Progress) -> None:
    """Raise RegionRefused when rows are read that were written off: windows are closed without them, and would change."""
    if found.life and told.life > found.life:
        return
    for entry in found.write_offs:
        if entry.incarnation < found.incarnation:
            continue
        ends = {place[:3]: place.offset for place in entry.positions}
        for place in told.positions:
            if place.offset > ends.get(place[:3], MAX):
                fix = "keep the tail aside; a correction is a new incarnation: reset the computation"
                raise _no(found.name, f"{place.topic}/{place.partition} was written off from {ends[place[:3]]} on", fix)


def _check_same_state(found: Reference, batch: int, digest: str, positions: tuple[Position, ...]) -> None:
    """Raise RegionRefused unless the next owner has the very state in which the last one stopped."""
    if (batch, digest) != (found.batch, found.digest):
        raise _no(
            found.name,
            f"its state is of batch {batch}, the owner stopped at {found.batch}",
            "wait until the state has arrived",
        )
    if set(positions) != set(found.positions):
        fix = "give the positions of the source, by its own cluster and offsets: those of a mirror are others"
        raise _no(found.name, "its positions are not those at which the owner stopped", fix)


def _with_replica(found: Reference, replica: Replica) -> Reference:
    """Return a record with what a region has.

    Raises RegionRefused when it is none that keeps a replica.
    """
    if replica.region not in found.regions:
        raise _no(found.name, f"{replica.region} is none of its regions", "register it with all of them")
    _check_told(found, replica.positions)
    if not replica.number:
        what = f"{replica.region} does not say under which adoption number it keeps its replica, so that the replica cannot count"
        raise _no(found.name, what, "upgrade its `lowwater region`")
    if replica.region == found.owner:
        return found
    others = (each for each in found.replicas if each.region != replica.region)
    return replace(found, replicas=tuple(sorted((*others, replica))))


def _read_anew(found: Reference, entry: WriteOff | Broken, lost: str, region: str) -> bool:
    """Whether an operator's word that a region's rows, or all, are here may be taken for what was given up: not where windows closed without them."""
    return region in ("", lost) and entry.incarnation < found.incarnation


def _holds_of(found: Reference, region: str) -> tuple[list[Hold], tuple[Hold, ...]]:
    """Return the holds for a region, or for any, and the others.

    Raises RegionRefused when there is none.
    """
    over = [each for each in found.holds if region in ("", each.region)]
    if not over:
        raise _no(
            found.name,
            f"it holds for no lost region{region and f' {region}'}",
            "there is nothing to decide: adopt first",
        )
    return over, tuple(each for each in found.holds if each not in over)


def _enrolled(name: str, record: str) -> Reference:
    """Return a record that a region has kept. Raises as decode does, and InvalidArgument."""
    told = decode(json.loads(record))
    _check(told)
    if told.name != name:
        raise ValueError(f"it is called {told.name}")
    return told


def _jumped(found: Reference) -> Reference:
    """Return a record whose number jumps so far that the owner begins its own computation anew.

    That reset is not meant for those who read it; any other one is, and begins a new incarnation.
    After several jumps that the owner has not heard of it makes one reset.
    """
    life = found.life + 1 if found.life and not found.jumped else found.life
    return replace(found, life=life, jumped=True, low=MIN)


def _better(known: Reference | None, told: Reference) -> Reference:
    """Return the newer of two records of one reference; one that says who owns it by a number that another has as well says nothing."""
    if known is None:
        return told
    newer = max(known, told, key=lambda each: (each.number, each.incarnation, each.published))
    if known.number == told.number and known.owner != told.owner:
        return replace(newer, owner="")
    return newer


def encode(reference: Reference) -> str:
    """Return a record as text, for an agent to keep."""
    return json.dumps(asdict(reference), separators=(",", ":"))


def decode(told: Mapping[str, Any]) -> Reference:
    """Return the record of what ``asdict`` made of it.

    Raises ValueError, TypeError or KeyError for what is none.
    """
    found = dict(told)
    found["inputs"], found["regions"] = tuple(found["inputs"]), tuple(found["regions"])
    if not all(isinstance(each, str) for each in (*found["inputs"], *found["regions"])):
        msg = "a name is no text"
        raise TypeError(msg)
    found["positions"] = _rows(Position, found["positions"])
    for name, kind in (
        ("sinks", Sink),
        ("replicas", Replica),
        ("holds", Hold),
        ("write_offs", WriteOff),
        ("broken", Broken),
    ):
        found[name] = _rows(kind, found[name])
    if found["move"] is not None:
        [found["move"]] = _rows(Move, [found["move"]])
    made = Reference(**found)
    _check_types(Reference.__annotations__, {name: getattr(made, name) for name in Reference.__annotations__})
    if not (0 < made.number < MOST_NUMBER and 0 < made.incarnation < MOST_NUMBER):
        msg = "a number is out of range"
        raise ValueError(msg)
    return made


def _rows(kind: Any, told: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    rows = []
    for each in told:
        row = kind(*each)
        if "positions" in kind._fields:
            row = row._replace(positions=_rows(Position, row.positions))
        _check_types(kind.__annotations__, row._asdict())
        rows.append(row)
    return tuple(rows)


def _check_types(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError where something is no number or text: it would break whoever compares or shows it later."""
    kinds = {"int": int, "str": str, "bool": bool}
    for name, value in found.items():
        kind = kinds.get(getattr(wanted[name], "__forward_arg__", wanted[name]))
        if kind is not None and type(value) is not kind:
            msg = f"{name} is no {kind.__name__}"
            raise TypeError(msg)
        if kind is int and not MIN <= value < 1 << 64:
            msg = f"{name} is out of range"
            raise ValueError(msg)


def _store(told: Mapping[str, Any]) -> Store:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return Store(**fields)
