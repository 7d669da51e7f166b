"""The shards of a deployment, as a table and as JSON, and what is said of one that hands over."""

from __future__ import annotations

from typing import Any, Final

from lowwater.cli.render import table
from lowwater.core.text import duration
from lowwater.views import Shards, ShardView

__all__ = ["drain_record", "handing_over", "shards_record", "shards_table", "taken_by_others"]

_NAMED: Final = 5
"""Computations that are named in a line; of more there is a count."""


def shards_table(shards: Shards) -> str:
    """Return the shards as a table, and what is pinned or not served below it."""
    rows = [("SHARD", "STATE", "SILENT", "SERVES", "")]
    for each in shards:
        names = each.computations
        rows.append((each.address, _state(each), duration(each.silent_for), f"{len(names)}", _some(names)))
    lines = [table(rows)]
    living = {each.address for each in shards}
    for name, address in shards.pins.items():
        lines.append(f"{name} is pinned to {address}" + ("" if address in living else ", which is away"))
    if shards.unserved:
        lines.append(f"nobody serves {_some(shards.unserved)} just now")
    return "\n".join(lines)


def _state(shard: ShardView) -> str:
    if not shard.draining:
        return "serving"
    return "draining" if shard.computations else "drained"


def _some(names: tuple[str, ...]) -> str:
    """Return names, the first few of many."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def handing_over(address: str, names: tuple[str, ...]) -> str:
    """Return how far a shard is that is being drained."""
    if not names:
        return f"{address} serves nothing any more"
    return f"{address} still serves {len(names)}: {_some(names)}"


def drain_record(address: str, names: tuple[str, ...], *, draining: bool) -> dict[str, Any]:
    """Return the same for JSON."""
    return {"shard": address, "draining": draining, "computations": list(names)}


def taken_by_others(shards: Shards) -> bool:
    """Whether there is a shard that takes what others hand over."""
    return any(not each.draining for each in shards)


def shards_record(shards: Shards) -> dict[str, Any]:
    """Return the shards for JSON."""
    return {
        "version": shards.version,
        "shards": [
            {
                "address": each.address,
                "id": each.id,
                "state": _state(each),
                "silent_seconds": each.silent_for,
                "computations": list(each.computations),
            }
            for each in shards
        ],
        "pins": dict(shards.pins),
        "unserved": list(shards.unserved),
    }
