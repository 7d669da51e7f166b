"""The public names on asyncio, and what using them wrongly says."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

import lowwater
import lowwater.aio
from lowwater import errors
from lowwater._drive.tasks.signal import Signal
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
    assert sorted(lowwater.aio.__all__) == [
        "Batches",
        "Client",
        "InputReader",
        "Lease",
        "TaskLease",
        "Tasks",
        "Worker",
        "connect",
    ]


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


FORKING = """
import asyncio, os, sys
import lowwater, lowwater.aio

lw = lowwater.aio.connect("localhost:1", timeout=0.1)

async def use():
    return lw.statistics()  # makes it belong here; no channel yet, whose threads could crash the child

async def in_child():
    try:
        await lw.get()
    except lowwater.Closed as error:
        assert "forked" in str(error) and "spawn" in str(error), error
        return 0
    return 1

with asyncio.Runner() as runner:
    runner.run(use())
    pid = os.fork()
    if not pid:
        with asyncio.Runner() as another:
            code = another.run(in_child())
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    runner.run(use())
    runner.run(lw.close())
"""


def test_a_client_belongs_to_its_process() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=60)


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


async def test_a_call_that_grpc_cannot_make_is_not_repeated() -> None:
    """Nothing would ever close such a channel but a mistake in this program."""
    async with lowwater.aio.connect("localhost:1", timeout=60.0) as lw:
        connection = lw._runtime().connection
        with connection.use("localhost:1"):
            await connection._channels.by_address["localhost:1"].channel.close()
        for make in (lw.get, lambda: lw.reset("c")):
            with pytest.raises(grpc.aio.UsageError, match="closed"):
                async with asyncio.timeout(30):
                    await make()


@pytest.mark.parametrize("error", [OSError("no key"), grpc.RpcError("no key")], ids=lambda error: type(error).__name__)
async def test_a_channel_that_cannot_be_made_is_said_at_once_and_by_what_waits_at_its_timeout(error: Exception) -> None:
    """A call has nothing to wait for. What follows streams goes on, as after any failure, and says what it is when the time is over."""

    def fail(_address: str) -> grpc.aio.Channel:
        raise error

    expected = lowwater.LowwaterError if isinstance(error, grpc.RpcError) else type(error)
    async with lowwater.aio.Client(lowwater.Settings("localhost:1", timeout=60.0), channel=fail) as lw:
        for make in (lw.get, lambda: lw.reset("c"), lambda: lw.register("c"), lw.worker("c", identity="i").claim):
            with pytest.raises(expected, match="no key"):
                async with asyncio.timeout(30):
                    await make()
        with pytest.raises(lowwater.Timeout, match=r"never heard of: .*no key"):
            await lw.wait("c", 5, timeout=0.5)


async def test_a_cancelled_task_is_cancelled_and_the_client_stays_usable() -> None:
    async with lowwater.aio.connect("localhost:1", timeout=60.0) as lw:
        reader = lw.inputs("c")
        for make in (lw.get, lambda: lw.reset("c"), lambda: lw.wait("c", 5), reader.read):
            task = asyncio.ensure_future(make())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(lowwater.Timeout):
            await lw.wait("c", 5, timeout=0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.read()


async def test_a_signal_wakes_all_that_wait_and_nobody_later() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(signal.wait(None)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.notify_all()
    await asyncio.gather(*waiting)
    await signal.wait(0.0)
    late = asyncio.create_task(signal.wait(None))
    await asyncio.sleep(0)
    assert not late.done()
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late


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
