"""The records of a day in two partitions, and in which step of the replay they arrive.

The same ones in every run.

The replay clock goes on by an hour a step. Partition *a* arrives without delay, partition *b* three
hours later, and once *b* stands still for two hours more. Within a partition records come in order
of event time, so each knows exactly how far it has come. Times are microseconds since the Unix
epoch, UTC.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from lowwater.watermark import MAX

SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND

DAY: Final = datetime(2013, 1, 9, tzinfo=UTC)
START: Final = int(DAY.timestamp()) * SECOND
END: Final = START + 24 * HOUR

BEHIND: Final[Mapping[str, int]] = {"a": 0, "b": 3 * HOUR}
"""The partitions, and how far each is behind the replay clock."""

STALLED: Final = "b"
STALL: Final = (START + 15 * HOUR, START + 17 * HOUR)
"""Replay clock between which nothing comes from the stalled partition."""

FIRST: Final = START + HOUR // 2
"""Replay clock of the first step: half past, so that steps do not end where windows end."""


class Step(NamedTuple):
    """The events of one time of the replay clock."""

    clock: int
    arriving: Mapping[str, Sequence[int]]
    """Event times by partition; a partition from which nothing comes is left out."""
    frontiers: Mapping[str, int]
    """Frontier of each partition: every later record of it is at or above it. MAX after its end."""


def steps(every: int = HOUR) -> list[Step]:
    """Return the whole replay, with so much of the replay clock between two steps.

    >>> replay = steps()
    >>> len(replay), sum(len(times) for step in replay for times in step.arriving.values())
    (28, 5644)
    """
    waiting = {partition: _times(partition) for partition in BEHIND}
    frontiers = dict.fromkeys(BEHIND, START)
    steps_ = []
    # The last step is at or after the end of the partition that is furthest behind.
    for clock in range(FIRST, END + max(BEHIND.values()) + every, every):
        arriving = {}
        for partition, behind in BEHIND.items():
            if partition == STALLED and STALL[0] < clock <= STALL[1]:
                continue
            come = clock - behind
            frontiers[partition] = MAX if come >= END else come
            ready = [time for time in waiting[partition] if time < come]
            waiting[partition] = waiting[partition][len(ready) :]
            if ready:
                arriving[partition] = ready
        steps_.append(Step(clock, arriving, dict(frontiers)))
    return steps_


def _times(partition: str) -> list[int]:
    """Return the event times of a partition, in order: 80 to 160 an hour, whole milliseconds."""
    chance = random.Random(f"two partitions: {partition}")
    hours = range(START, END, HOUR)
    return sorted(
        hour + chance.randrange(3_600_000) * 1_000 for hour in hours for _ in range(chance.randint(80, 160))
    )  # fmt: skip


def put(step: Step, folder: Path) -> None:
    """Write the records of a step: a directory with JSON lines for each partition.

    The directory appears whole.
    """
    if not step.arriving:
        return
    name = f"{moment(step.clock):%d-%H%M}"
    beside = folder.parent / f"arriving-{name}"
    beside.mkdir(parents=True)
    for partition, times in step.arriving.items():
        lines = [json.dumps({"partition": partition, "t": moment(time).isoformat()}) + "\n" for time in times]
        (beside / f"{partition}.json").write_text("".join(lines), encoding="utf-8")
    beside.rename(folder / name)


def batch_answer(folder: Path) -> dict[int, int]:
    """Return the number of records of each hour, by plain Python on all files of a folder."""
    counts: Counter[int] = Counter()
    for path in folder.rglob("*.json"):
        for line in path.read_text(encoding="utf-8").splitlines():
            counts[micros(json.loads(line)["t"]) // HOUR * HOUR] += 1
    return dict(sorted(counts.items()))


def micros(text: str) -> int:
    """Return an ISO 8601 time with its zone as microseconds.

    >>> micros("2013-01-09T00:00:00.001+00:00") - START
    1000
    >>> micros("2013-01-09T01:00:00.000Z") - START == HOUR
    True
    """
    time = datetime.fromisoformat(text) - DAY
    return START + (time.days * 86_400 + time.seconds) * SECOND + time.microseconds


def moment(time: int) -> datetime:
    """Return microseconds as a datetime, UTC, exactly."""
    return datetime.fromtimestamp(time // SECOND, UTC).replace(microsecond=time % SECOND)
