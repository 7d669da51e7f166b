"""attach() from a Spark Connect client, against a real Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.serving import Serving

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_watermarks_arrive_from_a_connect_client(authority: Serving, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.attach_connect_driver", authority.address, str(tmp_path)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("LOWWATER", "SPARK_"))}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "low": "2013-01-09T11:50:00Z",
        "estimated": True,
        "state": "UNOWNED",
        "rows": 4,
        "late_rows": 2,
        "swallowed": 0,
    }
