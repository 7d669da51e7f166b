"""Kafka's own client in Python: what lowwater takes of a user's settings for it, and gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.errors import Unsupported

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["client_settings", "confluent", "consumer_of"]

_PREFIX: Final = "kafka."

_OURS: Final = frozenset(
    {
        "enable.auto.commit",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "transactional.id",
    }
)
"""Settings that the protocol stands on."""


def client_settings(options: Mapping[str, object], what: str = "batch.write_kafka") -> dict[str, str]:
    """Return Kafka's options, as Spark names them, for the client library. Raises ValueError, and Unsupported for what the protocol of ``what`` stands on.

    >>> client_settings({"kafka.bootstrap.servers": "broker:9092", "kafka.acks": -1})["bootstrap.servers"]
    'broker:9092'
    """
    told = {name.lower(): _text(value) for name, value in options.items()}
    for name in told:
        if not name.startswith(_PREFIX):
            msg = f"{what} takes options of Kafka's client, as kafka.bootstrap.servers, and not {name}"
            raise ValueError(msg)
    given = {name.removeprefix(_PREFIX): value for name, value in told.items()}
    if given.pop("acks", "all") not in ("all", "-1"):
        raise Unsupported(
            f"{what} with the option kafka.acks {told['kafka.acks']}",
            "Kafka could lose what is committed and reported",
            "Remove the option: rows are acknowledged by all replicas in sync.",
        )
    if ours := sorted(given.keys() & _OURS):
        raise Unsupported(
            f"{what} with the option kafka.{ours[0]}",
            "that rows come once stands on what it is set to",
            "Remove the option.",
        )
    if not given.get("bootstrap.servers"):
        msg = f'{what} needs to know where the brokers are: options={{"kafka.bootstrap.servers": "broker:9092"}}'
        raise ValueError(msg)
    # Rows of a key go where Kafka's own client, and so Spark's sink, would put them. What goes wrong is raised, and needs no log of its own.
    return {"partitioner": "murmur2_random", "log_level": "0", **given}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def confluent() -> Any:
    """Return Kafka's client library, which is an extra. Raises Unsupported when it is missing."""
    try:
        import confluent_kafka
        import confluent_kafka.admin  # which the package does not import by itself
    except ImportError as error:
        raise Unsupported(
            "batch.write_kafka and read_kafka without the package confluent-kafka",
            "it is what asks Kafka, in the driver and in the Python of each executor",
            'Install it with pip install "lowwater-spark[kafka]", there as well.',
        ) from error
    return confluent_kafka


def consumer_of(settings: Mapping[str, str], *, committed: bool) -> Consumer:
    """Return a consumer that is in no group, and says where a partition ends."""
    made: Consumer = confluent().Consumer(
        {
            **settings,
            "group.id": "lowwater",  # it has to have one, and joins none
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 10,
        }
    )
    return made
