"""By which adoption number a pipeline may commit, where several regions may make the same thing.

    token = Token("hourly:clicks")                  # asks `lowwater region` on this machine
    adoption = token.read()                         # before each commit; raises unless this region
    owns it if adoption.number != raised:                   # a new owner raises its number first,
    and reads behind that what is there
        raise_in_the_sink(adoption.number)
    write(rows, token=adoption.number, batch=batch) # the sink compares it in the write itself
    token.committed(adoption, batch, digest, positions)

The number alone proves nothing a moment later: the region may have been replaced since. What counts
is that the sink compares it *in the same write*. How, sink by sink:

* **A store with transactions, or a script** (PostgreSQL, Redis): a row has the greatest number
  seen. The write's own transaction refuses a lower one.
* **Delta**: ``txnAppId`` = the reference, ``txnVersion`` = :meth:`Adoption.version`, which orders
  by (number, batch). Delta skips what is not greater, without a word: look behind the write whether
  it is there.
* **Iceberg**: keep the number in the table's properties, and commit by compare-and-set over them,
  in one catalog for all regions.
* **Files**: names that contain the number; a list of what counts, kept in one of the stores above.
* **Kafka**: a transactional id fences within one cluster, and there the one that comes *later*
  wins, also when that is the region which was replaced. So ``token.read(fresh=True)``, which asks
  the global authority, comes before ``initTransactions``, and the new owner notes with
  :meth:`Token.raised` where readers cut the topic of the lost region. Such a sink cannot fence:
  there is no adoption without an operator.

A sink that both regions reach is one store. Two copies of it, one a region, are two sinks and fence
nothing from each other.
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
"""A batch is below 2^40, and a number below 2^23: what Delta takes is signed."""

Position = tuple[str, str, int, int]
"""Cluster, topic, partition, and the offset to be read next, as the source counts them: a mirror of
it counts otherwise."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """What this region owns a reference by, as far as its agent knows."""

    reference: str
    number: int
    """The token. It grows with each owner."""
    stop: bool
    """Whether an operator moves it to another region: stop behind a batch, and say so with
    ``committed(..., stopped=True)``."""
    stale_seconds: float
    """For how long the global authority has not been heard of. Go on: the sink says whether the
    number still counts."""
    batch: int
    """The last one that the global record has, of whichever owner; -1: none."""
    positions: tuple[Position, ...]
    """Where the sources are read on behind it, as the owner that committed it has told."""

    def version(self, batch: int) -> int:
        """Return a number that grows with (number, batch), for sinks that compare one.

        >>> Adoption("hourly:clicks", 3, False, 0.0, -1, ()).version(7) == 3 * 2**40 + 7
        True
        """
        if not 0 <= batch < 1 << BATCH_BITS or self.number >= 1 << (63 - BATCH_BITS):
            msg = f"batch {batch} of number {self.number} does not fit into 63 bits"
            raise errors.InvalidArgument(msg)
        return self.number << BATCH_BITS | batch


class Token:
    """Asks the agent of the region about one reference.

    Args:
        reference: Its name, COMPUTATION:INPUT+INPUT, as `lowwater references` has it.
        agent: ``lowwater region --listen``: HOST:PORT, https://HOST:PORT where it has a
            certificate, or unix:PATH; by default LOWWATER_REGION, else 127.0.0.1:7440.
        timeout: Seconds for an answer.
        token: What the agent wants to be presented; by default the first of the file that
            LOWWATER_REGION_TOKEN_FILE names, which is read for every call, or of
            LOWWATER_REGION_TOKEN. Raises OSError for a file that cannot be read here,
            InvalidArgument for one without a usable token.
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
        """Return by which number to commit. Before each commit.

        ``fresh``: the agent asks the global authority now, and raises when it cannot. Else it goes
        by what it was told last, also while it is cut off. That is enough where the sink compares
        the number; before anything that fences others and compares nothing, as
        ``initTransactions``, it is not.

        Raises StaleAdoption when another region owns the reference, Unconfirmed when nobody has
        confirmed yet that this one does, RegionRefused when it has stopped to be moved,
        UnknownReference, and Unavailable without an agent. After any of them commit nothing.
        """
        asked = {"reference": self.reference, **({"fresh": "1"} if fresh else {})}
        told = self._ask(f"/token?{urllib.parse.urlencode(asked)}")
        try:
            return Adoption(
                self.reference,
                told["number"],
                told["stop"],
                told["stale_seconds"],
                told["batch"],
                tuple(map(tuple, told["positions"])),
            )
        except (KeyError, TypeError) as error:
            msg = f"what answers at {self.agent} is no agent of a region ({error!r}): commit nothing until `lowwater region` runs there"
            raise errors.Unavailable(msg, metadata={"address": self.agent}) from None

    def committed(
        self, adoption: Adoption, batch: int, digest: str, positions: Iterable[Position], *, stopped: bool = False
    ) -> None:
        """Say what was committed by a number: the batch, counted from 0 by each owner, its digest, and where the sources are read on.

        ``stopped``: it was the last one, because the reference is being moved. Raises as read; StaleAdoption for an older number.
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
        """Say in the region that a reference is moved to: the state of the batch at which the owner has stopped is here."""
        self._ask("/arrived", batch=batch, digest=digest, positions=list(map(list, positions)))

    def mirrored(self, positions: Iterable[Position]) -> None:
        """Say in a region that keeps a replica how far the sources are mirrored.

        Without that nothing is adopted by itself.
        """
        self._ask("/mirrored", positions=list(map(list, positions)))

    def raised(self, adoption: Adoption, sink: str, cut: str = "") -> None:
        """Say that a sink has the number; ``cut`` is where readers cut the topic of a lost region.

        Raises as read.
        """
        self._ask("/raised", number=adoption.number, sink=sink, cut=cut)

    def status(self) -> dict[str, Any]:
        """Return what the agent knows of its region and of all references. Raises Unavailable."""
        return self._ask("/")

    def _ask(self, path: str, **body: Any) -> dict[str, Any]:
        data = json.dumps({"reference": self.reference, **body}).encode() if body else None
        headers = {"Content-Type": "application/json"} if body else {}
        for _, token in self._settings.metadata:
            headers["Authorization"] = token
        try:
            # Not by a proxy: it is on this machine, or in this region.
            with contextlib.closing(self._connection()) as connection:
                connection.request("POST" if body else "GET", path, data, headers)
                answer = connection.getresponse()
                told: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            msg = f"no agent of a region answers at {self.agent} ({error}): commit nothing until `lowwater region` runs there"
            raise errors.Unavailable(msg, metadata={"address": self.agent}) from error
        if answer.status == http.client.OK:
            return told
        raise _refusal(answer.status, told)

    def _connection(self) -> http.client.HTTPConnection:
        if self.agent.startswith(UNIX):
            return _UnixConnection(self.agent.removeprefix(UNIX), self.timeout)
        url = urllib.parse.urlsplit(self.agent if "://" in self.agent else f"http://{self.agent}")
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self._ca)
            return http.client.HTTPSConnection(url.netloc, timeout=self.timeout, context=context)
        return http.client.HTTPConnection(url.netloc, timeout=self.timeout)


class _FirstToken(FileSettings):
    """Settings whose file may have several tokens, with commas between them: the first counts."""

    def content(self, name: str, named: str) -> bytes | None:
        """See FileSettings."""
        content = super().content(name, named)
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


def _refusal(status: int, told: Any) -> errors.LowwaterError:
    try:
        if "error" in told:
            kind = {401: errors.Unauthenticated, 403: errors.PermissionDenied}.get(status, errors.Unavailable)
            fix = (
                "; pipelines take the token from the file that LOWWATER_REGION_TOKEN_FILE names, or from LOWWATER_REGION_TOKEN"
                if status == 401
                else ""
            )
            return kind(f"the agent of the region refuses to answer: {told['error']}{fix}")
        return errors.BY_REASON.get(told["reason"], errors.LowwaterError)(told["message"], metadata=told["metadata"])
    except (KeyError, TypeError):
        return errors.Unavailable(f"the agent answers with HTTP {status}: is that `lowwater region`?")
