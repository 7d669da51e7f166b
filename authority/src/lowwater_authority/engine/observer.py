"""Listener for figures of a shard and its services. The default ignores all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Observer:
    """Receives figures. Every method is called on the event loop, and must be quick."""

    def computations(self, count: int) -> None:
        """Note how many computations this process serves now."""

    def round(self, requests: int) -> None:
        """Note a published round, with its number of requests; 0: it only answered questions."""

    def append(self, size: int) -> AbstractContextManager[object]:
        """Surround an append of ``size`` bytes."""
        del size
        return nullcontext()

    def replayed(self, seconds: float) -> None:
        """Note a replayed log. Other tasks did not run in these seconds."""

    def claimed(self) -> None:
        """Note a granted claim. A repeat of a claim counts again."""

    def reported(self, ranges: int, refused: dict[str, int]) -> None:
        """Note an answered report: its ranges, and the refused ones by reason."""

    def refused(self, method: str, reason: str) -> None:
        """Note a refused call."""

    def called(self, method: str, code: str, seconds: float) -> None:
        """Note the end of a unary call, with its status and duration."""

    def pushed(self, computations: int, waited: float | None = None) -> None:
        """Note a message to a subscriber: its watermarks, and the age of the oldest, if known."""
