"""The shards of a deployment, and the progress of a drain, as text and as JSON."""

from __future__ import annotations

from typing import Any, Final

from lowwater.cli.render import table
from lowwater.core.text import duration
from lowwater.views import Shards, ShardView

__all__ = ["drain_record", "handing_over", "shards_record", "shards_table", "taken_by_others"]

_NAMED: Final = 5
"""Greatest number of computations that a line names; it counts the others."""


def shards_table(shards: Shards) -> str:
    """Return the shards as a table, with pins and unserved computations below it."""
    rows = [("SHARD", "STATE", "SILENT", "SERVES", "")]
    for shard in shards:
        names = shard.computations
        rows.append((shard.address, _state(shard), duration(shard.silent_for), f"{len(names)}", _some(names)))
    lines = [table(rows)]
    living = {shard.address for shard in shards}
    for name, address in shards.pins.items():
        lines.append(f"{name} is pinned to {address}" + ("" if address in living else ", which is away"))
    if shards.unserved:
        lines.append(f"no shard serves {_some(shards.unserved)} just now")
    return "\n".join(lines)


def _state(shard: ShardView) -> str:
    if not shard.draining:
        return "serving"
    return "draining" if shard.computations else "drained"


def _some(names: tuple[str, ...]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def handing_over(address: str, names: tuple[str, ...]) -> str:
    """Return what a shard that is being drained still serves."""
    if not names:
        return f"{address} serves nothing any more"
    return f"{address} still serves {len(names)}: {_some(names)}"


def drain_record(address: str, names: tuple[str, ...], *, draining: bool) -> dict[str, Any]:
    """Return the progress of a drain for JSON."""
    return {"shard": address, "draining": draining, "computations": list(names)}


def taken_by_others(shards: Shards) -> bool:
    """Tell whether there is a shard that takes over computations of others."""
    return any(not shard.draining for shard in shards)


def shards_record(shards: Shards) -> dict[str, Any]:
    """Return the shards for JSON."""
    return {
        "version": shards.version,
        "shards": [
            {
                "address": shard.address,
                "id": shard.id,
                "state": _state(shard),
                "silent_seconds": shard.silent_for,
                "computations": list(shard.computations),
            }
            for shard in shards
        ],
        "pins": dict(shards.pins),
        "unserved": list(shards.unserved),
    }
