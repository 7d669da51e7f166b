"""One broker for the tests of a process here; each of them has topics of its own. Tests of other folders are not to run beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.kafka import Kafka
from tests.pipeline.case import Case

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    # A member that was killed is missed after two seconds, not six.
    settings = {"group.min.session.timeout.ms": 1000}
    with Kafka(tmp_path_factory.mktemp("pipeline") / "kafka", settings=settings) as running:
        yield running


@pytest.fixture
def make(kafka: Kafka, tmp_path: Path) -> Iterator[Callable[..., Case]]:
    opened: list[Case] = []

    def case(window: str = "1000", **options: Any) -> Case:
        number = next(_numbers)
        opened.append(Case(kafka, f"t{number}", tmp_path / f"state-{number}", window, **options))
        return opened[-1]

    yield case
    for one in opened:
        one.close()


@pytest.fixture
def case(make: Callable[..., Case]) -> Case:
    return make()
