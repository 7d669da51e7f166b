"""Fixtures that the tests of this folder share: wheels and environments, made once, and two servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compatibility.environments import Environment, build, environment, released, released_environment
from tests.compatibility.running import Installed
from tests.process.serving import Serving

AUTHORITY = ("lowwater", "lowwater-server", "lowwater-authority")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session", params=sorted(released()))
def old(request: pytest.FixtureRequest) -> Environment:
    """Each earlier version, one after the other."""
    return released_environment(request.param)


@pytest.fixture(scope="session")
def oldest() -> Environment:
    return released_environment("0.1.0")


@pytest.fixture(scope="session")
def installed(wheels: dict[str, Path]) -> Environment:
    return environment("built", [wheels[name] for name in AUTHORITY])


@pytest.fixture(scope="session")
def newest_client(wheels: dict[str, Path]) -> Environment:
    return environment("client", [wheels["lowwater"]])


@pytest.fixture(scope="session")
def lowest_client(wheels: dict[str, Path]) -> Environment:
    return environment("client_lowest", [wheels["lowwater"]], lowest=True)


@pytest.fixture(scope="session")
def lowest(wheels: dict[str, Path]) -> Environment:
    return environment("lowest", [wheels[name] for name in (*AUTHORITY, "lowwater-regions")], lowest=True)


@pytest.fixture(scope="session")
def lowest_page(wheels: dict[str, Path]) -> Environment:
    return environment(
        "page_lowest", [wheels[name] for name in ("lowwater", "lowwater-server", "lowwater-page")], lowest=True
    )


@pytest.fixture(scope="session")
def current(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("current") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def previous(old: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server of an earlier version; every test has a namespace of its own on it."""
    with Installed(old, tmp_path_factory.mktemp("previous") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def first(oldest: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server of 0.1.0, likewise."""
    with Installed(oldest, tmp_path_factory.mktemp("first") / "data") as server:
        yield server
