"""Two regions for tests: a real `lowwater global`, a local authority and an agent in each, a sink that compares tokens, and pipelines that write to it."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import grpc

import lowwater
from lowwater import errors
from lowwater.core.attempts import error_of_call
from lowwater.regions import Adoption, Token
from lowwater.v1 import regions_pb2 as pb
from lowwater.v1 import regions_pb2_grpc
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.process.nursery import Nursling, nursery
from tests.process.serving import Serving

HOURLY = "hourly:clicks"

CONFIG = """
[[reference]]
computation = "hourly"
inputs = ["clicks"]
regions = ["A", "B"]
home = "A"
policy = "replicated"
replicated = "mirror"
[[reference.sinks]]
name = "table"
fences = true

[[reference]]
computation = "other"
inputs = ["clicks"]
regions = ["A", "B"]
home = "A"
policy = "local"
"""


class Process:
    """One `lowwater` command that serves; it may be killed, and started again over the same files."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.arguments = arguments
        self.process: Nursling | None = None

    def begin(self) -> None:
        """Start it, and return at once."""
        with (self.folder / "log").open("a") as log:
            self.process = nursery().start(self.arguments, log, module="lowwater.cli")

    def start(self) -> Self:
        self.begin()
        assert self.process is not None
        line = self.process.stdout.readline()
        assert "serving on" in line, f"no ready line but {line!r}:\n{self.log()}"
        return self

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def events(self) -> list[str]:
        return [json.loads(line).get("event", "") for line in self.log().splitlines() if line.startswith("{")]

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        code = self.process.wait(60)
        self.process.stdout.close()
        self.process = None
        return code


class Sink:
    """A table that both regions reach. The write compares the token in its own transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as db:
            db.execute("CREATE TABLE token (number INTEGER)")
            db.execute("INSERT INTO token VALUES (0)")
            db.execute("CREATE TABLE batches (number INTEGER, batch INTEGER, until INTEGER, UNIQUE (number, batch))")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=60, isolation_level=None)

    def raise_(self, number: int) -> None:
        with closing(self._connect()) as db:
            assert db.execute("UPDATE token SET number = ? WHERE number <= ?", (number, number)).rowcount, "fenced"

    def write(self, number: int, batch: int, until: int) -> bool:
        """Return True if the sink took the batch."""
        with closing(self._connect()) as db:
            written = db.execute(
                "INSERT INTO batches SELECT ?, ?, ? FROM token WHERE number = ?", (number, batch, until, number)
            )
            return written.rowcount == 1

    def batches(self) -> list[tuple[int, int, int]]:
        with closing(self._connect()) as db:
            return db.execute("SELECT number, batch, until FROM batches ORDER BY rowid").fetchall()


class Site:
    """A region: its local authority, its agent, its pipeline and its mirror."""

    def __init__(self, name: str, folder: Path, global_address: str, *, every: str = "100ms") -> None:
        self.name = name
        self.authority = Serving(folder / name / "data")
        self.authority.data.parent.mkdir(parents=True)
        self.authority.start()
        config = folder / name / "region.toml"
        config.write_text(CONFIG)
        self.listen = f"127.0.0.1:{free_port()}"
        self.arguments = (
            *("region", "--name", name, "--authority", self.authority.address, "--global", global_address),
            *("--config", str(config), "--listen", self.listen, "--every", every, "--log-format", "json"),
        )
        self.agent = Process(folder / name / "agent", *self.arguments, "--state", str(folder / name / "state"))
        self.lw = lowwater.connect(self.authority.address, timeout=60)
        for computation in ("hourly", "mirror", "other"):
            self.lw.register(computation)
        self.mirror = self.lw.worker("mirror").claim()
        self.token = Token(HOURLY, self.listen)
        self.lease: lowwater.Lease | None = None
        self.number = 0
        self.batch = -1

    def close(self) -> None:
        self.lw.close()
        if self.agent.process is not None:
            self.agent.kill()
        self.authority.kill()

    def adoption(self) -> Adoption:
        return eventually(self._adoption, f"{self.name} owns {HOURLY}", seen=self.agent.log)  # type: ignore[return-value]

    def _adoption(self) -> Adoption | None:
        try:
            return self.token.read()
        except errors.LowwaterError:
            return None

    def refusal(self) -> str:
        try:
            self.token.read()
        except errors.LowwaterError as error:
            return error.reason
        return ""

    def work(self, sink: Sink, until: int) -> bool:
        """Commit one more batch, which is complete up to an event time, as a pipeline does. Whether the sink has taken it."""
        adoption = self.token.read()
        if adoption.number != self.number:
            sink.raise_(adoption.number)
            self.token.raised(adoption, "table")
            self.number, self.batch = adoption.number, -1
            self.lease = self.lw.worker("hourly").claim()
        assert self.lease is not None
        if not sink.write(self.number, self.batch + 1, until):
            return False
        self.batch += 1
        self.lease.advance(None, oldest=None, frontier=until)
        self.lease.flush()
        self.token.committed(adoption, self.batch, f"{self.number}/{self.batch}", self.positions())
        return True

    def positions(self) -> list[tuple[str, str, int, int]]:
        return [("cluster-a", "clicks", 0, self.batch + 1)]

    def mirror_to(self, frontier: int) -> None:
        self.mirror.advance(None, oldest=None, frontier=frontier)
        self.mirror.flush()

    def published(self, name: str = "global/hourly") -> int:
        return self.lw.get(name)[name].low.micros


class Operator:
    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address)
        self._stub = regions_pb2_grpc.RegionServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def decide(self, decision: pb.Decision.ValueType, region: str = "", reference: str = HOURLY) -> pb.ReferenceView:
        request = pb.DecideRequest(reference=reference, decision=decision, region=region, who="test")
        try:
            answer: pb.ListReferencesResponse = self._stub.Decide(request, timeout=60, wait_for_ready=True)
        except grpc.RpcError as failure:
            raise error_of_call(failure, self._address) from None
        return answer.references[0]

    def state(self) -> str:
        answer: pb.ListReferencesResponse = self.ask("ListReferences", pb.ListReferencesRequest())
        assert answer.state == "serving"
        return answer.store_token

    def ask(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=60, wait_for_ready=True)
        except grpc.RpcError as failure:
            raise error_of_call(failure, self._address) from None

    def adopt(self, to: str) -> None:

        def adopted() -> bool:
            try:
                self.decide(pb.DECISION_ADOPT, to)
            except errors.RegionRefused:
                return False
            return True

        eventually(adopted, f"{to} adopts")

    def reference(self, name: str = HOURLY) -> pb.ReferenceView:
        answer: pb.ListReferencesResponse = self._stub.ListReferences(
            pb.ListReferencesRequest(reference=name), timeout=60, wait_for_ready=True
        )
        return answer.references[0]
