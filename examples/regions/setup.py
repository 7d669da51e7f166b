"""Names, addresses and settings that all processes of the example share, in one file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

CLICKS: Final = "clicks"
"""The computation of the clients in a region, and the topic there."""
MIRROR: Final = "mirror"
MIRRORED: Final = "mirrored"
"""The topic of the copies."""
SOURCE: Final = "source"
"""The header of a copy: cluster and offset that it has at home."""
WINDOWS: Final = "windows"
HOURLY: Final = "hourly"
REFERENCE: Final = f"{HOURLY}:{CLICKS}"
READY: Final = "it runs"
REGIONS: Final = ("A", "B")
"""A is the home of the reference."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the processes of a region are."""

    folder: Path
    authority: str
    agent: str
    """A Unix socket: only processes of the same user ask for adoption numbers there."""
    broker: str
    cluster: str


@dataclass(frozen=True, slots=True)
class Setup:
    """One world."""

    regions: dict[str, Place]
    sink: Path
    behind: dict[str, int]
    """Delay of each region's mirror, in seconds."""

    @staticmethod
    def other(region: str) -> str:
        """The other region."""
        return next(name for name in REGIONS if name != region)

    def write(self, path: Path) -> None:
        """Make the file."""
        path.write_text(json.dumps(asdict(self), default=str), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file."""
        content = json.loads(path.read_text("utf-8"))
        places = {
            name: Place(**{**place, "folder": Path(place["folder"])}) for name, place in content["regions"].items()
        }
        return cls(places, Path(content["sink"]), content["behind"])
