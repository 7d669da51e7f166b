"""A real HDFS for a test: a name node and a data node in one process, reached by ``hdfs://``."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from tests.kit.ports import free_port
from tests.kit.program import Program, java

READY: Final = "Started MiniDFSCluster"
RETRIES: Final = ("dfs.client.retry.policy.enabled", "true")
"""A setting of the client. Without it the first call after a kill may go out on the old connection, and fail with its end."""

_LOG: Final = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n
"""


class Hdfs(Program):
    """An HDFS whose directory survives ``kill``; ``start`` goes on from it at the same port.

    ``with Hdfs(tmp_path / "hdfs").start() as hdfs`` kills it at the end.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        self._data = directory / "data"
        self._log = directory / "log4j.properties"
        self._log.write_text(_LOG)

    def start(self) -> Self:
        """Run it, and return when its data node has told the name node what it has."""
        formatting = [] if self._data.exists() else ["-format"]
        settings = ["-datanodes", "1", "-nnport", str(self.port), "-D", f"hdfs.minidfs.basedir={self._data}"]
        manager = ["org.apache.hadoop.test.MiniDFSClusterManager", *formatting, *settings]
        return self.run(java("hdfs", "-Xmx256m", f"-Dlog4j.configuration=file:{self._log}", *manager), READY)

    def path(self, name: str) -> str:
        return f"hdfs://127.0.0.1:{self.port}/{name}"
