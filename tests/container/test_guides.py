"""docs/operate/operations.md and docs/operate/durability.md say what is there: commands, metrics, tests."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
from pathlib import Path

import yaml

from lowwater_authority.ops.metrics import FIGURES
from monitoring.files import groups
from monitoring.settings import Settings
from tests.container.dockerfile import ROOT
from tests.kit.program import run_program

GUIDES = [ROOT / "docs/operate/operations.md", ROOT / "docs/operate/durability.md"]
OPERATIONS, DURABILITY = (page.read_text() for page in GUIDES)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_a_restored_folder_belongs_to_the_user_of_the_service(tmp_path: Path) -> None:
    """Who restores is root, and an authority that may not open its journal does not serve."""
    (block,) = [block for _, block in BLOCK.findall(DURABILITY) if "/var/lib/lowwater.lost" in block]
    stop, *middle, start = block.splitlines()
    assert (stop, start) == ("systemctl stop lowwater", "systemctl start lowwater")
    lib, backup = tmp_path / "var/lib", tmp_path / "backup/2026-11-22"
    for folder in (lib / "lowwater", backup):
        folder.mkdir(parents=True)
    (lib / "lowwater/journal.sqlite").write_text("lost")
    (backup / "journal.sqlite").write_text("kept")
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    for line in middle:
        here = [word.replace("lowwater:", f"{user.pw_name}:") for word in shlex.split(line)]
        subprocess.run([re.sub(r"^/(?=var|backup)", f"{tmp_path}/", word) for word in here], check=True, timeout=60)
    assert (lib / "lowwater.lost/journal.sqlite").read_text() == "lost"
    assert (lib / "lowwater/journal.sqlite").read_text() == "kept"
    assert {path.stat().st_uid for path in (lib / "lowwater", lib / "lowwater/journal.sqlite")} == {user.pw_uid}


def test_the_tests_that_are_named_exist() -> None:
    named = {path for page in GUIDES for path in re.findall(r"`(tests/[^`]+)`", page.read_text())}
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_alarms_of_the_guide_are_rules_about_metrics_that_exist(tmp_path: Path) -> None:
    (block,) = [block for language, block in BLOCK.findall(OPERATIONS) if language == "yaml"]
    alerts = {alert.alert for group in groups(Settings())["alerts"] for alert in group.alerts}
    exported = {figure.name for figure in FIGURES} | {"process_resident_memory_bytes", "process_cpu_seconds_total"}
    rules = [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    for rule in rules:
        used = set(re.findall(r"\b(?:lowwater|process)_\w+", rule["expr"]))
        assert used, rule
        assert used <= exported, rule
        assert rule["alert"] not in alerts
    (tmp_path / "rules.yaml").write_text(block)
    command = ["promtool", "check", "rules", str(tmp_path / "rules.yaml")]
    done = run_program(command, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
