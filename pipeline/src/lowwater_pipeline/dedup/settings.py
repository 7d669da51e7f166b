"""The settings of a deduplicator, and which of Kafka's client settings a user may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lowwater_pipeline.dedup.ids import Field, Kind, Partitioner
from lowwater_pipeline.dedup.window import Window, WindowKind

__all__ = ["Settings", "client_settings"]

_OURS: Final[Mapping[str, str]] = {
    "acks": "a row counts as written when every replica in sync has it",
    "auto.offset.reset": "a position that is gone is refused, not replaced",
    "enable.auto.commit": "an offset is committed with the rows, in one transaction",
    "enable.auto.offset.store": "an offset is committed with the rows, in one transaction",
    "enable.gapless.guarantee": "rows stand in the order of the input",
    "enable.idempotence": "a row that the client sends again must not come twice",
    "enable.partition.eof": "the end of the output has to be seen",
    "group.id": "it is what --group says",
    "isolation.level": "rows of transactions that are open or aborted are not passed on",
    "partition.assignment.strategy": "a partition that stays must not stop when others move",
    "partitioner": "a row goes into the partition that it came from",
    "transactional.id": "each partition has a fixed one, by which a successor ends its predecessor",
}
"""Client settings on which the guarantees depend, with the reason."""


def client_settings(brokers: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of every client. Raises ValueError for one that a user may not choose.

    >>> client_settings("broker:9092", {"security.protocol": "ssl"})["security.protocol"]
    'ssl'
    """
    for name, value in options.items():
        if name == "acks" and value in {"all", "-1"}:
            continue
        if name in _OURS:
            msg = f"--kafka {name}={value} is not yours to set: {_OURS[name]}. Remove it."
            raise ValueError(msg)
        if name in {"bootstrap.servers", "metadata.broker.list"}:
            msg = f"--kafka {name}={value} says again what --brokers says. Remove it."
            raise ValueError(msg)
    # Errors are raised, so the client's own log is not needed.
    return {"log_level": "0", **options, "bootstrap.servers": brokers}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one deduplicator, the same in all its processes. Raises ValueError."""

    input: str
    output: str
    group: str
    """Consumer group. With the output it identifies the deduplicator: under another group it
    begins anew and remembers nothing."""
    state: Path
    """Permanent directory for the memories of the partitions."""
    clients: Mapping[str, str]
    """Client settings, from :func:`client_settings`."""
    id: Field
    window: Window
    partitioner: Partitioner = Partitioner.MURMUR2
    unreadable: str | None = None
    """Topic for messages without an id or event time. None stops a lane at such a message."""
    undecidable: str | None = None
    """Topic for messages below the watermark."""
    accept_shorter: bool = False
    """True begins even if the output's log has no longer all rows of the window."""
    adopt: bool = False
    """True reads an input that was made anew from its beginning."""
    most: int = field(default=5_000)
    """Greatest number of messages in a transaction."""
    patience: float = field(default=60.0)
    """Longest wait for one answer of Kafka, seconds."""
    look: float = field(default=5.0)
    """Seconds between two checks that the topics are still the same."""
    until_known: float = field(default=5.0)
    """Seconds after which an unknown topic counts as missing. A broker that has just started does
    not know all topics."""

    def __post_init__(self) -> None:
        by_watermark = self.window.kind is WindowKind.WATERMARK
        if by_watermark and self.undecidable is None:
            msg = "a window by a watermark needs --undecidable TOPIC: messages below it are neither passed on nor lost"
            raise ValueError(msg)
        if not by_watermark and self.undecidable is not None:
            msg = "--undecidable belongs to --window watermark:NAME: by count or time no message is undecidable"
            raise ValueError(msg)
        if self.id.kind is Kind.TIMESTAMP:
            msg = "a timestamp identifies no message; write --id key, header:NAME or json:FIELD"
            raise ValueError(msg)
        sides = [topic for topic in (self.unreadable, self.undecidable) if topic is not None]
        if len({self.input, self.output, *sides}) != 2 + len(sides):
            msg = "the topics must differ: the input, the output, and those of what goes to the side"
            raise ValueError(msg)

    @property
    def rule(self) -> str:
        """The field of the ids and the window, as a text. A memory of another rule is useless."""
        return f"{self.id}/{self.window}"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all topics that are written."""
        return tuple(topic for topic in (self.output, self.unreadable, self.undecidable) if topic is not None)

    def transactional_id(self, partition: int) -> str:
        """Return a lane's transactional id, the same in every process and after every start.

        No topic's name may contain a slash, so no other deduplicator has the same id.
        """
        return f"{self.group}/{self.output}/{partition}"
