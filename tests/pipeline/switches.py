"""Each of these breaks one sentence of the protocol, in tests only, to show that a test would notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from confluent_kafka import TopicPartition

from lowwater_pipeline.dedup.lane import Lane
from lowwater_pipeline.dedup.mark import NO_FLOOR, Mark
from lowwater_pipeline.dedup.topics import bounds, consumer

__all__ = [
    "AsksForNoPartition",
    "CountsUnchecked",
    "EndsAtWhatIsCommitted",
    "ForgetsItsFloor",
    "ReadsBeforeItTakes",
    "StoresFirst",
    "TakesAnyOffset",
    "TakesAnyTopic",
    "WatermarkCountsAtOnce",
]


class CountsUnchecked(Lane):
    """It does not compare how many rows the output has with how many it has written, which would notice what the others do."""

    def _compare(self, ordinal: int) -> None:
        del ordinal


class AsksForNoPartition(Lane):
    """Takes each id where it finds it."""

    def _keep_to_partition(self, batch: Any) -> None:
        del batch


class StoresFirst(Lane):
    """Remembers, then commits."""

    def _finish(self, batch: Any) -> None:
        batch.mark = self._next_mark(batch)
        before, dirty = self._mark, self._dirty
        known = {each: batch.known[each] for each in batch.decisions.fresh if each in batch.known}
        self._store(batch.decisions.fresh, known, batch.decisions.floor, self._vector, before.next)
        self._probe("stored")
        self._dirty = dirty
        self._publish(batch)
        self._mark = batch.mark


class EndsAtWhatIsCommitted(CountsUnchecked):
    """Reads the output to the last stable offset."""

    def _end(self) -> int:
        reader = consumer(self._settings, committed=True)
        try:
            return bounds(reader, self._settings.output, self._partition, self._settings.patience)[1]
        finally:
            reader.close()

    def _mend(self, end: int) -> None:
        super()._mend(end)
        self._vector = end


class ReadsBeforeItTakes(CountsUnchecked):
    """Reads the output, and takes it over afterwards."""

    def open(self) -> None:
        settings, reader = self._settings, consumer(self._settings, committed=True)
        end = bounds(reader, settings.output, self._partition, settings.patience)[1]
        reader.close()
        self._reader = consumer(settings, committed=True)
        self._ends = consumer(settings, committed=False)
        self._mark = Mark(self._pins.input.id, self._pins.output.id, 1, settings.rule, NO_FLOOR, 0)
        self._known = False
        self._mend(end)
        self._begin()
        (found,) = self._reader.committed([TopicPartition(settings.input, self._partition)], timeout=60)
        self._position = self._reached = max(found.offset, 0)
        self._known = True
        self._mark = Mark.parse(found.metadata or "")
        self._assign()


class TakesAnyTopic(CountsUnchecked):
    """Knows topics by their names alone."""

    def _checked(self, metadata: str | None, name: str) -> Mark:
        mark = Mark.parse(metadata or "")
        return replace(mark, input=self._pins.input.id, output=self._pins.output.id)


class TakesAnyOffset(CountsUnchecked):
    """Goes on wherever somebody has set the offset."""

    def _checked(self, metadata: str | None, name: str) -> Mark:
        return Mark(self._pins.input.id, self._pins.output.id, self._pins.partitions, self._settings.rule, NO_FLOOR, 0)

    def _remembered(self, end: int) -> Any:
        from lowwater_pipeline.dedup.memory import Memory

        return Memory(self._directory)


class ForgetsItsFloor(Lane):
    """The watermark that it works by is not committed with the rows."""

    def _checked(self, metadata: str | None, name: str) -> Mark:
        return replace(super()._checked(metadata, name), floor=NO_FLOOR)


class WatermarkCountsAtOnce(Lane):
    """Does not wait until it has read what was there when the watermark was read."""

    def _head(self) -> int:
        return 0
