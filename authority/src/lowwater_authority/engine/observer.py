"""What the shard and the services tell whoever watches them. The default watches nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Observer:
    """Receives what happens. Every method is called on the event loop and must be quick."""

    def computations(self, count: int) -> None:
        """This process now serves so many computations."""

    def round(self, requests: int) -> None:
        """A round of so many requests was published; of none when it only answered questions."""

    def append(self, size: int) -> AbstractContextManager[object]:
        """Surround an append of so many bytes."""
        del size
        return nullcontext()

    def replayed(self, seconds: float) -> None:
        """One computation was rebuilt from what was read of its log; others had the event loop in between for none of these seconds."""

    def claimed(self) -> None:
        """A claim was granted; a repeat of one counts again."""

    def reported(self, ranges: int, refused: dict[str, int]) -> None:
        """A report message with so many ranges was answered; refused ranges by reason."""

    def refused(self, method: str, reason: str) -> None:
        """A call was refused."""

    def called(self, method: str, code: str, seconds: float) -> None:
        """A unary call has ended with a status after so many seconds."""

    def pushed(self, computations: int, waited: float | None = None) -> None:
        """A message with so many watermarks was given to a subscriber; the oldest had waited so many seconds, if that is known."""
