"""``python -m examples.dedup.hour``: an hour of event time through two deduplicating stages.

A sender repeats a fifth of its records within two minutes. What it has not got an acknowledgement
for holds its low watermark, so that is two minutes behind. From the 25th to the 35th minute one
record is not acknowledged, and the low watermark stands. The other stage knows of no low watermark
that moves, and can forget nothing. A picture shows what both remember.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import lowwater
import lowwater_spark as lws
from examples.flights.server import serving
from examples.session import clear, spark_session
from lowwater_pipeline.dedup.sieve import Counts
from lowwater_pipeline.dedup.stage import Deduplication

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START: Final = 1_357_516_800_000_000
"""2013-01-07, midnight; microseconds."""
MINUTE: Final = 60_000_000
STEP: Final = MINUTE // 2
FRESH: Final = 300
"""Records of a step."""
AGAIN: Final = 0.2
"""The share of records that are sent once more."""
BEHIND: Final = 2 * MINUTE
STALL: Final = range(25 * MINUTE, 35 * MINUTE)
RANGES: Final = 4
FOLLOWS, STANDS = "senders", "nobody"
"""The inputs of the two stages."""

Record = tuple[str, int]
"""Id and event time."""


class Sample(NamedTuple):
    """Figures of a stage after a batch."""

    minute: float
    """Minutes of event time since the beginning."""
    behind: float
    """Minutes from the low watermark of the batch to there; 0 while it is unknown."""
    counts: Counts


@dataclass(slots=True)
class Stage:
    """A stage, what it has passed on, and what it said."""

    name: str
    passed: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    now: int = 0
    """Since the beginning, microseconds."""

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        """Take the batch's new rows, and note how it was."""
        result = Deduplication("id", "t").of(batch, rows)
        self.passed.update(row.id for row in result.main.select("id").collect())
        low = batch.low
        behind = 0.0 if low.unknown or low.finished else (START + self.now - low.micros) / MINUTE
        self.samples.append(Sample(self.now / MINUTE, behind, result.counts))


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay an hour, draw it, and count what came out."""
    parser = argparse.ArgumentParser(prog="python -m examples.dedup.hour", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/dedup-hour"), help="picture and files of the run")
    parser.add_argument("--minutes", type=int, default=60, help="of event time (default: 60)")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "dedup-hour", parser)
    with serving(out / "authority") as address, spark_session("dedup hour", out, {}) as spark:
        stages = replay(spark, address, out, options.minutes * MINUTE)
    from examples.dedup import picture

    picture.draw_hour({name: stage.samples for name, stage in stages.items()}, out / "dedup-hour.png")
    wrong = 0
    for name, stage in stages.items():
        most = max(stage.samples, key=lambda sample: sample.counts.remembered).counts
        doubled = sum(count - 1 for count in stage.passed.values())
        wrong += doubled + (len(stage.passed) != FRESH * options.minutes * MINUTE // STEP)
        print(
            f"{name:8} {len(stage.passed):,} ids passed on, {doubled} doubled; at most {most.remembered:,} ids in {most.state_bytes:,} bytes"
        )
    print(f"picture: {out / 'dedup-hour.png'}")
    return int(wrong > 0)


def replay(spark: SparkSession, address: str, out: Path, until: int) -> Mapping[str, Stage]:
    """Feed both stages step by step, each step when the one before is done."""
    folder, chance = out / "sent", random.Random(11)
    folder.mkdir()
    stages = {FOLLOWS: Stage(FOLLOWS), STANDS: Stage(STANDS)}
    with lowwater.connect(address) as lw:
        leases = {}
        for name in stages:
            lw.register(name)
            leases[name] = lw.worker(name, name="sender").claim()
            leases[name].advance(None, oldest=None, frontier=START - BEHIND)
            leases[name].flush(60)
        queries = []
        for name, stage in stages.items():
            unique = lws.stage(
                spark, f"unique-{name}", inputs=[name], key="id", event_time="t", ranges=RANGES, address=address
            )
            rows = spark.readStream.schema("id string, t timestamp").json(str(folder))
            queries.append(unique.foreach_batch(rows, stage.write, checkpoint=out / f"checkpoint-{name}"))
        pending: list[tuple[int, Record]] = []
        for now in range(0, until, STEP):
            fresh = [(f"{now // STEP:03}-{number:03}", now + number * STEP // FRESH) for number in range(FRESH)]
            due = [record for at, record in pending if at <= now]
            pending = [(at, record) for at, record in pending if at > now]
            pending += [
                (now + chance.randrange(STEP, BEHIND - STEP), record) for record in fresh if chance.random() < AGAIN
            ]
            write(folder / f"{now // STEP:04}.json", [*fresh, *due])
            for stage in stages.values():
                stage.now = now + STEP
            for query in queries:
                query.query.processAllAvailable()
            if now + STEP not in STALL:
                leases[FOLLOWS].advance(None, oldest=None, frontier=START + now + STEP - BEHIND)
                leases[FOLLOWS].flush(60)
        for query in queries:
            query.stop()
    return stages


def write(path: Path, records: Sequence[Record]) -> None:
    """Write a file of records, there at once."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(
        "".join(
            f'{{"id": "{name}", "t": "{lowwater.Watermark(START + at).datetime().isoformat()}"}}\n'
            for name, at in records
        )
    )
    beside.rename(path)


if __name__ == "__main__":
    sys.exit(main())
