"""The table of stores has every scheme that a store reads."""

from __future__ import annotations

import pytest

from lowwater_authority.journal.redis_link import PORTS
from lowwater_authority.stores.store import store_at


@pytest.mark.parametrize("scheme", PORTS)
def test_a_scheme_of_redis_leads_there(scheme: str) -> None:
    assert str(store_at(f"{scheme.upper()}://me:secret@host:1/0", "orders")) == f"{scheme}://host:1/0#orders"
