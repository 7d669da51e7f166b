"""Which shards live, and which of them serves a computation: one small versioned record, the view.

A computation goes to the shard with the highest random weight for it (Thaler and Ravishankar 1998,
"rendezvous hashing"). All shards that have the same view name the same shard without a message.
When one of n shards comes or goes, about 1/n of the computations move, and only to or from that
shard. This module does no I/O and reads no clock: a ``Directory`` stores the view.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from lowwater_authority.cluster.pace import Pace


@dataclass(frozen=True, slots=True)
class Member:
    """One shard."""

    id: str
    """Random name, made at process start: a process that is started again is another member."""
    address: str
    """Address, HOST:PORT. The weights depend on it, so a process that is started again gets back
    what it served."""
    draining: bool = False
    """True if the shard hands over what it serves and takes nothing more."""
    joined: int = field(default=0, compare=False)
    """Version of the first view with this process; 0: not known."""

    def took(self, view: int) -> bool:
        """Return whether this process can have taken a log under a view.

        Otherwise a process before it at its address has taken the log.
        """
        return view >= self.joined


@dataclass(frozen=True, slots=True)
class View:
    """The members and pins at one version. No two members have the same id or address.

    >>> view = View().joined(Member("a1", "host-a:50051")).joined(Member("b1", "host-b:50051"))
    >>> view.shard_of("ns/clicks").address
    'host-a:50051'
    >>> view.draining("host-a:50051", on=True).shard_of("ns/clicks").address
    'host-b:50051'
    """

    version: int = 0
    """Version, which only grows. After ``dated`` no two views have the same."""
    members: tuple[Member, ...] = ()
    """Members in the order of their addresses."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Addresses by computation, as an operator has pinned them; such a shard may be dead."""

    def shard_of(self, computation: str) -> Member | None:
        """Return the member that should serve a computation; None when there are no members.

        It is the shard that the computation is pinned to, while that shard is a member and does not
        drain. Else the weight decides among the shards that do not drain, or among all when all of
        them drain: so every computation has a shard. Cost: a hash a member, 1 us each.
        """
        staying = [member for member in self.members if not member.draining] or self.members
        pin = self.pins.get(computation)
        for member in staying:
            if member.address == pin and not member.draining:
                return member
        return max(staying, key=lambda member: _weight(member.address, computation), default=None)

    def member(self, member_id: str) -> Member | None:
        """Return the member with an id, or None."""
        return next((member for member in self.members if member.id == member_id), None)

    def at(self, address: str) -> Member | None:
        """Return the member with an address, or None."""
        return next((member for member in self.members if member.address == address), None)

    def joined(self, member: Member) -> View:
        """Return the view with one more member, in the place of any with its id or its address."""
        others = (other for other in self.members if other.id != member.id and other.address != member.address)
        return self._with((*others, replace(member, joined=member.joined or self.version + 1)))

    def without(self, ids: Iterable[str]) -> View:
        """Return the view without some members.

        Their pins stay, for later processes at their addresses.
        """
        ids = set(ids)
        return self._with(member for member in self.members if member.id not in ids)

    def draining(self, address: str, *, on: bool) -> View:
        """Return the view with a member that drains, or does not any more.

        A process that is started again at the address does not drain.
        """
        return self._with(replace(m, draining=on) if m.address == address else m for m in self.members)

    def pinned(self, computation: str, address: str) -> View:
        """Return the view with a computation pinned to an address.

        An empty address ends the pin.
        """
        pins = {name: pin for name, pin in self.pins.items() if name != computation}
        if address:
            pins[computation] = address
        return replace(self, version=self.version + 1, pins=pins)

    def dated(self, now: int) -> View:
        """Return the same view with a version of at least ``now``.

        ``now`` is the store's time in microseconds. Every proposed view is dated. A store may lose
        its newest views while some member still relies on one of them. If versions were counted by
        ones, the next view would get the version of a lost one, and no shard could see that they
        differ; a date is newer than any lost version. Like a hybrid logical clock (Kulkarni et al.
        2014), the version grows also while the clock stands or goes back.
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
        """Return the view that was encoded. Raises google.protobuf.message.DecodeError."""
        message = pb.Membership.FromString(payload)
        members = tuple(Member(m.id, m.address, m.draining, m.joined) for m in message.members)
        return cls(message.version, members, {pin.computation: pin.address for pin in message.pins})

    def _with(self, members: Iterable[Member]) -> View:
        ordered = tuple(sorted(members, key=lambda member: member.address))
        return replace(self, version=self.version + 1, members=ordered)


@dataclass(frozen=True, slots=True)
class Beats:
    """The last beats of all shards. Times are microseconds by the store's clock."""

    now: int
    last: Mapping[str, int]
    """Time of the last beat by id, also of shards that are no members yet."""
    since: int
    """Start of the time in which beats came without a gap: the store was there, and remembers
    them."""

    def silence(self, member_id: str) -> int:
        """Return for how many microseconds the store could have heard of a shard but did not.

        Time in which the store itself was away does not count.
        """
        return self.now - max(self.last.get(member_id, 0), self.since)


def proposal(
    view: View, beats: Beats, me: Member, *, pace: Pace, newest_version: int, gone: Container[str] = ()
) -> View | None:
    """Return the view that a shard should propose in place of the store's view; None: all is well.

    ``me`` joins unless its id is in the view, with its flag for draining: pass the one of the
    newest view that it was in. Members that were silent for longer than ``pace`` allows are
    left out. Silence counts from ``Beats.since`` on: when the store itself was away, no member is
    dead. ``gone`` are the ids whose processes seem to have died: they are allowed less silence.
    ``newest_version`` is the newest that this process has read. A store with a lower version has
    lost views: it gets a view above ``newest_version``, which all shards take for new.

    Two living processes that advertise one address would push each other out in turns. A shard that
    was a member, and finds another one at its address that joined later, was replaced: it should
    end, and not propose again.
    """
    others = (member.id for member in view.members if member.id != me.id)
    dead = {other for other in others if pace.over(beats.silence(other), gone=other in gone)}
    proposed = view.without(dead) if dead else view
    version = max(view.version, newest_version, beats.now - 1) + 1
    if view.member(me.id) is None:
        # ``joined`` is a date as the version is: it shows which of two processes joined later, also
        # when views were lost between them.
        proposed = proposed.joined(me if me.joined else replace(me, joined=version))
    if proposed is view and view.version >= newest_version:
        return None
    return replace(proposed, version=version)


def _weight(address: str, computation: str) -> tuple[bytes, str]:
    """Return the weight of a shard for a computation.

    It is random, but the same in all releases, which must agree. An address holds no line break.
    """
    return blake2b(f"{address}\n{computation}".encode(), digest_size=8).digest(), address
