"""Kafka's own client in Python: what lowwater takes of a user's settings for it, and gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.errors import Unsupported

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["client_settings", "confluent", "consumer_of", "java_settings"]

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
    """Return Kafka's options, as Spark names them, for the client library.

    Raises ValueError, and Unsupported for what the protocol of ``what`` stands on.

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
    # Rows of a key go where Kafka's own client, and so Spark's sink, would put them. What goes
    # wrong is raised, and needs no log of its own.
    return {"partitioner": "murmur2_random", "log_level": "0", **given}


_LOGINS: Final[Mapping[str, str]] = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
"""By mechanism: who logs in with a name and a password in Kafka's own client."""

_PEM: Final[Mapping[str, str]] = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""What has a text in the client library, and in Kafka's own client. Of each there is one that names
a file, too."""


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    r"""Return settings of the client library as Kafka's own client has them, which asks about the same source in Spark's JVM.

    Passwords of SASL, certificates and keys are called otherwise there; all else has one name, or is not known to it. Raises OSError for a file that cannot be read.

    >>> told = {"sasl.mechanisms": "PLAIN", "sasl.username": "me", "sasl.password": 'a"b'}
    >>> java_settings(told)["sasl.jaas.config"]
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="a\\"b";'
    """
    found = dict(settings)
    if "sasl.mechanisms" in found:  # the library has two names for it
        found["sasl.mechanism"] = found.pop("sasl.mechanisms")
    login = _LOGINS.get(found.get("sasl.mechanism", "").upper())
    if login is not None and "sasl.username" in found:
        name, password = _quoted(found.pop("sasl.username")), _quoted(found.pop("sasl.password", ""))
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{login} required username={name} password={password};"
        )
    for option, other in _PEM.items():
        named = option.removesuffix("pem") + "location"
        text = found.pop(option, "")
        if path := found.pop(named, ""):
            text = Path(path).read_text(encoding="utf-8")
        if text:
            found[other] = text
            found[".".join(other.split(".")[:2]) + ".type"] = "PEM"
    if "ssl.keystore.location" in found:
        found["ssl.keystore.type"] = "PKCS12"
    if found.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
