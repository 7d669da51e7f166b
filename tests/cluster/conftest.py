"""One standalone cluster at a time, and what is shipped to it, made once for the run."""

from __future__ import annotations

import pytest

from tests.cluster.shipping import Shipped, ship


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    return ship(tmp_path_factory.mktemp("shipped"))
