"""What the page is made of: libraries as they were fetched, with their licences, and nothing from another host."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "page/src/lowwater_page/static"
HOST = re.compile(r"(?:https?:)?//[\w-]+\.[\w.-]+")
NAMESPACE = "http://www.w3.org"


def vendoring() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/vendor_page.py"))


def test_the_vendored_files_are_those_of_the_table() -> None:
    assert vendoring()["problems"]() == []


@pytest.mark.parametrize("harm", ["change", "remove", "add"])
def test_a_vendored_file_that_was_touched_is_named(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = vendoring()
    copy = Path(shutil.copytree(PAGE / "vendor", tmp_path / "vendor"))
    if harm == "change":
        (copy / "htm.js").write_bytes((copy / "htm.js").read_bytes() + b"\n")
    elif harm == "remove":
        (copy / "htm.LICENSE").unlink()
    else:
        (copy / "more.js").touch()
    monkeypatch.setitem(module["problems"].__globals__, "VENDOR", copy)
    monkeypatch.setitem(module["problems"].__globals__, "README", copy / "README.md")
    assert len(module["problems"]()) == 1


def test_the_page_names_no_other_host() -> None:
    files = [
        path
        for path in PAGE.rglob("*")
        if path.suffix in {".js", ".css", ".html", ".svg"} and path.parent.name != "vendor"
    ]
    assert len(files) > 10
    for path in files:
        hosts = [found for found in HOST.findall(path.read_text()) if found != NAMESPACE]
        assert hosts == [], path
