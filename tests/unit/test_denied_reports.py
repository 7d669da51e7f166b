"""What a report stream remembers of the computations for which its caller may not report."""

from __future__ import annotations

import pytest

from lowwater import errors
from lowwater_authority.rpc.streams import DENIED_BOUND, Outbox


def test_rule7_a_stream_remembers_only_so_many_denials() -> None:
    """If a denial were forgotten, the next report would lead once the right comes back: reports carry what changed."""
    outbox = Outbox()
    for number in range(DENIED_BOUND):
        outbox.deny(f"n/{number}")
    outbox.deny("n/0")
    assert len(outbox.denied) == DENIED_BOUND
    with pytest.raises(errors.Overloaded, match=f"refused the reports of {DENIED_BOUND} computations"):
        outbox.deny("n/one-more")
