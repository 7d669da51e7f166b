"""Asset events: one for each interval that is complete.

How one comes about: the interval closes; the triggerer takes the event; its supervisor writes it
into Airflow's database; only then the cursor, which stands in the state of the asset, moves past
it. So a triggerer that dies leaves none out, and may make the last one twice, with the same ``id``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamProducer

import lowwater
from lowwater_airflow.hook import LowwaterHook

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors
    from airflow.triggers.shared_stream import AdvanceItem

__all__ = ["IntervalTrigger"]

_AHEAD = 16
"""Events that are given out before their cursor has moved: a subscriber has room for more."""


class IntervalTrigger(BaseEventTrigger):
    """Makes an event of each complete interval of a computation, in order.

    The intervals are ``[start + k * every, start + (k + 1) * every)``.

    For ``AssetWatcher(name=..., trigger=IntervalTrigger("hourly", every="1h",
    start="2026-01-01T00:00Z"))``, of one asset. ``every`` is in seconds or a timedelta, ``start``
    an aware datetime or its ISO 8601 text. The event has ``id``, ``computation``, ``incarnation``,
    ``from`` and ``to``. When the computation is reset the trigger fails, because the
    intervals of its events are computed anew: give it another ``start``, which begins a new cursor.
    """

    def __init__(
        self,
        computation: str,
        every: float | timedelta,
        start: str | datetime,
        lowwater_conn_id: str = LowwaterHook.default_conn_name,
    ) -> None:
        super().__init__()
        self.computation = computation
        self.every = every.total_seconds() if isinstance(every, timedelta) else every
        self.start = start.isoformat() if isinstance(start, datetime) else start
        self.lowwater_conn_id = lowwater_conn_id
        # Watermark.of() refuses a start without a time zone, and does so when the Dag is parsed.
        lowwater.Watermark.of(datetime.fromisoformat(self.start))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See BaseTrigger."""
        return (
            "lowwater_airflow.watch.IntervalTrigger",
            {
                "computation": self.computation,
                "every": self.every,
                "start": self.start,
                "lowwater_conn_id": self.lowwater_conn_id,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """Return a key of this trigger alone: only a stream learns what Airflow has persisted."""
        return tuple(self.serialize()[1].values())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """See BaseEventTrigger."""
        return _Intervals(cls(**kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """See BaseEventTrigger."""
        assert self.asset_state_store is not None, "the triggerer gives it to whoever watches an asset"
        # The producer of the stream needs the state store as soon as it runs. It has not run yet,
        # because nothing was awaited before this line.
        _Intervals.states[self.shared_stream_key()] = self.asset_state_store
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """See BaseTrigger.

        Airflow runs the stream instead, since a plain trigger does not learn what was persisted.
        """
        msg = "IntervalTrigger needs the shared streams of the triggerer of Airflow 3.3"
        raise NotImplementedError(msg)
        yield


class _Intervals(SharedStreamProducer):
    """The events of one trigger, and the cursor behind them."""

    states: ClassVar[dict[Hashable, AssetStateStoreAccessors]] = {}
    """State store of the asset, by the key of the stream. The stream's subscriber puts it here,
    because Airflow gives none to a producer."""

    def __init__(self, trigger: IntervalTrigger) -> None:
        self._trigger = trigger
        self._cursor = f"lowwater {trigger.computation} {trigger.every:g} {trigger.start}"
        self._room = asyncio.Semaphore(_AHEAD)

    @property
    def _state(self) -> AssetStateStoreAccessors:
        return self.states[self._trigger.shared_stream_key()]

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], dict[str, Any]]]:
        """See SharedStreamProducer."""
        trigger = self._trigger
        start = lowwater.Watermark.of(datetime.fromisoformat(trigger.start))
        cursor: Any = {"next_micros": start.micros, "incarnation": 0, "server_token": ""}
        cursor = await self._state.aget(self._cursor, cursor)
        async with await LowwaterHook(trigger.lowwater_conn_id).aget_conn() as lw:
            every, begin = timedelta(seconds=trigger.every), lowwater.Watermark(cursor["next_micros"])
            if begin.finished:
                await asyncio.Event().wait()  # for ever: no interval can come, and a stream may not end
            intervals = lw.intervals(trigger.computation, every, begin, incarnation=cursor["incarnation"])
            async with aclosing(intervals):
                async for interval in intervals:
                    if cursor["server_token"] not in {"", lw.server_token}:
                        msg = f"the cursor belongs to the deployment {cursor['server_token']}, and {lw.server_token} answers: give the trigger another start"
                        raise lowwater.ServerTokenMismatch(msg)
                    await self._room.acquire()
                    name = (lw.server_token, interval.computation, interval.incarnation, interval.start, interval.end)
                    event = {
                        "id": "/".join(map(str, name)),
                        "computation": interval.computation,
                        "incarnation": interval.incarnation,
                        "from": str(interval.start),
                        "to": str(interval.end),
                    }
                    yield (
                        event,
                        {
                            "next_micros": interval.end.micros,
                            "incarnation": interval.incarnation,
                            "server_token": lw.server_token,
                        },
                    )
            await asyncio.Event().wait()  # for ever: all intervals have come, and a stream may not end

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """See SharedStreamProducer. Airflow's database has the events of ``batch``."""
        for item in batch:
            if item.outcome.failed or not item.outcome.acked:
                msg = "an event was not written into Airflow's database: it is made again"
                raise RuntimeError(msg)
            await self._state.aset(self._cursor, item.broker_payload)
            self._room.release()
