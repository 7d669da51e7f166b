"""The public names on asyncio, and what using them wrongly says."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import lowwater
import lowwater.aio
from lowwater import errors
from lowwater.views import Shards
from tests.kit.client import OfflineClient

PAIRS = [
    (lowwater.Batches, lowwater.aio.Batches),
    (lowwater.Client, lowwater.aio.Client),
    (lowwater.Worker, lowwater.aio.Worker),
    (lowwater.Lease, lowwater.aio.Lease),
    (lowwater.InputReader, lowwater.aio.InputReader),
]


def public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("threads", "tasks"), PAIRS, ids=lambda cls: cls.__module__.split(".")[1] + cls.__name__)
def test_both_shells_have_the_same_methods_with_the_same_parameters(threads: type, tasks: type) -> None:
    here, there = public(threads), public(tasks)
    assert here.keys() == there.keys()
    for name, method in here.items():
        if inspect.isfunction(method):
            ours, theirs = inspect.signature(method), inspect.signature(there[name])
            assert list(ours.parameters.values()) == list(theirs.parameters.values()), name
            assert there[name].__doc__


def test_connect_takes_the_same_arguments_and_makes_the_same_settings() -> None:
    assert (
        inspect.signature(lowwater.connect).parameters.keys()
        == inspect.signature(lowwater.aio.connect).parameters.keys()
    )
    options: dict[str, Any] = {"namespace": "n", "token": "t", "timeout": 3.0, "server_token": "s"}
    assert lowwater.aio.connect("there:1", **options).settings == lowwater.connect("there:1", **options).settings


def test_the_public_names_are_these() -> None:
    names = ["Batches", "Client", "InputReader", "Lease", "TaskLease", "Tasks", "Worker", "connect"]
    assert sorted(lowwater.aio.__all__) == names


def test_importing_and_connecting_start_nothing() -> None:
    program = (
        "import threading, asyncio\n"
        "import lowwater.aio\n"
        "lowwater.aio.connect('localhost:1')\n"
        "assert threading.active_count() == 1\n"
        "async def main():\n"
        "    async with lowwater.aio.connect('localhost:1') as lw:\n"
        "        lw.worker('c'), lw.inputs('c')\n"
        "        assert len(asyncio.all_tasks()) == 1\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


async def test_a_closed_client_says_so() -> None:
    async with lowwater.aio.connect("localhost:1") as lw:
        reader = lw.inputs("c")
    await lw.close()
    for use in (lw.get, lw.topology, reader.read, lambda: lw.wait("c", 5), lambda: anext(lw.watch())):
        with pytest.raises(lowwater.Closed, match="connect"):
            await use()
    for call in (lw.statistics, lambda: lw.worker("c"), lambda: lw.inputs("c")):
        with pytest.raises(lowwater.Closed, match="connect"):
            call()


async def test_a_closed_reader_and_worker_say_so() -> None:
    async with lowwater.aio.connect("localhost:1") as lw:
        async with lw.inputs("c") as reader:
            pass
        with pytest.raises(lowwater.Closed, match=r"lw\.inputs"):
            await reader.read()
        assert [seen async for seen in reader.watch()] == []
        async with lw.worker("c") as worker:
            pass
        with pytest.raises(lowwater.Closed, match=r"lw\.worker"):
            await worker.claim()
        with pytest.raises(lowwater.InvalidArgument, match="at least one"):
            lw.inputs()


def test_a_client_belongs_to_its_event_loop() -> None:
    lw = lowwater.aio.connect("localhost:1", timeout=0.1)

    async def use() -> lowwater.Inputs:
        return await lw.inputs("c").read()

    async def forget() -> None:
        await lw.close()

    with asyncio.Runner() as first:
        assert first.run(use()).low.unknown
        with asyncio.Runner() as second, pytest.raises(lowwater.Closed, match="another event loop"):
            second.run(use())
        first.run(forget())


async def test_close_ends_calls_that_wait_and_their_tasks_are_not_cancelled() -> None:
    lw = lowwater.aio.connect("localhost:1", timeout=60.0)
    calls = [
        asyncio.ensure_future(waiting) for waiting in (lw.get(), lw.reset("c"), lw.wait("c", 5), lw.inputs("c").read())
    ]
    await asyncio.sleep(0)
    await lw.close()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, lowwater.Closed), result


async def test_a_call_that_grpc_cancels_by_itself_is_unavailable() -> None:
    """Nobody cancelled the task, so nobody expects that it ends so."""
    async with lowwater.aio.connect("localhost:1", timeout=1.0) as lw:
        connection = lw._runtime().connection
        for waiting in (lw.get(), lw.reset("c")):
            call = asyncio.ensure_future(waiting)
            await asyncio.sleep(0)
            await connection._channels.by_address.pop("localhost:1").channel.close()
            with pytest.raises(lowwater.Unavailable, match="localhost:1"):
                await call


@pytest.mark.parametrize(("metadata", "tries"), [({}, 1), ({"field": "address"}, 1), ({"field": "version"}, 5)])
async def test_a_change_of_the_shards_is_repeated_while_another_one_comes_between(
    metadata: dict[str, str], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an authority that does not name the field is told of as it refuses."""
    requests: list[str] = []

    async def call(wanted: Any) -> Any:
        requests.append(wanted.request.DESCRIPTOR.name)
        if requests[-1] == "ListShardsRequest":
            return Shards(1, (), {}, ())
        raise errors.InvalidArgument("no", metadata=metadata)

    async with lowwater.aio.connect("home:1") as lw:
        runtime = SimpleNamespace(calls=OfflineClient().calls, call=call)
        monkeypatch.setattr(lw, "_runtime", lambda: runtime)
        with pytest.raises(errors.InvalidArgument):
            await lw.drain("there:1")
    assert requests == ["ListShardsRequest", "DrainRequest"] * tries
