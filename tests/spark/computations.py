"""Computations that the tests run in executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from lowwater_pipeline.computation import HOUR, Codec, Computation, Context, Input, Output, Record, Timer, floor


class Counts(Computation):
    name = "counts"
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "hours": Output("key string, start timestamp, n long, number long", event_time="start"),
        "keys": Output("key string, t timestamp", event_time="t"),
    }
    state = Codec(tuple[int, dict[int, int]], initial=lambda: (0, {}))
    stamp = timedelta(hours=1)

    def process_record(self, ctx: Context, record: Record) -> None:
        closed, hours = ctx.state
        start = floor(record.timestamp, HOUR)
        if not closed and not hours:
            ctx.produce("keys", {"key": ctx.key, "t": record["t"]})
        hours[start] = hours.get(start, 0) + 1
        ctx.set_timer("end", start + HOUR, hold=start)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        closed, hours = ctx.state
        start = timer.at - HOUR
        row = {"key": ctx.key, "start": start, "n": hours.pop(start), "number": closed}
        ctx.produce("hours", row)
        ctx.state = closed + 1, hours


class Busiest(Computation):
    name = "busiest"
    inputs: ClassVar[Sequence[Input]] = [Input("counts", key="'all'", event_time="start", output="hours")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "busiest": Output("start timestamp, key string, n long, keys long", event_time="start")
    }
    state = Codec(dict[int, dict[str, int]])
    stamp = timedelta(hours=1)

    def process_record(self, ctx: Context, record: Record) -> None:
        ctx.state.setdefault(record.timestamp, {})[record["key"]] = record["n"]
        ctx.set_timer("end", record.timestamp + HOUR, hold=record.timestamp)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        start = timer.at - HOUR
        counts = ctx.state.pop(start)
        key = max(counts, key=lambda count: (counts[count], count))
        ctx.produce("busiest", {"start": start, "key": key, "n": counts[key], "keys": len(counts)})


class Rings(Computation):
    name = "rings"
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="upper(key)", event_time="t", id="key")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "rings": Output("key string, t timestamp, now long, wall boolean", event_time="t")
    }

    def process_record(self, ctx: Context, record: Record) -> None:
        ctx.set_timer("later", record.timestamp + HOUR // 3)
        ctx.set_wall_timer("soon", ctx.now + 1)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        t = timer.hold if timer.wall else timer.at
        ctx.produce("rings", {"key": ctx.key, "t": t, "now": ctx.now, "wall": timer.wall})
