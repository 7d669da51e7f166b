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
    declared.write_text("\n".join([*lines, "[pipeline.inputs]", f'"files:{read.parent}" = ["source"]']))
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
            storage.flow("default/both/one/0", str(read))
            storage.flow("default/both/two/0", str(read))
            storage.flow("default/enriched/enriched/1", str(read))
            errors = iter(process.stderr.readline, "")
            said = [
                next(line for line in errors if words in line) for words in ("drops batches", "another query by now")
            ]
            assert "f.both.one is not tracked" in said[0]
            assert "f.enriched is not tracked any more" in said[1]
            lease.advance(None, oldest=None, frontier=at(11))
            lease.flush(20)
            assert (low("f.enriched"), low("f.copied")) == (mark(10), mark(10)), "both hold"
            process.terminate()
            assert process.wait(60) == 1, "some were refused"
        finally:
            process.kill()
