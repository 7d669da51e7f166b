"""One computation as the watches of a client have it."""

from __future__ import annotations

from dataclasses import dataclass

from lowwater import errors
from lowwater.core.router import HOME
from lowwater.core.search import Sought

__all__ = ["Denial", "Followed"]


@dataclass(slots=True)
class Denial:
    """What is known of a computation that a stream was refused for."""

    error: errors.LowwaterError | None
    """Why; None while somebody new waits to be told, who shall not get an old answer."""
    earliest: float
    """When it may be asked for."""
    times: int
    """How often it was refused again."""


class Followed(Sought):
    """One computation as the watches of a client have it, while it is followed, or denied.

    See :mod:`lowwater.core.router`.

    It is *placed*: at the stream of a shard or of home; or *lost*: its search asks where it is; or
    *denied*: it is asked for on its own, whether the caller may read it by now.
    """

    __slots__ = ("denial", "elsewhere", "place", "readers", "warned_at")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.readers: int = 0
        """Subscriptions that name it."""
        self.elsewhere: bool = False
        """Whether home does not tell of it to who follows all, so that it is followed by name where
        it is."""
        self.place: str | None = None
        """Whose stream it was placed at last; None: at no other than home's, or lost since."""
        self.denial: Denial | None = None
        """Why it is left out of the streams; None while it is not."""
        self.warned_at: float = float("-inf")
        """When a line in the log said last that it is denied."""

    @property
    def at(self) -> str | None:
        """Whose stream it is placed at: that of an address, or ``HOME``; None while it is lost, or denied."""
        if self.lost or self.denial is not None:
            return None
        return HOME if self.place is None else self.place
