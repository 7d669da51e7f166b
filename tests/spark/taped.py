"""A toy: the tape as a kind of source of its own. With a line of the table it is whatever a source can be; without, lowwater does not know it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import NONE, Leaf, Line, OpenSource, Source, SourceDeclared
from lowwater_spark.sources.files.roots import Replaced, identity_of
from lowwater_spark.sources.opaque import OpenOpaque

TAPE = "tape"

ANEW = "Start from a new checkpoint, with adopt=True."


def rows_of(line: Line | None) -> int:
    """Return the number of rows that were read up to a line of Spark's offset log."""
    if line is None or line == NONE:
        return 0
    try:
        return int(json.loads(line)[TAPE]["line"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointMismatch(f"{line!r} is not the offset of a tape. {ANEW}") from error


def went_back(before: Line, now: Line) -> str:
    return f"from {rows_of(before)} to {rows_of(now)}" if rows_of(now) < rows_of(before) else ""


@dataclass(frozen=True, slots=True)
class TapeInput(Source):
    path: str
    inputs: frozenset[str] | None = None

    kind = TAPE

    @classmethod
    def planned(cls, leaf: Leaf) -> TapeInput | None:
        return cls(leaf.options["path"]) if leaf.format == TAPE else None

    @classmethod
    def declared(cls, declared: SourceDeclared, session: Callable[[], SparkSession]) -> TapeInput:
        return cls(declared.path)

    @classmethod
    def guess(cls, line: Line) -> str:
        return f"{TAPE}:/data/tape" if f'"{TAPE}"' in line else ""

    @property
    def name(self) -> str:
        return f"the tape {self.path}"

    def waiting_for(self, inputs: frozenset[str]) -> TapeInput:
        return replace(self, inputs=inputs) if inputs else self

    def check(self, line: Line) -> None:
        rows_of(line)

    def pin(self) -> list[int | str | None]:
        return [*identity_of(self.path)]

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        if self.inputs is None:
            return OpenOpaque(TAPE, manifest.checkpoint / "sources" / str(number), order=went_back)
        if manifest.pin(TAPE, number) is None:
            manifest.keep_pin(TAPE, number, self.pin())
        return OpenTape(self, manifest.pin(TAPE, number))


class OpenTape(OpenSource):
    def __init__(self, source: TapeInput, pin: object) -> None:
        self._source = source
        self._pin = pin
        self._committed: Line = NONE
        self._planned: Line = NONE

    @property
    def _other(self) -> str:
        return f"{self._source.name} is another one. {ANEW}" if self._source.pin() != self._pin else ""

    def read_to(self, line: Line) -> None:
        if back := went_back(self._committed, line):
            raise CheckpointMismatch(f"the offset of {self._source.name} has gone back, {back}. {ANEW}")
        self._planned = line

    def confirm(self, line: Line) -> None:
        if self._other:
            raise CheckpointMismatch(self._other)
        self._committed = line

    def head(self, settled: Line) -> int:
        rows = len(Path(self._source.path).read_text().splitlines())
        if self._other or rows < rows_of(settled):
            raise Replaced(self._other or f"{self._source.name} was cut off. {ANEW}")
        return rows

    def reached(self, head: int, offset: Line | None) -> bool:
        return rows_of(offset) >= head

    def missing(self, head: int, limit: int) -> list[str]:
        return [f"{self._source.name}, row {row}" for row in range(rows_of(self._planned), head)][:limit]
