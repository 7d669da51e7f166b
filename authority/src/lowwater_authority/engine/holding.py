"""One computation on a shard, from the take-over until it is let go or dropped: what was thirteen maps by its name are fields of one object.

    absent --read--> reading --take--> taking --replay--> serving <---> in doubt
       ^                |                 |                  |              |
       +---- failed ----+---- failed -----+---- let go ------+--------------+
       +<-- its log is short, or is another's -- gone <-- dropped -- (any of them)

========  =========================================  =============================================  ==================================
state     what it means                              who brings it about                            what may be done
========  =========================================  =============================================  ==================================
absent    nobody asks for it here, or its log is     nobody has taken it; ``Holdings.let_go``       a take-over may begin
          damaged and left alone for a while
reading   its log is read and replayed, its owner    ``Taking``, in a shared store                  nothing: clients are sent to the owner
          goes on
taking    the log is taken, and what has come since  ``Taking``, ``Shard.start``                    nothing is known of it yet
          is replayed
serving   the computation is in memory as the store  ``Holdings.hold``                              all
          has it
in doubt  memory and store may differ, or who owns   a roll-back, a heal, ``Holdings.rise``         what was published stays; see ``Memory``
          the log is being settled                                                                  for the rest
gone      it was dropped, and its log is made short  a graph without it                             nobody takes it until that is over
========  =========================================  =============================================  ==================================

A process that another one has replaced learns it from the journal alone (JournalFenced), and never from a clock: so a holding ends by
``let_go`` or by a drop, and by nothing else. Whoever has waited for the store looks at the state again before it goes on: it may be absent
by then, or taken anew.

What is pure: ``State``, ``Memory`` and what a holding says of itself. It does nothing by itself and waits for nothing. ``Holdings`` reads and
writes the store, and is the only one that changes a holding, but for how far a take-over has come.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowwater_authority.journal import Ownership

if TYPE_CHECKING:
    from lowwater_authority.core.computation import Computation

NOBODY: Final = Ownership()
"""Of what this process does not own."""


@dataclass(slots=True, eq=False)
class Holding:
    """One computation on this shard. See the top of this module for its states."""

    name: str
    ownership: Ownership = NOBODY
    """By which its log is this process's; epoch 0 when it is not held."""
    held: Computation | None = None
    """What is served; None when it is not."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One change of its ownership at a time: the position of a restore must be the next one when it is written."""
    renewing: bool = False
    """Whether its ownership is being renewed: an attempt may have made a newer owner than this process knows."""

    @property
    def computation(self) -> Computation:
        """What is served. Only of one that is."""
        assert self.held is not None, f"{self.name} is not held"
        return self.held
