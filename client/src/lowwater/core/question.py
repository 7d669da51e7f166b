"""What asks one question after the other, as the shells drive it: a stream of one message each."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lowwater import errors
from lowwater.core.backoff import PATIENCE
from lowwater.core.router import HOME
from lowwater.core.surroundings import Surroundings

__all__ = ["Question"]


class Question(ABC):
    """The pauses between the questions of a search, or of what asks for what is forbidden.

    There is one in front of each question. It ends early, and another one begins, when something
    need not wait for so long any more.
    """

    key: str = HOME
    """Who is asked: whichever shard ``address`` says, each time."""
    failure: errors.LowwaterError | None = None
    interrupted: bool = False
    concerned: None = None

    def __init__(self, surroundings: Surroundings) -> None:
        self._monotonic = surroundings.monotonic
        self._random = surroundings.random
        self._due = 0.0  # when the pause before the next question is over

    @property
    def first_pause(self) -> float:
        """Seconds to wait before the first question, and once it is hurried."""
        return self._pause()

    @property
    def hurried(self) -> bool:
        """Whether something need not wait for as long as the pause lasts. O(what is asked for)."""
        left = self._due - self._monotonic()
        return left > PATIENCE and self._wait() < left - PATIENCE

    def retire(self) -> None:  # noqa: B027 - there is nothing to do
        """Nothing is asked for any more."""

    def _pause(self) -> float:
        """Begin the pause before the next question; returns its seconds."""
        pause = max(self._least(), self._wait())
        self._due = self._monotonic() + pause
        return pause

    @abstractmethod
    def _least(self) -> float:
        """Return the seconds that the next question waits at least, whatever is asked for."""

    @abstractmethod
    def _wait(self) -> float:
        """Return the seconds until anything may be asked for."""
