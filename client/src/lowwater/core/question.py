"""Base of machines that ask one question after the other: each is a stream of one message."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lowwater import errors
from lowwater.core.backoff import PATIENCE
from lowwater.core.router import HOME
from lowwater.core.surroundings import Surroundings

__all__ = ["Question"]


class Question(ABC):
    """The pauses between the questions of a search or of denials.

    Each question follows a pause. The pause ends early, and a shorter one begins, when a
    computation becomes due earlier.
    """

    key: str = HOME
    """Key of the stream; the machine's ``address`` changes with each question."""
    failure: errors.LowwaterError | None = None
    interrupted: bool = False
    concerned: None = None

    def __init__(self, surroundings: Surroundings) -> None:
        self._monotonic = surroundings.monotonic
        self._random = surroundings.random
        self._due = 0.0  # time at which the pause before the next question ends

    @property
    def first_pause(self) -> float:
        """Seconds to wait before the first question, and again after ``hurried``."""
        return self._pause()

    @property
    def hurried(self) -> bool:
        """True when a computation is due well before the end of the pause. O(computations)."""
        remaining = self._due - self._monotonic()
        return remaining > PATIENCE and self._wait() < remaining - PATIENCE

    def retire(self) -> None:  # noqa: B027 - there is nothing to do
        """Take the end: no computation is to be asked about."""

    def _pause(self) -> float:
        """Begin the pause before the next question; returns its seconds."""
        pause = max(self._least(), self._wait())
        self._due = self._monotonic() + pause
        return pause

    @abstractmethod
    def _least(self) -> float:
        """Return the least seconds before the next question, whatever is due."""

    @abstractmethod
    def _wait(self) -> float:
        """Return the seconds until the first computation is due."""
