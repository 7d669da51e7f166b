"""Slices: a computation that is too large for one shard is cut, and what serves a slice of it is one of its workers.

    worker -> slice `hourly~3`: round, append -> told of what is durable -> claim and reports of the slice at `hourly` -> answer

The computation itself, the root of a tree of two levels, has one key range for each slice. Whoever serves a slice claims that range under its own
ownership number, and reports the least value that is durable in the slice's log: a newer number always wins, and a late message of an older one is
refused. So the root knows of every slice what it would know of a worker, and its values are the computation's.

One thing is different from a worker: the slice has workers itself, who count on its answers. A worker that was told that an older record is kept may
let it go, and its sender moves on. So nobody gets an answer by which the slice stands below the greatest value that may count at the root, before the
root has taken over the lesser one; and nobody gets one at all before the root knows whose the slice is. An answer by which the slice only advances
waits for nothing. And as inputs are added at the root, no output is told that it may say how far it is complete, before the root knows that.

**Cut anew.** An operator cuts a slice X in two at a key: X keeps the first keys, and Y, which is new, gets the last ones. Each step is durable before the next
one, and whoever serves the slice by then goes on with it, after any crash:

1. The graph says it (``Topology.split``): X is smaller, and Y has X as its ``source``.
2. X hears of it, gives up its range at the root, so that nothing of it is acknowledged any more, and *moves out*: one record of its log, behind which it knows
   nothing of these keys but what it did know of them, kept for Y. Their workers lose them. Answers that were waiting are refused: they may tell of keys that are Y's.
3. Y, which grants nothing before, reads that from X's log, and *takes in*: one record of its log, in one step with the graph, where Y has no source any more.
4. Both claim their keys at the root, by a newer generation, as their logs say it: what X has said under its old claim, of all keys, is refused from the first
   of these claims on, and was no more than what is true of each key before. The root takes claims of whole slices alone, as the graph has them.

X forgets what it has handed over when the graph says that Y has it. One slice of a computation is cut at a time. If X cannot be read any more, Y waits, and
with it the computation holds: a reset undoes a cut that is under way. So sequencers of any key only grow, also in the new incarnation. Two slices are never made one.

Pure is :class:`Slice` but for its one task, which asks ``Above``: the network, or the root itself where the same process serves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowwater_authority.engine.placement import moved
from lowwater_authority.engine.slice import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Spec
    from lowwater_authority.engine.served import Answer
    from lowwater_authority.engine.slice import Context


class Slices:
    """The slices that one process serves, by name. See :class:`lowwater_authority.engine.served.SlicesHere`."""

    def __init__(self) -> None:
        self._slices: dict[str, Slice] = {}
        self._context: Context | None = None
        self._withheld = 0
        """Answers that were refused for slices that are not served here any more."""

    def connect(self, context: Context) -> None:
        """Give the slices the rooms of their shard, which need this one first."""
        self._context = context

    def of(self, name: str) -> Slice | None:
        """Return a slice that is served here; None for others."""
        return self._slices.get(name)

    def follow(self, name: str) -> None:
        """Begin to report a computation to its root, if it is a slice."""
        context = self._context
        assert context is not None, "connect comes first"
        computation = context.served.held.computation(name)
        if computation is None or not computation.spec.slice_of:
            return
        before = self._slices.get(name)
        self.unfollow(name)
        above = context.served.placement.above
        self._slices[name] = made = Slice(context, computation, above, before.asked if before is not None else 0)
        made.follow()

    def follow_anew(self, spec: Spec) -> None:
        """Begin again if the slice was dropped and registered with other keys since."""
        known = self._slices.get(spec.name)
        if known is not None and not known.is_of(spec):
            self.follow(spec.name)

    def unfollow(self, name: str) -> None:
        """Stop reporting a computation."""
        if (known := self._slices.pop(name, None)) is not None:
            self._withheld += known.withheld
            known.close()
            if self._context is not None:
                self._context.cuts.forget(name)

    def durable(self, computation: Computation) -> None:
        """Let the root hear what is durable of a computation, if it is a slice."""
        known = self._slices.get(computation.spec.name)
        if known is not None:
            known.durable(computation)

    def is_unbound(self, name: str, identity: str) -> bool:
        """Whether the root of a slice is not known to be bound to an identity. False of what is no slice."""
        known = self._slices.get(name)
        return known is not None and not known.is_bound(identity)

    async def bind(self, name: str, identity: str) -> None:
        """Bind the root to the identity of the slice's first worker. Raises IdentityMismatch, Unavailable."""
        if (known := self._slices.get(name)) is not None:
            await known.bind(identity)

    async def vouched(self, name: str, through: int, input_version: int) -> None:
        """Wait until the root knows how far outputs of a slice are complete. Raises Moved, Unavailable."""
        if (known := self._slices.get(name)) is None:
            raise moved(name)
        await known.vouched(through, input_version)

    def close(self) -> None:
        """Stop all reports: this process ends."""
        for known in self._slices.values():
            known.close()

    def unsettled(self, names: Iterable[str]) -> list[tuple[Answer, int]]:
        """Return those slices of some computations of which nothing is to be acknowledged yet, each with its turn. O(names) where any slice is served."""
        if not self._slices:
            return []
        return [
            (each, each.turn)
            for name in sorted(names)
            if (each := self._slices.get(name)) is not None and not each.is_settled()
        ]

    @property
    def unheard(self) -> int:
        """How many slices are served here that what they are slices of does not hear of just now. O(slices); for other threads too."""
        return sum(not each.reached for each in list(self._slices.values()))

    @property
    def withheld(self) -> int:
        """How many answers were refused because what a slice is a slice of had not heard of the change in time. As ``unheard``."""
        return self._withheld + sum(each.withheld for each in list(self._slices.values()))
