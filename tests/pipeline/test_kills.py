"""Killed at every step, and anywhere: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lowwater_pipeline.dedup.lane import STEPS
from lowwater_pipeline.dedup.topics import bounds
from tests.kit.eventually import eventually
from tests.pipeline.case import EXACT, Case, Killed, at, by_partition

OPENING = STEPS[: STEPS.index("read")]
A_BATCH = 10
AHEAD = 8 * A_BATCH


def test_killed_at_every_step_nothing_is_lost_or_doubled(make: Callable[..., Case]) -> None:
    """One lane after the other, each at the next step; now and then the machine is lost with the memory."""
    case, chance = make("100000"), random.Random(1)
    numbers = iter(range(10**9))
    position = 0
    for step in STEPS:
        if len(case.sent) - position < AHEAD:
            fresh = [f"id-{next(numbers)}" for _ in range(3 * AHEAD)]
            copies = [chance.choice(fresh) for _ in range(AHEAD)]
            case.send(*chance.sample(fresh + copies, len(fresh) + len(copies)))
        if chance.random() < 0.1:
            shutil.rmtree(case.settings.state, ignore_errors=True)
        number = 1 if step in OPENING else chance.randint(1, 3)
        with pytest.raises(Killed):
            case.drain(case.lane(probe=at(step, number), most=A_BATCH))
        position = max((lane.position for lane in case.open_lanes()), default=position)
        case.bury_all()
    case.drain(case.lane())
    assert case.outcome() == EXACT


@contextmanager
def sender(case: Case, partitions: int, pace: Callable[[], bool]) -> Iterator[None]:
    """Sends on a thread, bursts with copies, one more whenever it is asked for."""
    chance = random.Random(3)
    stopping = threading.Event()

    def send() -> None:
        number = 0
        sent: list[bytes] = []
        while not stopping.is_set():
            if not pace():
                stopping.wait(0.01)
                continue
            fresh = [b"id-%d" % (number + each) for each in range(60)]
            number += len(fresh)
            sent += fresh
            case.put(*by_partition([*fresh, *chance.sample(sent, 30)], partitions))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@contextmanager
def job(case: Case, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command, as a user runs it."""
    settings = case.settings
    told = ["--brokers", case.kafka.address, "--input", settings.input, "--output", settings.output, "--id", "key"]
    told += ["--group", settings.group, "--window", "1000000", "--state", str(settings.state)]
    told += ["--kafka", "session.timeout.ms=6000", "--kafka", "heartbeat.interval.ms=500"]
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", "lowwater_pipeline", "dedup", *told], stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def written(case: Case, partitions: int) -> int:
    """How long the output is."""
    with case.asking() as asked:
        return sum(bounds(asked, case.settings.output, each, 60)[1] for each in range(partitions))


def alive(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.poll() is None, log.read_text()


def test_killed_by_the_system_nothing_is_lost_or_doubled(make: Callable[..., Case], tmp_path: Path) -> None:
    """A process works until the output has grown, is killed in the middle of whatever it does then, and another goes on."""
    partitions, log = 2, tmp_path / "log"
    case = make(partitions=partitions)
    sending = threading.Event()
    with sender(case, partitions, sending.is_set), job(case, log) as process:
        sending.set()
        eventually(lambda: written(case, partitions) >= 100, "the output grows", check=lambda: alive(process, log))
        process.kill()
    with job(case, log) as process:
        wanted = {row.key for row in case.sent}
        eventually(lambda: len(case.rows()) >= len(wanted), "everything has come", check=lambda: alive(process, log))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    assert case.outcome() == EXACT
