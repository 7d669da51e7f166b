"""Questions of the status page's viewers: few at once, each asked once for all who ask it, and no more than can wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import lowwater
from lowwater import errors
from lowwater_page import questions
from lowwater_page.questions import MOST_ASKED, MOST_KEPT, THREADS, Questions
from tests.kit.eventually import eventually_async


class Asked:
    """A question that counts how often it is asked, and at most how often at once; its answers wait until they are let go."""

    def __init__(self) -> None:
        self.times = 0
        self.most = 0
        self.free = threading.Event()
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, client: lowwater.Client) -> Any:
        with self._lock:
            self.times += 1
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.free.wait(30)
        with self._lock:
            self._now -= 1
        return {"times": self.times}


@pytest.fixture
async def asking() -> AsyncIterator[Questions]:
    # Nothing here goes over the network.
    with lowwater.connect("localhost:1") as client:
        made = Questions(lambda: client)
        yield made
        made.close()


async def test_who_asks_the_same_gets_the_same_answer(asking: Questions) -> None:
    asked = Asked()
    waiting = [asyncio.create_task(asking.ask(("why", "a"), asked)) for _ in range(50)]
    await eventually_async(lambda: asked.times == 1)
    asked.free.set()
    assert await asyncio.gather(*waiting) == [b'{"times":1}'] * 50
    assert await asking.ask(("why", "a"), asked) == b'{"times":1}'
    assert asked.times == 1


async def test_an_answer_is_good_for_a_moment_only(asking: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "GOOD_SECONDS", 0.05)
    asked = Asked()
    asked.free.set()
    first = await asking.ask(("why", "a"), asked)

    async def another() -> bool:
        return await asking.ask(("why", "a"), asked) != first

    await eventually_async(another)


async def test_few_are_asked_at_once_and_more_than_can_wait_are_refused(asking: Questions) -> None:
    asked = Asked()
    waiting = [asyncio.create_task(asking.ask(("why", f"{i}"), asked)) for i in range(MOST_ASKED)]
    await eventually_async(lambda: asked.times == THREADS)
    with pytest.raises(errors.Overloaded, match=str(MOST_ASKED)):
        await asking.ask(("why", "another"), asked)
    same = asyncio.create_task(asking.ask(("why", "0"), asked))  # is asked already
    asked.free.set()
    assert len(await asyncio.gather(*waiting, same)) == MOST_ASKED + 1
    assert asked.most == THREADS
    await asking.ask(("why", "another"), asked)


async def test_a_viewer_that_leaves_takes_nobodys_answer_away(asking: Questions) -> None:
    asked = Asked()
    leaving = asyncio.create_task(asking.ask(("why", "a"), asked))
    staying = asyncio.create_task(asking.ask(("why", "a"), asked))
    await eventually_async(lambda: asked.times == 1)
    leaving.cancel()
    asked.free.set()
    assert await staying == b'{"times":1}'


async def test_a_failure_is_told_to_all_who_asked(asking: Questions) -> None:
    times = 0

    def fail(client: lowwater.Client) -> Any:
        nonlocal times
        times += 1
        raise errors.UnknownComputation("there is none")

    found = await asyncio.gather(*(asking.ask(("why", "a"), fail) for _ in range(5)), return_exceptions=True)
    assert {type(each) for each in found} == {errors.UnknownComputation}
    assert times == 1


async def test_only_so_many_answers_are_kept(asking: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "GOOD_SECONDS", 60.0)
    asked = Asked()
    asked.free.set()
    for i in range(MOST_KEPT + 10):
        await asking.ask(("why", f"{i}"), asked)
    before = asked.times
    await asking.ask(("why", f"{MOST_KEPT + 9}"), asked)
    assert asked.times == before
    await asking.ask(("why", "0"), asked)
    assert asked.times == before + 1
