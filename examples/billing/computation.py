"""The computation that bills: it sums the flights of each account and UTC day.

It writes a bill when the low watermark has passed the day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

from lowwater_pipeline.computation import DAY, Codec, Computation, Context, Input, Output, Record, Timer, floor

UNIQUE: Final = "unique"
"""The stage that passes each record on once."""

CENTS_PER_MILE: Final = 2


@dataclass
class Open:
    """A day that is not billed."""

    flights: int = 0
    cents: int = 0


class Bills(Computation):
    """Bills an account for a day."""

    name = "bills"
    inputs: ClassVar[Sequence[Input]] = [Input(UNIQUE, key="carrier", event_time="sched_dep", id="id")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "bills": Output("account string, day timestamp, flights long, cents long", event_time="day")
    }
    state = Codec(dict[int, Open])
    stamp = timedelta(days=1)

    def process_record(self, ctx: Context, record: Record) -> None:
        day = floor(record.timestamp, DAY)
        bill = ctx.state.setdefault(day, Open())
        bill.flights += 1
        bill.cents += CENTS_PER_MILE * record["miles"]
        ctx.set_timer("day is over", day + DAY, hold=day)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        day = timer.at - DAY
        ctx.produce("bills", {"account": ctx.key, "day": day, **vars(ctx.state.pop(day))})
