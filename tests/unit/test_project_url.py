"""The project's address: told once, found in each distribution, the chart and the image."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

from scripts import project_url
from scripts.dist import DISTRIBUTIONS, ROOT

URL = "https://code.example/streams/lowwater"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = ["pyproject.toml", "Dockerfile", "helm/lowwater/Chart.yaml"]
    for name in [*names, *(f"{folder}/pyproject.toml" for folder in DISTRIBUTIONS.values())]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def tell(tree: Path, url: str) -> None:
    path = tree / "pyproject.toml"
    before = project_url.project_url(tree)
    path.write_text(path.read_text().replace(f'\nurl = "{before}"', f'\nurl = "{url}"', 1))
    assert project_url.project_url(tree) == url


def test_what_is_told_once_is_everywhere(tree: Path) -> None:
    tell(tree, URL)
    assert project_url.main(["--check"], tree) == 1, "nothing has it yet"
    assert project_url.main([], tree) == 0
    assert project_url.main(["--check"], tree) == 0
    for folder in DISTRIBUTIONS.values():
        told = tomllib.loads((tree / folder / "pyproject.toml").read_text())
        assert told["project"]["urls"] == {"Homepage": URL}
    chart = yaml.safe_load((tree / "helm/lowwater/Chart.yaml").read_text())
    assert (chart["home"], chart["sources"]) == (URL, [URL])
    assert f'org.opencontainers.image.url="{URL}"' in (tree / "Dockerfile").read_text()


def test_taken_back_it_leaves_nothing(tree: Path) -> None:
    tell(tree, "")
    project_url.main([], tree)
    before = {path: path.read_text() for path in project_url.told(tree, "")}
    for url in (URL, "https://other.example", ""):
        tell(tree, url)
        project_url.main([], tree)
    assert {path: path.read_text() for path in before} == before


@pytest.mark.parametrize("url", ["http://plain.example", "code.example", f"{URL}/", 'https://x.example/"'])
def test_what_is_no_address_is_refused(tree: Path, url: str) -> None:
    path = tree / "pyproject.toml"
    before = project_url.project_url(tree)
    path.write_text(path.read_text().replace(f'\nurl = "{before}"', f"\nurl = '{url}'", 1))
    with pytest.raises(SystemExit, match="url of"):
        project_url.main([], tree)
