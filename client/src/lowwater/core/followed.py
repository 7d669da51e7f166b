"""Records of the computations that a client follows."""

from __future__ import annotations

from dataclasses import dataclass

from lowwater import errors
from lowwater.core.router import HOME
from lowwater.core.search import Sought

__all__ = ["Denial", "Followed"]


@dataclass(slots=True)
class Denial:
    """Refusal of a computation that the caller may not read."""

    error: errors.LowwaterError | None
    """Error of the refusal; None while a new reader waits for an answer, who must not get an old
    one."""
    earliest: float
    """Time of the next question about it."""
    times: int
    """Number of refusals after the first."""


class Followed(Sought):
    """Record of one computation that is followed or denied. See :mod:`lowwater.core.router`.

    It is in one of three states. *Placed*: a stream, of a shard or of home, carries it. *Lost*: the
    search asks where it is. *Denied*: it is asked for alone, until the caller may read it.
    """

    __slots__ = ("denial", "elsewhere", "place", "readers", "warned_at")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.readers: int = 0
        """Number of subscriptions that name it."""
        self.elsewhere: bool = False
        """True when home does not send it to a reader of everything, so that it is followed by name
        at its shard."""
        self.place: str | None = None
        """Key of the stream where it was last placed; None for home, or since it was lost."""
        self.denial: Denial | None = None
        """Reason why streams leave it out; None while they do not."""
        self.warned_at: float = float("-inf")
        """Time of the last line in the log about its denial."""

    @property
    def at(self) -> str | None:
        """Key of its stream, an address or ``HOME``; None while it is lost or denied."""
        if self.lost or self.denial is not None:
            return None
        return HOME if self.place is None else self.place
