"""Which shards live, and which of them serves a computation: one small versioned record, the view.

A computation goes to the shard with the highest random weight for it (Thaler and Ravishankar 1998,
"rendezvous hashing"): all who have the same view name the same shard without asking anybody, and
when one of n shards comes or goes, about 1/n of the computations move, and only to or from that
one. No I/O and no clock here: a ``Directory`` keeps the view.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Member:
    """One shard."""

    id: str
    """Random, made at process start: a process that is started again is another member."""
    address: str
    """Where it is reached, HOST:PORT. What it serves goes by this, so a process that is started
    again gets it back."""
    draining: bool = False
    """Whether it hands over what it serves and takes nothing more."""
    joined: int = field(default=0, compare=False)
    """The version of the view in which this process came first; 0: not known."""

    def took(self, view: int) -> bool:
        """Whether this very process can have taken what was taken at its address under a version of the view, not one before it."""
        return view >= self.joined


@dataclass(frozen=True, slots=True)
class View:
    """The members and pins at one version. No two members have the same id or address.

    >>> view = View().joined(Member("a1", "host-a:50051")).joined(Member("b1", "host-b:50051"))
    >>> view.shard_of("ns/clicks").address, view.draining("host-a:50051", on=True).shard_of("ns/clicks").address
    ('host-a:50051', 'host-b:50051')
    """

    version: int = 0
    """Only grows. After ``dated`` it also tells views apart: one version, one view."""
    members: tuple[Member, ...] = ()
    """By address."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Computation to address, as an operator has it; whether such a shard lives or not."""

    def shard_of(self, computation: str) -> Member | None:
        """The member that should serve a computation; None when there are no members.

        Cost: a hash a member, 1 us each.

        Where it is pinned to, while that shard lives and is not draining; else by weight among
        those that are not draining; when all of them are, among all: a computation is always
        somebody's.
        """
        staying = [member for member in self.members if not member.draining] or self.members
        pin = self.pins.get(computation)
        for member in staying:
            if member.address == pin and not member.draining:
                return member
        return max(staying, key=lambda member: _weight(member.address, computation), default=None)

    def member(self, member_id: str) -> Member | None:
        """The member with an id."""
        return next((member for member in self.members if member.id == member_id), None)

    def at(self, address: str) -> Member | None:
        """The member with an address."""
        return next((member for member in self.members if member.address == address), None)

    def joined(self, member: Member) -> View:
        """With one more member, in the place of any with its address (its process was started again) or its id."""
        others = (known for known in self.members if known.id != member.id and known.address != member.address)
        return self._with((*others, replace(member, joined=member.joined or self.version + 1)))

    def without(self, ids: Iterable[str]) -> View:
        """Without some members. Their pins stay, for the processes that come after them."""
        gone = set(ids)
        return self._with(member for member in self.members if member.id not in gone)

    def draining(self, address: str, *, on: bool) -> View:
        """With a member draining, or not any more.

        A process that is started again at the address does not drain.
        """
        return self._with(replace(m, draining=on) if m.address == address else m for m in self.members)

    def pinned(self, computation: str, address: str) -> View:
        """With a computation pinned to an address; an empty address takes the pin back."""
        pins = {name: pin for name, pin in self.pins.items() if name != computation}
        if address:
            pins[computation] = address
        return replace(self, version=self.version + 1, pins=pins)

    def dated(self, now: int) -> View:
        """The same view; its version is at least the store's time ``now``, microseconds.

        For all that is proposed.

        A store may lose its newest views while some member goes on believing in one of them.
        Counted by ones, the next view would get the version of a lost one, and nobody could see
        that they differ; a date is newer than what was lost. Like a hybrid logical clock (Kulkarni
        et al. 2014), it grows also while the clock stands or goes back.
        """
        return replace(self, version=max(self.version, now))

    def encode(self) -> bytes:
        """Serialise for the store."""
        return pb.Membership(
            version=self.version,
            members=[pb.Member(id=m.id, address=m.address, draining=m.draining, joined=m.joined) for m in self.members],
            pins=[pb.Pin(computation=name, address=address) for name, address in sorted(self.pins.items())],
        ).SerializeToString()

    @classmethod
    def decode(cls, payload: bytes) -> View:
        """Read what encode wrote. Raises google.protobuf.message.DecodeError."""
        message = pb.Membership.FromString(payload)
        members = tuple(Member(m.id, m.address, m.draining, m.joined) for m in message.members)
        return cls(message.version, members, {pin.computation: pin.address for pin in message.pins})

    def _with(self, members: Iterable[Member]) -> View:
        ordered = tuple(sorted(members, key=lambda member: member.address))
        return replace(self, version=self.version + 1, members=ordered)


@dataclass(frozen=True, slots=True)
class Beats:
    """When the store last heard of each shard. Microseconds by the store's clock."""

    now: int
    last: Mapping[str, int]
    """By id; also of shards that are no members yet."""
    since: int
    """From here on beats came without a gap: the store was there, and so was its memory of them."""

    def silence(self, member_id: str) -> int:
        """For how long the store could have heard of a shard but did not, microseconds: while it was away itself, nobody is silent."""
        return self.now - max(self.last.get(member_id, 0), self.since)


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long a member may be silent, in microseconds, before it is left out."""

    dead_after: int
    """When nothing else is known of it."""
    gone_after: int
    """When its process seems to have died. More than a beat: who beats is never left out, whatever
    a network says of it."""

    def over(self, silence: int, *, gone: bool) -> bool:
        """Whether a member was silent for too long."""
        return silence > (self.gone_after if gone else self.dead_after)


def proposal(
    view: View, beats: Beats, me: Member, *, patience: Patience, known: int, gone: Container[str] = ()
) -> View | None:
    """What a shard should propose in place of the view that the store has now; None: all is well.

    ``me`` joins unless its id is there; it drains then as ``me`` says, so pass the flag of the
    newest view it was in. Members that were silent for longer than ``patience`` has it are left
    out, but nobody before that time is over since ``since``: when the store itself was away, nobody
    is dead. ``gone`` are the ids whose processes seem to have died: silence is shorter for them.
    ``known`` is the newest version that this process has ever seen; a store that has a lower one
    has lost views, and gets one above it, which everybody takes for new.

    Two living processes that advertise one address would push each other out in turns. A shard that
    was a member and finds at its address another one that joined later, was replaced: it should
    end, and not ask again.
    """
    others = (member.id for member in view.members if member.id != me.id)
    dead = {each for each in others if patience.over(beats.silence(each), gone=each in gone)}
    wanted = view
    if dead:
        wanted = wanted.without(dead)
    version = max(view.version, known, beats.now - 1) + 1
    if view.member(me.id) is None:
        # Dated as the view is: so of two processes the one that joined later is told by this, also
        # when views were lost between them.
        wanted = wanted.joined(me if me.joined else replace(me, joined=version))
    if wanted is view and view.version >= known:
        return None
    return replace(wanted, version=version)


def _weight(address: str, computation: str) -> tuple[bytes, str]:
    """Random, but the same everywhere and for ever: other releases must agree.

    An address holds no line break.
    """
    return blake2b(f"{address}\n{computation}".encode(), digest_size=8).digest(), address
