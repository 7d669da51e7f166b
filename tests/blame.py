"""Whom to blame: one table of pipelines, with what the command and the page have to say of each.

blame.json is the table; the page's model is held against it in the browser (browser/test_modules.py), the client's here. Times are
seconds before NOW; 0: never. A computation is owned by one worker that is alive and moving, unless its case says otherwise.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lowwater import RangeState, RangeView, Remarks, Watermark, WatermarkView

__all__ = ["CASES", "NOW", "views"]

NOW: Final = int(datetime(2026, 11, 21, 13, 43, 11, tzinfo=UTC).timestamp()) * 1_000_000
CASES: Final[list[dict[str, Any]]] = json.loads((Path(__file__).parent / "blame.json").read_text())


def views(case: dict[str, Any]) -> dict[str, WatermarkView]:
    return {each["name"]: _view(**each) for each in case["computations"]}


def _view(
    *,
    name: str,
    behind: float | str,
    inputs: list[str] = [],  # noqa: B006 - read only
    estimated: bool = False,
    state: str = "owned",
    silent: float = 1,
    stood: float = 1,
    running: float = 0,
    waiting_for: str = "",
    holdback: float = 0,
    claimed: float = 0,
    ended: bool = False,
    failure: str = "",
    untimed: int = 0,
) -> WatermarkView:
    low = _ago(behind)
    never, since = state == "never claimed", _ago(stood).micros if stood else 0
    holder = RangeView(
        start=b"",
        end=b"",
        watermark=low,
        state=RangeState(state),
        worker="" if never else f"{name}-1",
        host="" if never else "node-4",
        sequencer=0 if never else 1,
        since_micros=since,
        last_report_micros=0 if never else _ago(silent).micros,
        waiting_for=waiting_for,
        remarks=Remarks(round(holdback * 1e6), ended, failure, untimed),
        claimed_micros=_ago(claimed).micros if claimed else 0,
    )
    return WatermarkView(
        name,
        registered=True,
        incarnation=1,
        epoch=1,
        low=low,
        since_micros=since,
        oldest_operation_micros=_ago(running).micros if running else 0,
        inputs=tuple(inputs),
        ranges=1,
        estimated=estimated,
        holder=None if low.finished else holder,
    )


def _ago(seconds: float | str) -> Watermark:
    if isinstance(seconds, str):
        return {"unknown": Watermark.UNKNOWN, "finished": Watermark.FINISHED}[seconds]
    return Watermark(NOW - round(seconds * 1e6))
