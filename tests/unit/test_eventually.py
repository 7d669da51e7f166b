"""What the tests wait with: it fails with what was seen, and at once when what is waited for has ended."""

from __future__ import annotations

import pytest

from tests.kit.eventually import TooLate, eventually

SHORT = 0.05


def test_a_failure_shows_the_names_that_were_looked_at() -> None:
    rows, names, wanted = [1, 2], {"a": "b"}, 3
    with pytest.raises(TooLate) as caught:
        eventually(lambda: len(rows) == wanted and not names["a"], "all rows", seconds=SHORT)
    assert str(caught.value).splitlines() == [
        f"not within {SHORT} s: all rows",
        "    names = {'a': 'b'}",
        "    rows = [1, 2]",
        "    wanted = 3",
        "    found = False",
    ]


def test_what_has_ended_fails_at_once_and_with_its_error() -> None:
    def check() -> None:
        raise ZeroDivisionError("the query has failed")

    with pytest.raises(ZeroDivisionError, match="the query has failed"):
        eventually(lambda: False, check=check)
