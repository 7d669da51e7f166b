"""The low watermark of the senders, for windows that it bounds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import lowwater
from lowwater import WatermarkView, errors
from lowwater_pipeline.dedup.errors import Refused
from lowwater_pipeline.dedup.mark import NO_FLOOR

__all__ = ["Low", "Senders"]

logger = logging.getLogger("lowwater.pipeline")

EVERY: Final = 1.0
"""Seconds between two reads. Until the next read the watermark is too low, which is safe: more ids
are remembered than need be."""


@dataclass(frozen=True, slots=True)
class Low:
    """A published low watermark, microseconds, and the incarnations of its computations."""

    micros: int
    incarnations: tuple[int, ...]


def low_of(names: Sequence[str], views: Mapping[str, WatermarkView]) -> Low:
    """Return the least low watermark of some computations. Raises Refused for an estimated one."""
    for name in names:
        view = views[name]
        if view.estimated:
            raise Refused(
                f"the watermark of {name} is estimated: older records may still come",
                "Name the computations of the senders that track their work exactly.",
            )
    least = min(views[name].low.micros for name in names)
    return Low(max(least, NO_FLOOR), tuple(views[name].incarnation for name in names))


class Senders:
    """Reads the watermark on its own thread. While the authority is away the last value stays."""

    def __init__(
        self, names: Sequence[str], ask: Callable[..., Mapping[str, WatermarkView]], every: float = EVERY
    ) -> None:
        self._names = names
        self._ask = ask
        self._every = every
        self._low: Low | None = None
        self._refused: Refused | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="lowwater-senders", daemon=True)

    @classmethod
    def of(cls, names: Sequence[str], client: lowwater.Client) -> Self:
        """Return the reader of some computations' watermarks."""
        return cls(names, client.get)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._thread.join()

    def low(self) -> Low | None:
        """Return the last value read; None before the first. Raises Refused."""
        if self._refused is not None:
            raise self._refused
        return self._low

    def _follow(self) -> None:
        away = False
        while not self._closing.is_set():
            try:
                self._low = low_of(self._names, self._ask(*self._names))
                away = False
            except Refused as refused:
                self._refused = refused
                return
            except errors.LowwaterError as error:
                if not away:
                    logger.warning("the watermark stays: the authority does not answer: %s", error)
                away = True
            self._closing.wait(self._every)
