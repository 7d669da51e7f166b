"""Slices: a computation that is too large for one shard is cut, and each slice reports to its root.

    worker -> slice `hourly~3`: round, append -> report to the root `hourly` -> answer

The computation itself is the *root* of a tree of two levels, and has one key range for each slice.
The shard that serves a slice claims that range under its own epoch, and reports the
least value that is durable in the slice's log. A newer number always wins, and a late message of an
older one is refused. So the root knows of a slice what it would know of a worker, and the values of
the root are those of the computation.

A slice differs from a worker in one thing: the slice has workers itself, who count on its answers.
A worker that was told that an older record is kept may release it, and the record's sender moves
on. If the root still counted a greater value of the slice, the root would lead that record. Three
rules prevent this:

- A slice answers no worker before the root has granted the slice's range.
- If the slice's value is below the greatest value that may count at the root, the answer waits
  until the root has confirmed the lower one. An answer by which a slice only advances waits for
  nothing.
- Inputs are added at the root. So an output may call itself complete only after the root has
  confirmed how far.

How a computation is cut, and a slice is cut in two: core/cut.py.

:class:`Slice` is pure but for its one task, which speaks to the root through ``Above``: over the
network, or directly if the same process serves the root.
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
    """The slices that this process serves: ``SlicesHere`` of engine/served.py."""

    def __init__(self) -> None:
        self._slices: dict[str, Slice] = {}
        self._context: Context | None = None
        self._withheld = 0
        """Answers that were refused for slices that are not served here any more."""

    def connect(self, context: Context) -> None:
        """Give the slices the rooms of their shard, which are built after this object."""
        self._context = context

    def of(self, name: str) -> Slice | None:
        """Return a slice that is served here; None for others."""
        return self._slices.get(name)

    def follow(self, name: str) -> None:
        """See SlicesHere."""
        context = self._context
        assert context is not None, "connect comes first"
        computation = context.served.held.computation(name)
        if computation is None or not computation.spec.slice_of:
            return
        before = self._slices.get(name)
        self.unfollow(name)
        above = context.served.placement.above
        slice_ = Slice(context, computation, above, before.claims if before is not None else 0)
        self._slices[name] = slice_
        slice_.follow()

    def follow_anew(self, spec: Spec) -> None:
        """See SlicesHere."""
        slice_ = self._slices.get(spec.name)
        if slice_ is not None and not slice_.matches(spec):
            self.follow(spec.name)

    def unfollow(self, name: str) -> None:
        """See SlicesHere."""
        if (slice_ := self._slices.pop(name, None)) is not None:
            self._withheld += slice_.withheld
            slice_.close()
            if self._context is not None:
                self._context.cuts.forget(name)

    def durable(self, computation: Computation) -> None:
        """See SlicesHere."""
        slice_ = self._slices.get(computation.spec.name)
        if slice_ is not None:
            slice_.durable(computation)

    def is_unbound(self, name: str, identity: str) -> bool:
        """See SlicesHere."""
        slice_ = self._slices.get(name)
        return slice_ is not None and not slice_.is_bound(identity)

    async def bind(self, name: str, identity: str) -> None:
        """See SlicesHere."""
        if (slice_ := self._slices.get(name)) is not None:
            await slice_.bind(identity)

    async def vouched(self, name: str, through: int, input_version: int) -> None:
        """See SlicesHere."""
        if (slice_ := self._slices.get(name)) is None:
            raise moved(name)
        await slice_.vouched(through, input_version)

    def close(self) -> None:
        """Stop all reports: this process ends."""
        for slice_ in self._slices.values():
            slice_.close()

    def unsettled(self, names: Iterable[str]) -> list[tuple[Answer, int]]:
        """See SlicesHere. O(names) if this process serves any slice, else O(1)."""
        if not self._slices:
            return []
        slices = (self._slices.get(name) for name in sorted(names))
        return [(slice_, slice_.turn) for slice_ in slices if slice_ is not None and not slice_.is_settled()]

    @property
    def unheard(self) -> int:
        """Number of slices served here whose last report the root has not confirmed.

        O(slices); from any thread.
        """
        return sum(not slice_.reached for slice_ in list(self._slices.values()))

    @property
    def withheld(self) -> int:
        """Number of answers refused because a root did not confirm in time. From any thread."""
        return self._withheld + sum(slice_.withheld for slice_ in list(self._slices.values()))
