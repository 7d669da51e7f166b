"""The cut of a computation into slices: what it is, and how a slice is cut in two.

A computation registered with the keys ``g`` and ``p`` has the slices 0 ``[, g)``, 1 ``[g, p)`` and
2 ``[p, )``. The computation itself is their *root*. This module has the ``slicing`` of a Spec: the
``Cut`` of a root, or the ``SliceKeys`` of a slice. Each slice is a computation of its own in the
graph, named ``hourly~1``; shards share slices among themselves as any computations
(cluster/membership.py). How a slice reports to its root is described in engine/slices.py.

An operator cuts slice 1, here X, in two at ``k``. X keeps ``[g, k)``, and the new slice 3, Y, gets
``[k, p)``. Each step is durable before the next begins. After a crash, the shard that serves the
slice goes on with the next step:

1. The graph says so (``Topology.split``): X ends at ``k``, and the cut has
   ``Part(3, b"k", source=1)``. ``source`` is the slice that has yet to hand over its state.
2. X gives up its range at the root, so that no answer leaves X any more. X then *hands over*, by
   one record of its log (``SliceComputation.hand_over``). After that record, X has these keys no
   more, and keeps only their state for Y: values, sequencers, granted requests, order of claims.
   Workers lose their claims of these keys. Waiting answers are refused, because they may concern
   keys of Y.
3. Y grants nothing until it has read that state from X's log and *received* it
   (``SliceComputation.receive``). This is one record of Y's log, appended together with the graph,
   in which Y has no source any more.
4. Both claim their keys at the root, by a newer generation, which is in their logs. From the first
   of these claims on, the root refuses reports under X's old claim. Until then such reports were
   right: a report about all keys claims no more than what is true of each key. The root accepts
   claims only of whole slices, as the graph has them.

engine/cuts.py takes steps 2 and 3, engine/slice.py step 4. X forgets the state when the graph says
that Y has it. Only one slice of a computation is cut at a time. If X cannot be read any more, Y
waits, and the computation holds; a reset undoes the cut. So the sequencers of a key only grow, also
in a new incarnation. Slices are never merged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

WHOLE: Final = (b"", b"")
"""The whole key space, ``[start, end)``."""

MAX_SLICES: Final = 1000
MAX_SLICE_KEY: Final = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One slice of a cut."""

    number: int
    start: bytes
    """First key of the slice."""
    source: int | None = None
    """Number of the slice that has yet to hand over these keys; None: the keys were received."""
    began_end: bytes | None = None
    """End of the keys with which the slice began this incarnation; None: the keys end there now.
    Set once a cut in two has made the slice smaller."""


@dataclass(frozen=True, slots=True)
class Cut:
    """All slices of a computation."""

    starts: tuple[bytes, ...] = ()
    """First keys of all slices but the first, ascending, as registered; empty: not cut."""
    recut: tuple[Part, ...] = ()
    """Slices in the order of their keys, since one was cut in two; empty: as ``starts`` says."""
    version: int = 0
    """Number of changes of ``recut``."""
    next_number: int = 0
    """Number of the next slice, where there are more than ``starts`` makes. No number is used
    twice, because the log of a slice outlives the slice."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The slices, in the order of their keys; empty: the computation is not cut."""
        if self.recut or not self.starts:
            return self.recut
        return tuple(Part(number, start) for number, start in enumerate((b"", *self.starts)))

    def spans(self) -> list[tuple[Part, tuple[bytes, bytes]]]:
        """Return all slices with their keys, ``[start, end)``, in the order of the keys."""
        parts = self.parts
        ends = (*(part.start for part in parts[1:]), b"")
        return [(part, (part.start, end)) for part, end in zip(parts, ends if parts else (), strict=True)]

    def over(self, start: bytes, end: bytes) -> list[int]:
        """Return the numbers of the slices that share keys with an interval. O(slices)."""
        parts = self.parts
        starts = [part.start for part in parts]
        first = bisect_right(starts, start) - 1
        last = bisect_left(starts, end) if end else len(parts)
        return [part.number for part in parts[first : max(first + 1, last)]]

    def under_way(self) -> Part | None:
        """Return the slice that has yet to receive its keys, if there is one."""
        return next((part for part in self.parts if part.source is not None), None)

    def split(self, divided: Part, end: bytes, at: bytes, number: int) -> Cut:
        """Return the cut with a slice that ends at ``end`` cut in two; the new slice is empty."""
        parts = self.parts
        index = parts.index(divided)
        smaller = replace(divided, began_end=end if divided.began_end is None else divided.began_end)
        recut = (*parts[:index], smaller, Part(number, at, divided.number), *parts[index + 1 :])
        return Cut(self.starts, recut, self.version + 1, number + 1)

    def received(self, receiver: Part) -> Cut:
        """Return the cut with a slice that has received its keys."""
        recut = tuple(replace(part, source=None) if part is receiver else part for part in self.parts)
        return replace(self, recut=recut, version=self.version + 1)

    def renewed(self) -> Cut:
        """Return the cut of the next incarnation: a cut in two that is under way is undone.

        Nothing is known of any key any more, so nothing is left to hand over. The old slice gets
        its keys back rather than the new one: only the old slice has granted claims of them, and
        only its later sequencers are above those.
        """
        recut = tuple(Part(part.number, part.start) for part in self.recut if part.source is None)
        return replace(self, recut=recut)

    def wrong(self) -> tuple[object, str] | None:
        """Return the registered value that cannot be, and the fix; None: nothing is wrong."""
        if len(self.starts) >= MAX_SLICES:
            return f"{len(self.starts) + 1} slices", f"cut it into at most {MAX_SLICES}"
        if any(not 0 < len(key) <= MAX_SLICE_KEY for key in self.starts):
            fix = f"give keys of 1 to {MAX_SLICE_KEY} bytes: where the second slice begins, and so on"
            return "a key that is empty or too long", fix
        if any(a >= b for a, b in pairwise(self.starts)):
            return [key.hex() for key in self.starts[:20]], "give ascending keys, each once"
        return None


@dataclass(frozen=True, slots=True)
class SliceKeys:
    """The keys of one slice."""

    span: tuple[bytes, bytes] = WHOLE
    """Key space of the slice, ``[start, end)``."""
    source: str = ""
    """Slice that has yet to hand over these keys; empty: they were received."""
    began_end: bytes | None = None
    """End of the keys with which the slice began, as in Part."""
    receiver: str = ""
    """Slice that has yet to receive keys of this one; empty: none."""
    version: int = 0
    """Version of the root's cut."""

    @property
    def began(self) -> tuple[bytes, bytes]:
        """The key space with which the log of the slice begins in this incarnation."""
        return self.span if self.began_end is None else (self.span[0], self.began_end)


UNCUT: Final = Cut()
ALL_KEYS: Final = SliceKeys()
