"""What a Redis server is set to, what of the journal it can lose with that, and how long a strong entry has to wait.

No input or output here. `docs/durability.md` has the whole table, with its tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lowwater_authority.journal.errors import JournalFailed

OLDEST: Final = (7, 0)
"""The first Redis whose scripts are refused as a whole, see ``redis_scripts``."""

_WAITAOF: Final = (7, 2)

_POWER: Final = {
    "always": "nothing",
    "everysec": "up to 2 s",
    "no": "what the kernel has not written yet, some 30 s",
    "unknown": "perhaps up to 2 s (CONFIG GET is refused, so appendfsync is not known)",
}


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """What counts for durability, as the server said it."""

    version: tuple[int, ...]
    append_only: bool
    sync: str
    """``appendfsync``; ``unknown`` when CONFIG GET is refused, as some hosted servers do."""
    sync_on_rewrite: bool
    """False when ``no-appendfsync-on-rewrite`` is set, which turns ``always`` off while the file is rewritten."""
    replicas: int
    """Replicas that are connected and in step."""
    role: str
    eviction: str

    @classmethod
    def read(cls, info: Mapping[str, str], config: Mapping[str, str]) -> RedisSettings:
        """From the fields of INFO, and of CONFIG GET as far as it is allowed."""
        numbers = info.get("redis_version", "0").split(".")[:3]
        return cls(
            version=tuple(int(number) for number in numbers if number.isdecimal()),
            append_only=info.get("aof_enabled") == "1",
            sync=config.get("appendfsync", "unknown"),
            sync_on_rewrite=config.get("no-appendfsync-on-rewrite", "no") == "no",
            replicas=sum("state=online" in value for key, value in info.items() if _is_replica(key)),
            role=info.get("role", "master"),
            eviction=info.get("maxmemory_policy", config.get("maxmemory-policy", "noeviction")),
        )

    def refuse(self, address: object) -> None:
        """Raise JournalFailed when the journal cannot be kept there at all."""
        shown = ".".join(map(str, self.version))
        if self.version < OLDEST:
            raise JournalFailed(f"{address} is Redis {shown}: the journal needs {'.'.join(map(str, OLDEST))} or newer")
        if self.role != "master":
            raise JournalFailed(
                f"{address} is a replica: name the master in the URL, or let redis+sentinel:// or redis+cluster:// find it"
            )
        self.refuse_eviction(address)

    def refuse_eviction(self, address: object) -> None:
        """Raise JournalFailed when the server may throw away what it has acknowledged."""
        if self.evicts:
            raise JournalFailed(
                f"{address} may throw the journal away when its memory is full (maxmemory-policy {self.eviction}): "
                f"CONFIG SET maxmemory-policy noeviction there, and in its redis.conf"
            )

    @property
    def evicts(self) -> bool:
        """Whether the server makes room by deleting keys."""
        return self.eviction != "noeviction"

    @property
    def syncs_each(self) -> bool:
        """Whether the server syncs its file before each answer."""
        return self.append_only and self.sync == "always" and self.sync_on_rewrite

    @property
    def waits_for_sync(self) -> bool:
        """Whether a strong entry can and must wait until the file is synced.

        With ``appendfsync no`` Redis never says that it is, and would be waited for in vain.
        """
        if self.sync not in {"always", "everysec"}:
            return False
        return self.append_only and not self.syncs_each and self.version >= _WAITAOF

    def barrier(self, milliseconds: int) -> list[tuple[int, tuple[str | int, ...]]]:
        """Commands to send behind a strong entry, each with the count that its answer must reach."""
        commands: list[tuple[int, tuple[str | int, ...]]] = []
        if self.waits_for_sync:
            commands.append((1, ("WAITAOF", 1, 0, milliseconds)))
        if self.replicas:
            commands.append((self.replicas, ("WAIT", self.replicas, milliseconds)))
        return commands

    def describe(self) -> str:
        """One line: the settings, and what of an acknowledged advance and claim they can lose.

        >>> print(RedisSettings((7, 0, 15), True, "always", True, 0, "master", "noeviction").describe())
        Redis 7.0.15, appendonly yes, appendfsync always, replicas 0, ... A claim can lose: to a power cut nothing, ...
        """
        if not self.append_only:
            file, power = "appendonly no", "everything since the last RDB file"
        else:
            file = f"appendonly yes, appendfsync {self.sync}"
            power = _POWER.get(self.sync, _POWER["unknown"])
            if self.sync == "always" and not self.sync_on_rewrite:
                file += ", no-appendfsync-on-rewrite yes"
                power = "what is written during a rewrite of the file"
        claim_power = power
        if self.waits_for_sync:
            claim_power = "nothing (WAITAOF)"
        elif self.append_only and not self.syncs_each:
            claim_power += " (WAITAOF needs Redis 7.2 and appendfsync everysec or always)"
        missing = "everything (no replica)"
        fail_over = "what the replica has not got yet" if self.replicas else missing
        claim_fail_over = "nothing that a connected replica can take over (WAIT)" if self.replicas else missing
        return (
            f"Redis {'.'.join(map(str, self.version))}, {file}, replicas {self.replicas}, "
            f"maxmemory-policy {self.eviction}. "
            f"An acknowledged advance can lose: to a power cut {power}, to a fail-over {fail_over}. "
            f"A claim can lose: to a power cut {claim_power}, to a fail-over {claim_fail_over}"
        )


def parse_info(text: bytes) -> dict[str, str]:
    r"""The fields of an INFO answer.

    >>> parse_info(b"# Server\r\nredis_version:7.0.15\r\n")
    {'redis_version': '7.0.15'}
    """
    lines = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def parse_config(answer: Any) -> dict[str, str]:
    """The fields of a CONFIG GET answer; none when it is an error."""
    if not isinstance(answer, list):
        return {}
    texts = [item.decode(errors="replace") for item in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _is_replica(key: str) -> bool:
    return key.startswith("slave") and key[5:].isdecimal()
