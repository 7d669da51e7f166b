"""The page consists of libraries as they were fetched, with their licences, and of nothing from another host."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "page/src/lowwater_page/static"
HOST = re.compile(r"(?:https?:)?//[\w-]+\.[\w.-]+")
NAMESPACE = "http://www.w3.org"


def test_the_vendored_files_are_those_of_the_table() -> None:
    assert runpy.run_path(str(ROOT / "scripts/vendor_page.py"))["problems"]() == []


def test_the_page_names_no_other_host() -> None:
    files = [
        path
        for path in PAGE.rglob("*")
        if path.suffix in {".js", ".css", ".html", ".svg"} and path.parent.name != "vendor"
    ]
    assert len(files) > 10
    for path in files:
        hosts = [host for host in HOST.findall(path.read_text()) if host != NAMESPACE]
        assert hosts == [], path
