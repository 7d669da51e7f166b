"""How often a shard beats, and for how long it may be silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEAD_AFTER: Final = 1.5
"""Seconds of silence after which the other shards take over what a shard serves."""

BEATS: Final = 5
"""Beats of a shard in that time."""

GONE_BEATS: Final = 1.5
"""Beats of silence after which a shard loses what it serves when its process seems to have died."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a deployment, in seconds."""

    dead_after: float = DEAD_AFTER
    """Silence that any shard is allowed."""

    @property
    def beat(self) -> float:
        """Time from one beat to the next."""
        return self.dead_after / BEATS

    @property
    def gone_after(self) -> float:
        """Silence that a shard is allowed when its process seems to have died.

        It is more than a beat, so that a member which beats is never left out because of a network.
        """
        return GONE_BEATS * self.beat

    def over(self, silence: int, *, gone: bool) -> bool:
        """Return whether a member was silent for too long, in microseconds.

        ``gone``: its process seems to have died.
        """
        return silence > round(1e6 * (self.gone_after if gone else self.dead_after))
