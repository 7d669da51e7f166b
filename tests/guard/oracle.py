"""What a guarded store must do, told apart from its code: by the whole story of each slot, and not by what is left of it in a row.

It knows every raise and every write that has happened, in order. From these it says what the next call comes to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowwater_pipeline.guard import Claim


@dataclass
class Slot:
    """The story of one slot."""

    raises: list[Claim] = field(default_factory=list)
    begin: int = 0
    """The number of the first batch of whoever counts now."""
    writes: list[str] = field(default_factory=list)
    """The digests, in order, since then."""

    @property
    def owner(self) -> Claim | None:
        return self.raises[-1] if self.raises else None

    @property
    def next(self) -> int:
        return self.begin + len(self.writes)


class Oracle:
    """The truth about one guard."""

    def __init__(self, slots: int) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self.values: list[int] = []

    def raise_(self, claim: Claim, slots: range, begin: int) -> str:
        """What a raise comes to: "raised", or the name of an error. It happens."""
        for slot in slots:
            owner = self.slots[slot].owner
            if owner is None:
                continue
            if owner.token > claim.token or owner.incarnation > claim.incarnation:
                return "Fenced"
            if owner.token == claim.token:
                if owner.nonce != claim.nonce:
                    return "NonceMismatch"
                if owner.configuration != claim.configuration:
                    return "OldConfiguration"
            elif owner.incarnation == claim.incarnation and owner.identity != claim.identity:
                return "WrongOwner"
            elif any(each.configuration > claim.configuration for each in self.slots[slot].raises):
                return "OldConfiguration"
        for slot in slots:
            story = self.slots[slot]
            if story.owner == claim:
                continue
            if story.owner is None or story.owner.identity != claim.identity:
                story.begin, story.writes = begin, []
            story.raises.append(claim)
        return "raised"

    def write(self, claim: Claim, steps: Mapping[int, int], digest: str, values: list[int]) -> str:
        """What a write comes to: "written", "there already", or the name of an error. It happens."""
        there = []
        for slot in sorted(steps):
            story, owner = self.slots[slot], self.slots[slot].owner
            if owner is None or owner.token < claim.token:
                return "NotRaised"
            if owner.token > claim.token:
                return "Fenced"
            if owner.nonce != claim.nonce:
                return "NonceMismatch"
            if owner.configuration != claim.configuration:
                return "OldConfiguration"
            done, following = story.writes, story.next
            if done and steps[slot] == following - 1 and done[-1] == digest:
                there.append(True)
            elif steps[slot] == following:
                there.append(False)
            else:
                return "Rewound"
        if any(there):
            return "there already" if all(there) else "Rewound"
        for slot in steps:
            self.slots[slot].writes.append(digest)
        self.values += values
        return "written"
