"""The trigger that waits for a sensor: no worker is busy meanwhile, and no process polls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

import lowwater
from lowwater_airflow.hook import LowwaterHook

__all__ = ["LowWatermarkTrigger"]


class LowWatermarkTrigger(BaseTrigger):
    """Fires once, when all before ``until_micros`` is complete, or when no answer can come.

    The authority pushes changes over one stream. While it is away, the trigger goes on waiting. The
    event says ``status`` "complete", or "error" with ``reason`` and ``message``.
    """

    def __init__(
        self, computation: str, until_micros: int, lowwater_conn_id: str = LowwaterHook.default_conn_name
    ) -> None:
        super().__init__()
        self.computation = computation
        self.until_micros = until_micros
        self.lowwater_conn_id = lowwater_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See BaseTrigger."""
        return (
            "lowwater_airflow.trigger.LowWatermarkTrigger",
            {
                "computation": self.computation,
                "until_micros": self.until_micros,
                "lowwater_conn_id": self.lowwater_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """See BaseTrigger."""
        try:
            async with await LowwaterHook(self.lowwater_conn_id).aget_conn() as lw:
                view = await lw.wait(self.computation, lowwater.Watermark(self.until_micros))
        except lowwater.LowwaterError as error:
            yield TriggerEvent({"status": "error", "reason": error.reason, "message": str(error)})
            return
        yield TriggerEvent(
            {
                "status": "complete",
                "computation": view.computation,
                "until": str(lowwater.Watermark(self.until_micros)),
                "low": str(view.low),
                "incarnation": view.incarnation,
                "estimated": view.estimated,
            }
        )
