"""What the shard and the services tell whoever watches them. The default watches nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Observer:
    """Receives what happens. Every method is called on the event loop and must be quick."""

    def computations(self, count: int) -> None:
        """There are now so many computations."""

    def round(self, requests: int) -> None:
        """A round of so many requests was published."""

    def append(self, size: int) -> AbstractContextManager[object]:
        """Surround an append of so many bytes."""
        del size
        return nullcontext()

    def reported(self, ranges: int, refused: dict[str, int]) -> None:
        """A report message with so many ranges was answered; refused ranges by reason."""

    def refused(self, method: str, reason: str) -> None:
        """A call was refused."""

    def pushed(self, computations: int) -> None:
        """A message with so many watermarks was given to a subscriber."""
