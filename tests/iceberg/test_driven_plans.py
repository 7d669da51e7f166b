"""Driven plans that are refused before Spark 4.2, run on 4.1 without that refusal. When all pass there, and the floor's one-sided batches on 4.0, it can go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowwater_spark.drive import plan
from tests.spark.drive_support import Driven, driven
from tests.spark.test_drive_late import (
    test_rows_below_a_guess_are_kept,
    test_what_comes_after_its_id_was_forgotten_is_kept,
)
from tests.spark.test_drive_one_sided import (
    sides,
    test_a_batch_of_one_side_keeps_every_row,
    test_nulls_have_the_types_of_all_columns,
)
from tests.spark.test_drive_traps import test_several_controls_say_everything_again_after_a_restart
from tests.spark.test_drive_windows import (
    test_a_join_of_two_streams_waits_for_the_slower_one,
    test_duplicates_are_known_until_the_watermark_is_beyond_them,
    test_timers_ring_at_the_millisecond,
)

__all__ = [
    "driven",
    "sides",
    "test_a_batch_of_one_side_keeps_every_row",
    "test_a_join_of_two_streams_waits_for_the_slower_one",
    "test_duplicates_are_known_until_the_watermark_is_beyond_them",
    "test_nulls_have_the_types_of_all_columns",
    "test_rows_below_a_guess_are_kept",
    "test_several_controls_say_everything_again_after_a_restart",
    "test_timers_ring_at_the_millisecond",
    "test_what_comes_after_its_id_was_forgotten_is_kept",
]

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def unrefused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drive() take what it refuses before Spark 4.2."""
    monkeypatch.setattr(plan, "check_proven", lambda *_: None)


@pytest.fixture
def carrier(driven: Driven) -> Iterator[None]:
    """The reader of this Spark, which passes no offset."""
    yield
    assert driven.readers == {"remembers"}
