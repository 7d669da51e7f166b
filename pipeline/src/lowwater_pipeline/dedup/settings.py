"""What a deduplicator is told, and what of a user's settings for Kafka's client it takes."""

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
"""Settings that the promises stand on, with the reason."""


def client_settings(brokers: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of every client. Raises ValueError for what is not the user's to set.

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
    # What goes wrong is raised, and needs no log of the client's own.
    return {"log_level": "0", **options, "bootstrap.servers": brokers}


@dataclass(frozen=True, slots=True)
class Settings:
    """One deduplicator: the same for every process of it. Raises ValueError for what cannot be."""

    input: str
    output: str
    group: str
    """The consumer group. With the output it names the life of the deduplicator: another group is
    another one, which remembers nothing."""
    state: Path
    """A directory that stays, in which each partition has its memory."""
    clients: Mapping[str, str]
    """As :func:`client_settings` returns them."""
    id: Field
    window: Window
    partitioner: Partitioner = Partitioner.MURMUR2
    unreadable: str | None = None
    """Where messages go that have no id or no event time. None: a lane stops at one."""
    undecidable: str | None = None
    """Where messages go that are below the watermark."""
    accept_shorter: bool = False
    """Whether to begin with a window that the output's log does not hold whole any more."""
    adopt: bool = False
    """Whether to read an input that was made anew, from its beginning."""
    most: int = field(default=5_000)
    """Messages in a transaction, at most."""
    patience: float = field(default=60.0)
    """Seconds for one answer of Kafka."""
    look: float = field(default=5.0)
    """Seconds between two looks whether the topics are still the same ones."""
    until_known: float = field(default=5.0)
    """Seconds until a topic is believed to be missing. A broker that has just started does not know
    all of them yet."""

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
        sides = [each for each in (self.unreadable, self.undecidable) if each is not None]
        if len({self.input, self.output, *sides}) != 2 + len(sides):
            msg = "the topics must differ: the input, the output, and those of what goes to the side"
            raise ValueError(msg)

    @property
    def rule(self) -> str:
        """What is an id and how long it is remembered, as a text.

        A memory that was made by another rule is of no use.
        """
        return f"{self.id}/{self.window}"

    @property
    def outputs(self) -> tuple[str, ...]:
        """All topics that are written."""
        return tuple(each for each in (self.output, self.unreadable, self.undecidable) if each is not None)

    def transactional_id(self, partition: int) -> str:
        """Return that of a lane: the same in every process and after every start.

        No name of a topic may have the character that separates, so no other deduplicator has the
        same one.
        """
        return f"{self.group}/{self.output}/{partition}"
