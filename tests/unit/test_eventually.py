"""What the tests wait with: it fails with what was seen, and at once when what is waited for has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.kit.eventually import TooLate, eventually, eventually_async
from tests.simulation.kernel import Simulation

SHORT = 0.05


def test_what_is_found_is_returned() -> None:
    found: list[str] = []
    thread = threading.Thread(target=found.append, args=["here"])
    thread.start()
    assert eventually(lambda: found, "somebody has come") == ["here"]
    thread.join()


def test_a_failure_shows_what_was_compared() -> None:
    rows, names, wanted = [1, 2], {"a": "b"}, 3
    with pytest.raises(TooLate) as caught:
        eventually(lambda: len(rows) == wanted and not names["a"], "all rows", seconds=SHORT)
    assert str(caught.value).splitlines() == [
        f"not within {SHORT} s: all rows",
        "    len(rows) = 2",
        "    wanted = 3",
        "    names['a'] = 'b'",
    ]


def test_of_two_lambdas_in_a_line_the_right_one_is_shown() -> None:
    one, other = 1, 2
    looks = (lambda: one > 5, lambda: other > 5)
    for look, said in zip(looks, ("one = 1", "other = 2"), strict=True):
        with pytest.raises(TooLate, match=said):
            eventually(look, seconds=SHORT)


def test_without_words_a_failure_shows_the_source() -> None:
    there = [0]
    with pytest.raises(TooLate, match=r"any\(\(each > 1 for each in there\)\)"):
        eventually(lambda: any(each > 1 for each in there), seconds=SHORT)


def test_what_is_no_lambda_is_shown_by_its_name_and_what_it_returned() -> None:
    def come() -> list[str]:
        return []

    with pytest.raises(TooLate, match=r"come = \[\]\n    seen: 'nobody'"):
        eventually(come, seconds=SHORT, seen=lambda: "nobody")


def test_what_has_ended_fails_at_once_and_with_its_error() -> None:
    def check() -> None:
        raise ZeroDivisionError("the query has failed")

    with pytest.raises(ZeroDivisionError, match="the query has failed"):
        eventually(lambda: False, check=check)


def test_what_came_true_just_before_the_end_is_true() -> None:
    found: list[str] = []

    def check() -> None:
        found.append("its last word")
        raise ZeroDivisionError

    assert eventually(lambda: found, check=check) == ["its last word"]


def test_an_error_of_a_look_is_raised() -> None:
    nothing = dict[str, int]()
    with pytest.raises(KeyError, match="gone"):
        eventually(lambda: nothing["gone"])


async def test_tasks_go_on_meanwhile() -> None:
    found: list[str] = []

    async def come() -> None:
        found.append("here")

    task = asyncio.create_task(come())
    await eventually_async(lambda: found)
    await task


async def test_a_coroutine_function_is_awaited() -> None:
    counted: Iterator[int] = iter(range(10))

    async def look() -> bool:
        return next(counted) == 3

    await eventually_async(look)
    assert next(counted) == 4


async def test_a_look_that_hangs_is_too_late() -> None:
    with pytest.raises(TooLate, match="nobody answers"):
        await eventually_async(asyncio.Event().wait, "nobody answers", seconds=SHORT)


async def test_a_time_out_of_the_look_itself_is_raised_as_it_is() -> None:
    async def look() -> bool:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await eventually_async(look)


async def test_what_has_ended_fails_at_once_among_tasks() -> None:
    def check() -> None:
        raise ZeroDivisionError("the task has failed")

    with pytest.raises(ZeroDivisionError, match="the task has failed"):
        await eventually_async(lambda: False, check=check)


def test_seconds_are_those_of_the_loop() -> None:
    """An hour of simulated time takes none."""
    simulation = Simulation(1)

    async def story() -> None:
        with pytest.raises(TooLate):
            await eventually_async(lambda: False, seconds=3600)
        assert simulation.now >= 3600

    simulation.run(story(), limit=7200)
