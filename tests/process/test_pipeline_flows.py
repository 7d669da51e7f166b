"""``lowwater-spark track`` over a declarative pipeline, whose flows come, are refused and begin anew while it runs. No Spark runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lowwater
from tests.kit.eventually import eventually
from tests.kit.pipeline_storage import Storage
from tests.kit.times import at, mark
from tests.process.serving import Serving

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_flows_are_found_refused_and_told_from_those_of_a_full_refresh(
    server: Serving, lw: lowwater.Client, tmp_path: Path
) -> None:
    storage = Storage(tmp_path)
    read = tmp_path / "in/1.json"
    read.parent.mkdir()
    read.write_text("rows")
    storage.flow("default/enriched/enriched/0", str(read))
    written = storage.write("default", "enriched")
    lw.register("source")
    lease = lw.worker("source", identity="tests").claim()
    lease.advance(None, oldest=None, frontier=at(10))
    keys = {key: json.dumps(storage.declared[key]) for key in ("storage", "warehouse", "prefix", "promises")}
    lines = ["[[pipeline]]", *(f"{key} = {value}" for key, value in keys.items())]
    declared = tmp_path / "queries.toml"
    lines += ["[pipeline.inputs]", f'"files:{read.parent}" = ["source"]']
    for flow in ("enriched", "beside"):
        lines += [f"[pipeline.flows.{flow}]", f'sources = ["files:{read.parent}"]']
    declared.write_text("\n".join(lines))
    program = [sys.executable, "-m", "lowwater_spark.sidecar.command", "track", str(declared)]
    program += ["--state", str(tmp_path / "state"), "--address", server.address]

    def low(name: str) -> lowwater.Watermark:
        return lw.get(name)[name].low

    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: low("f.enriched") == mark(10), "the first flow is tracked")
            storage.write("default", "copied")
            storage.flow("default/copied/copied/0", str(written))
            eventually(lambda: low("f.copied") == mark(10), "a flow that has come is tracked, and reads the first")
            assert [*lw.topology().computations["f.copied"].inputs] == ["f.enriched"]
            assert process.stderr is not None
            # A full refresh has made its directory, and nothing in it: rows of all hours are still to
            # come into the table. The flow that only reads the source shows that 11:00 has come.
            storage.write("default", "beside")
            storage.flow("default/beside/beside/0", str(read))
            eventually(lambda: low("f.beside") == mark(10), "a flow beside these is tracked")
            refreshed = tmp_path / "storage/_checkpoints/spark_catalog/default/enriched/enriched/1"
            refreshed.mkdir()
            lease.advance(None, oldest=None, frontier=at(11))
            eventually(lambda: low("f.beside") == mark(11), "the flow beside them goes on")
            assert (low("f.enriched"), low("f.copied")) == (mark(10), mark(10)), "a table that is emptied holds"
            storage.flow("default/both/one/0", str(read))
            storage.flow("default/both/two/0", str(read))
            storage.flow("default/enriched/enriched/1", str(read))
            errors = iter(process.stderr.readline, "")
            next(line for line in errors if "f.copied is not tracked any more" in line and "full refresh has" in line)
            next(line for line in errors if "f.both.one is not tracked" in line and "drops batches" in line)
            next(line for line in errors if "f.enriched is not tracked any more" in line and "another query by" in line)
            lease.advance(None, oldest=None, frontier=at(12))
            eventually(lambda: low("f.beside") == mark(12), "the flow beside them goes on")
            assert (low("f.enriched"), low("f.copied")) == (mark(10), mark(10)), "both hold"
            process.terminate()
            assert process.wait(60) == 1, "some were refused"
        finally:
            process.kill()
