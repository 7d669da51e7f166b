"""Settings of the client library confluent-kafka, made from a user's Kafka options."""

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
"""Settings that only lowwater may choose, because its protocol depends on them."""


def client_settings(options: Mapping[str, object], what: str = "batch.write_kafka") -> dict[str, str]:
    """Return the client library's settings for Kafka options as Spark names them.

    Raises ValueError for an option of another kind, and Unsupported for a setting on which the
    protocol of ``what`` depends.

    >>> options = {"kafka.bootstrap.servers": "broker:9092", "kafka.acks": -1}
    >>> client_settings(options)["bootstrap.servers"]
    'broker:9092'
    """
    lower = {name.lower(): _text(value) for name, value in options.items()}
    for name in lower:
        if not name.startswith(_PREFIX):
            msg = f"{what} takes options of Kafka's client, as kafka.bootstrap.servers, and not {name}"
            raise ValueError(msg)
    settings = {name.removeprefix(_PREFIX): value for name, value in lower.items()}
    if settings.pop("acks", "all") not in ("all", "-1"):
        raise Unsupported(
            f"{what} with the option kafka.acks {lower['kafka.acks']}",
            "Kafka could lose what is committed and reported",
            "Remove the option: rows are acknowledged by all replicas in sync.",
        )
    if reserved := sorted(settings.keys() & _OURS):
        raise Unsupported(
            f"{what} with the option kafka.{reserved[0]}",
            "lowwater sets it itself, so that each row comes once",
            "Remove the option.",
        )
    if not settings.get("bootstrap.servers"):
        msg = f'{what} needs the address of the brokers: options={{"kafka.bootstrap.servers": "broker:9092"}}'
        raise ValueError(msg)
    # murmur2_random gives a key the same partition as Kafka's client of the JVM, and so as Spark's
    # sink. log_level 0 stops the library's own log, because each of its failures is raised.
    return {"partitioner": "murmur2_random", "log_level": "0", **settings}


_LOGINS: Final[Mapping[str, str]] = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
"""Login module of Kafka's own client, by SASL mechanism with a name and a password."""

_PEM: Final[Mapping[str, str]] = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""Names, in both clients, of the settings with a certificate or key as text. The client library
also has each as a file, ``...location``."""


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    r"""Return settings of the client library as those of Kafka's own client in Spark's JVM.

    SASL passwords, certificates and keys are renamed. All other settings have the same name in
    both clients, or Kafka's client ignores them. Raises OSError for a file that cannot be read.

    >>> settings = {"sasl.mechanisms": "PLAIN", "sasl.username": "me", "sasl.password": 'a"b'}
    >>> java_settings(settings)["sasl.jaas.config"].partition(" ")[2]
    'required username="me" password="a\\"b";'
    """
    renamed = dict(settings)
    if "sasl.mechanisms" in renamed:  # a second name, which Kafka's own client does not know
        renamed["sasl.mechanism"] = renamed.pop("sasl.mechanisms")
    login = _LOGINS.get(renamed.get("sasl.mechanism", "").upper())
    if login is not None and "sasl.username" in renamed:
        name, password = _quoted(renamed.pop("sasl.username")), _quoted(renamed.pop("sasl.password", ""))
        renamed["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{login} required username={name} password={password};"
        )
    for option, other in _PEM.items():
        named = option.removesuffix("pem") + "location"
        text = renamed.pop(option, "")
        if path := renamed.pop(named, ""):
            text = Path(path).read_text(encoding="utf-8")
        if text:
            renamed[other] = text
            renamed[".".join(other.split(".")[:2]) + ".type"] = "PEM"
    if "ssl.keystore.location" in renamed:
        renamed["ssl.keystore.type"] = "PKCS12"
    if renamed.get("ssl.endpoint.identification.algorithm") == "none":
        renamed["ssl.endpoint.identification.algorithm"] = ""
    return renamed


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def confluent() -> Any:
    """Return the package confluent_kafka. Raises Unsupported when the extra is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin  # not loaded by "import confluent_kafka" alone
    except ImportError as error:
        raise Unsupported(
            "batch.write_kafka and read_kafka without the package confluent-kafka",
            "they ask Kafka through it, in the driver and in the Python of each executor",
            'Install it with pip install "lowwater-spark[kafka]" in both.',
        ) from error
    return confluent_kafka


def consumer_of(settings: Mapping[str, str], *, committed: bool) -> Consumer:
    """Return a consumer in no group that reports the end of a partition."""
    consumer: Consumer = confluent().Consumer(
        {
            **settings,
            "group.id": "lowwater",  # the library requires one; this consumer joins no group
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 10,
        }
    )
    return consumer
