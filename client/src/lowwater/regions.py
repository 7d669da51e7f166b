"""Adoption numbers by which a pipeline may commit, when several regions may produce one output.

    token = Token("hourly:clicks")                  # asks `lowwater region` on this machine
    adoption = token.read()                         # before each commit; raises in other regions
    if adoption.number != raised:                   # a new owner raises its number first,
        raise_in_the_sink(adoption.number)          # and then reads what the sink has
    write(rows, token=adoption.number, batch=batch) # the sink compares it in the write itself
    token.committed(adoption, batch, digest, positions)

The number alone proves nothing a moment later: the region may have been replaced since. The sink
has to compare it *in the same write*. Sink by sink:

* **A store with transactions, or a script** (PostgreSQL, Redis): a row has the greatest number
  seen. The write's own transaction refuses a lower one.
* **Delta**: ``txnAppId`` = the reference, ``txnVersion`` = :meth:`Adoption.version`, which orders
  by (number, batch). Delta silently skips a version that is not greater: check after the write
  whether it is there.
* **Iceberg**: store the number in the table's properties, and commit by compare-and-set over them,
  in one catalog for all regions.
* **Files**: names that contain the number; a list of the valid ones, in one of the stores above.
* **Kafka**: a transactional id fences within one cluster, and there the *later* one wins, even when
  that is the replaced region. So ``token.read(fresh=True)``, which asks the global authority, comes
  before ``initTransactions``, and the new owner notes with :meth:`Token.raised` where readers cut
  the topic of the lost region. Such a sink cannot fence: no adoption without an operator.

A sink that both regions reach is one store. Two copies of it, one per region, are two sinks, and
fence nothing from each other.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lowwater import errors
from lowwater.core.file_settings import FileSettings

__all__ = ["Adoption", "Position", "Token"]

DEFAULT_AGENT: Final = "127.0.0.1:7440"

UNIX: Final = "unix:"

BATCH_BITS: Final = 40
"""Bits of a batch number. A batch is below 2^40, and an adoption number below 2^23, because Delta's
version is signed."""

Position = tuple[str, str, int, int]
"""Cluster, topic, partition, and the offset to read next in the source's own numbering, which a
mirror does not share."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """This region's ownership of a reference, by its agent."""

    reference: str
    number: int
    """Adoption number, the token of each commit. It grows with each owner."""
    stop: bool
    """True when an operator moves the reference to another region: stop after a batch, and report
    that with ``committed(..., stopped=True)``."""
    stale_seconds: float
    """Seconds since the global authority last answered. Go on: the sink decides whether the number
    still counts."""
    batch: int
    """Last batch in the global record, of any owner; -1: none."""
    positions: tuple[Position, ...]
    """Offsets at which the sources continue after that batch, as its owner reported them."""

    def version(self, batch: int) -> int:
        """Return a number that grows with (number, batch), for sinks that compare one.

        >>> Adoption("hourly:clicks", 3, False, 0.0, -1, ()).version(7) == 3 * 2**40 + 7
        True
        """
        if not 0 <= batch < 1 << BATCH_BITS or self.number >= 1 << (63 - BATCH_BITS):
            raise errors.InvalidArgument(f"batch {batch} of number {self.number} does not fit into 63 bits")
        return self.number << BATCH_BITS | batch


class Token:
    """Asks the agent of this region about one reference.

    Args:
        reference: Name of the reference, COMPUTATION:INPUT+INPUT, as in `lowwater references`.
        agent: Address of ``lowwater region --listen``: HOST:PORT, https://HOST:PORT for an agent
            with a certificate, or unix:PATH; by default LOWWATER_REGION, else 127.0.0.1:7440.
        timeout: Seconds to wait for an answer.
        token: Token for the agent; by default the first in the file that LOWWATER_REGION_TOKEN_FILE
            names, which is read for every call, or in LOWWATER_REGION_TOKEN. Raises OSError for an
            unreadable file, InvalidArgument for one without a usable token.
        ca: File of certificates to trust the agent by; by default LOWWATER_REGION_CA, else those of
            the system.
    """

    def __init__(
        self,
        reference: str,
        agent: str | None = None,
        timeout: float = 5.0,
        *,
        token: str | None = None,
        ca: str | None = None,
    ) -> None:
        self.reference = reference
        self.agent: str = agent or os.environ.get("LOWWATER_REGION") or DEFAULT_AGENT
        self.timeout = timeout
        file = "" if token else os.environ.get("LOWWATER_REGION_TOKEN_FILE", "")
        tokens = token or os.environ.get("LOWWATER_REGION_TOKEN", "")
        self._settings = _FirstToken("localhost", token=tokens.partition(",")[0].strip(), token_file=file).read()
        self._ca = ca or os.environ.get("LOWWATER_REGION_CA") or None

    def read(self, *, fresh: bool = False) -> Adoption:
        """Return the adoption number to commit by. Call it before each commit.

        ``fresh``: the agent asks the global authority now, and raises when it cannot. Otherwise it
        uses the last answer, even while it is cut off. That is enough for a sink that compares the
        number. It is not before a call that fences others and compares nothing, such as
        ``initTransactions``.

        Raises StaleAdoption when another region owns the reference, Unconfirmed while this region's
        ownership is unconfirmed, RegionRefused when it has stopped to be moved, UnknownReference,
        and Unavailable without an agent. After any of them commit nothing.
        """
        query = {"reference": self.reference, **({"fresh": "1"} if fresh else {})}
        answer = self._ask(f"/token?{urllib.parse.urlencode(query)}")
        try:
            return Adoption(
                self.reference,
                answer["number"],
                answer["stop"],
                answer["stale_seconds"],
                answer["batch"],
                tuple(map(tuple, answer["positions"])),
            )
        except (KeyError, TypeError) as error:
            msg = f"the server at {self.agent} is no agent of a region ({error!r}): commit nothing until `lowwater region` runs there"
            raise errors.Unavailable(msg, metadata={"address": self.agent}) from None

    def committed(
        self, adoption: Adoption, batch: int, digest: str, positions: Iterable[Position], *, stopped: bool = False
    ) -> None:
        """Report a commit: its batch, its digest, and where the sources continue after it.

        Each owner counts batches from 0. ``stopped``: it was the last one, because the reference is
        being moved. Raises like :meth:`read`; StaleAdoption for an older number.
        """
        self._ask(
            "/committed",
            number=adoption.number,
            batch=batch,
            digest=digest,
            positions=list(map(list, positions)),
            stopped=stopped,
        )

    def arrived(self, batch: int, digest: str, positions: Iterable[Position]) -> None:
        """Report, in the new region of a reference, that the state of its last batch is here."""
        self._ask("/arrived", batch=batch, digest=digest, positions=list(map(list, positions)))

    def mirrored(self, positions: Iterable[Position]) -> None:
        """Report a replica region's mirrored offsets: a condition of automatic adoption."""
        self._ask("/mirrored", positions=list(map(list, positions)))

    def raised(self, adoption: Adoption, sink: str, cut: str = "") -> None:
        """Report that a sink has the number; ``cut``: where readers cut a lost region's topic.

        Raises like :meth:`read`.
        """
        self._ask("/raised", number=adoption.number, sink=sink, cut=cut)

    def status(self) -> dict[str, Any]:
        """Return the agent's state of its region and of all references. Raises Unavailable."""
        return self._ask("/")

    def _ask(self, path: str, **body: Any) -> dict[str, Any]:
        data = json.dumps({"reference": self.reference, **body}).encode() if body else None
        headers = {"Content-Type": "application/json"} if body else {}
        for _, token in self._settings.metadata:
            headers["Authorization"] = token
        try:
            # No proxy: the agent is on this machine, or in this region.
            with contextlib.closing(self._connection()) as connection:
                connection.request("POST" if body else "GET", path, data, headers)
                answer = connection.getresponse()
                content: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            msg = f"no agent of a region answers at {self.agent} ({error}): commit nothing until `lowwater region` runs there"
            raise errors.Unavailable(msg, metadata={"address": self.agent}) from error
        if answer.status == http.client.OK:
            return content
        raise _refusal(answer.status, content)

    def _connection(self) -> http.client.HTTPConnection:
        if self.agent.startswith(UNIX):
            return _UnixConnection(self.agent.removeprefix(UNIX), self.timeout)
        url = urllib.parse.urlsplit(self.agent if "://" in self.agent else f"http://{self.agent}")
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self._ca)
            return http.client.HTTPSConnection(url.netloc, timeout=self.timeout, context=context)
        return http.client.HTTPConnection(url.netloc, timeout=self.timeout)


class _FirstToken(FileSettings):
    """Settings whose file may have several tokens, separated by commas: the first counts."""

    def content(self, name: str, file: str) -> bytes | None:
        """See FileSettings."""
        content = super().content(name, file)
        return content and content.partition(b",")[0]


class _UnixConnection(http.client.HTTPConnection):
    """A connection to an agent that listens at a path of this machine."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._seconds = timeout

    def connect(self) -> None:
        """See HTTPConnection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._seconds)
        self.sock.connect(self._path)


def _refusal(status: int, content: Any) -> errors.LowwaterError:
    try:
        if "error" in content:
            kind = {401: errors.Unauthenticated, 403: errors.PermissionDenied}.get(status, errors.Unavailable)
            fix = (
                "; pipelines take the token from the file that LOWWATER_REGION_TOKEN_FILE names, or from LOWWATER_REGION_TOKEN"
                if status == 401
                else ""
            )
            return kind(f"the agent of the region refuses to answer: {content['error']}{fix}")
        return errors.BY_REASON.get(content["reason"], errors.LowwaterError)(
            content["message"], metadata=content["metadata"]
        )
    except (KeyError, TypeError):
        return errors.Unavailable(f"the agent answers with HTTP {status}: is that `lowwater region`?")
