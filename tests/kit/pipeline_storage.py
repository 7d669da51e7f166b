"""The storage of a declarative pipeline, written by hand as PySpark 4.2 writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lowwater_spark.sidecar.pipeline import Flow, Folders, Pipeline

PROMISES = ["sink-visible-before-commit", "nothing-skipped", "history"]


class Storage:
    """A pipeline's storage and tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folders: Folders = {}
        for name in ("storage", "tables"):
            (folder / name).mkdir(exist_ok=True)
        self.file = folder / "spark-pipeline.yml"
        self.file.write_text(f"name: flights\nstorage: file://{folder}/storage\n")
        self.declared: dict[str, Any] = {
            "storage": str(folder / "storage"),
            "warehouse": str(folder / "tables"),
            "prefix": "f.",
            "promises": PROMISES,
            "inputs": {"files:/data/in": ["source"]},
            "flows": {},
        }

    def names(self, *flows: str) -> None:
        """Declare that flows read the source outside of the pipeline."""
        for flow in flows:
            self.declared["flows"].setdefault(flow, {}).setdefault("sources", ["files:/data/in"])

    def flow(self, path: str, *sources: str, state: str = "", catalog: str = "spark_catalog") -> Path:
        """Write the checkpoint of a flow, and its table; a source is a file that was read, or an offset."""
        database, table, flow, _ = path.split("/")
        checkpoint = self.folder / "storage/_checkpoints" / catalog / path
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": path}))
        (checkpoint / "commits/0").write_text("v1\n{}")
        lines = ['{"batchWatermarkMs":0}', *(s if s.startswith("{") else '{"logOffset":0}' for s in sources)]
        (checkpoint / "offsets/0").write_text("\n".join(["v1", *lines]))
        for number, source in enumerate(sources):
            if not source.startswith("{"):
                (checkpoint / f"sources/{number}").mkdir(parents=True)
                file = Path(source)
                modified = file.stat().st_mtime_ns // 1_000_000 if file.exists() else 1
                entry = {"path": source if "://" in source else f"file://{source}", "timestamp": modified, "batchId": 0}
                (checkpoint / f"sources/{number}/0").write_text(f"v1\n{json.dumps(entry)}")
        if state:
            meta = checkpoint / "state/0/_metadata/metadata"
            meta.parent.mkdir(parents=True)
            meta.write_text("v1\n" + json.dumps({"operatorInfo": {"operatorId": 0, "operatorName": state}}))
        if catalog == "spark_catalog":
            (self.table(database, table) / "_spark_metadata").mkdir(parents=True, exist_ok=True)
        if any(source.startswith("/data/in/") for source in sources):
            self.names(Flow(catalog, database, table, flow, checkpoint).name)
        return checkpoint

    def write(self, database: str, table: str) -> Path:
        """Write a file into a table by the log of Spark's file sink, as the batch 0 of its flow."""
        file = self.table(database, table) / "part-0.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("rows")
        times = {"modificationTime": file.stat().st_mtime_ns // 1_000_000, "blockReplication": 1, "blockSize": 1}
        entry = {"path": f"file://{file}", "size": 4, "isDir": False, "action": "add", **times}
        (file.parent / "_spark_metadata").mkdir(exist_ok=True)
        (file.parent / "_spark_metadata/0").write_text(f"v1\n{json.dumps(entry)}")
        return file

    def table(self, database: str, table: str) -> Path:
        return self.folder / "tables" / ("" if database == "default" else f"{database}.db") / table

    def look(self) -> tuple[dict[str, dict[str, Any]], dict[str, Exception]]:
        looked = Pipeline.parse(self.declared).look(self.folders)
        return looked.queries, looked.refused
