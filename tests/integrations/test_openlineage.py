"""The run facet, as OpenLineage's own client writes it, against its schema; in an environment of its own, and against a real authority."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import lowwater
from tests.kit.times import at
from tests.process.serving import Serving, serving

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "integrations/openlineage/src/lowwater_openlineage/LowWatermarkRunFacet.json"


def facets(server: Serving, path: Path, *questions: str) -> list[dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python, child = ROOT / "build/openlineage/bin/python", ROOT / "integrations/openlineage/tests/child.py"
    subprocess.run([python, child, server.address, path, *questions], env=environ, check=True)
    return [json.loads(line)["run"]["facets"]["lowwater_lowWatermark"] for line in path.read_text().splitlines()]


def test_a_run_says_how_far_what_it_read_was_complete(tmp_path: Path) -> None:
    subprocess.run([ROOT / "integrations" / "setup.sh", "openlineage"], check=True)
    with serving(tmp_path) as server, lowwater.connect(server.address) as lw:
        for name, inputs in (("flights", []), ("hourly", ["flights", "typo"]), ("done", [])):
            lw.register(name, inputs=inputs)
        lw.register("guess", estimated=True)
        lease = lw.worker("flights", name="exec-7").claim()
        lease.advance(None, oldest=None, frontier=at(13))
        lease.flush()
        lw.worker("done").claim().finish()
        all_facets = facets(server, tmp_path / "events", "flights", "flights,12,13", "hourly,12,14", "done", "guess")
        token = lw.server_token
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for facet in all_facets:
        validator.validate(facet)
        assert facet["_schemaURL"] == schema["$id"]
        assert facet["deployment"] == token
    facts, complete, hourly, done, guess = all_facets
    assert (facts["state"], facts["lowWatermark"], facts.get("interval")) == ("reached", "2013-01-09T13:00:00Z", None)
    assert (complete["interval"]["complete"], complete["interval"]["missing"]) == (True, [])
    assert (hourly["state"], hourly.get("lowWatermark"), hourly["interval"]["complete"]) == ("unknown", None, False)
    assert [(gap["computation"], gap["from"], gap.get("keyRanges")) for gap in hourly["interval"]["missing"]] == [
        ("hourly", "2013-01-09T12:00:00Z", 1),
        ("flights", "2013-01-09T13:00:00Z", 1),
        ("typo", "2013-01-09T12:00:00Z", None),
    ]
    assert hourly["interval"]["missing"][1]["holders"][0]["worker"] == "exec-7"
    assert "typo" in hourly["interval"]["why"]
    assert (done["state"], guess["estimated"]) == ("finished", True)
    for wrong in (
        {"state": "late"},
        {"lowWatermark": "13:00"},
        {"incarnation": "1"},
        {"more": 1},
        {"interval": {"from": None}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(facts | wrong)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({key: value for key, value in facts.items() if key != "lowWatermark"})
