"""``make demo-dedup``: a deduplicator drops the copies in a topic, although it is killed.

A broker is started. A sender writes messages and is not sure about some of them: it sends those
again, as at-least-once senders do. The job is the command ``lowwater-pipeline dedup`` in a process
of its own. It gets SIGKILL, is started again, and once more it has lost its memory, too. At the end
the output is read, and counted.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from examples.dedup import picture
from examples.session import clear
from lowwater_pipeline.dedup.ids import Partitioner
from tests.kit.kafka import Kafka, Row
from tests.kit.ports import free_port

PARTITIONS: Final = 2
INPUT, OUTPUT = "orders", "orders-once"
BURST: Final = 150
UNSURE: Final = 0.25
"""The share of messages whose acknowledgement is lost: they are sent again, a burst or two later.
"""
WINDOW: Final = 1_500
"""Rows of each output partition. A copy comes within some hundreds."""
KILLS: Final = 4
LOSES_MEMORY: Final = 3
"""At this one its disk is lost as well."""
PROGRESS: Final = 2_400
"""Messages that each process passes on before it is killed, and the last one before the sender
ends."""
PATIENCE: Final = 300.0
"""Seconds after which the demo gives up. On quiet cores it takes about fifty."""
EVERY: Final = 0.25


class Sample(NamedTuple):
    """Figures of the job at one moment."""

    second: float
    admitted: float
    duplicates: float
    ids: float
    lag: float


@dataclass(slots=True)
class Sender:
    """Sends in bursts, on a thread; what it is not sure about comes again."""

    kafka: Kafka
    sent: Counter[bytes] = field(default_factory=Counter)
    enough: threading.Event = field(default_factory=threading.Event)
    """Set: it sends no new ones."""
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send until it is enough."""
        chance, number = random.Random(7), 0
        again: list[bytes] = []
        while again or not self.enough.is_set():
            more = 0 if self.enough.is_set() else BURST
            fresh = [b"order-%06d" % (number + index) for index in range(more)]
            number += more
            burst = [*fresh, *again]
            again = [order for order in fresh if chance.random() < UNSURE]
            places = Partitioner.MURMUR2.partitions(burst, PARTITIONS)
            self.kafka.put(INPUT, [Row(b"{}", order, at) for order, at in zip(burst, places, strict=True)])
            self.sent.update(burst)
        self.done.set()


class Job:
    """The command, in a process that is killed and started again."""

    def __init__(self, kafka: Kafka, out: Path) -> None:
        self.state, self._log, self._port = out / "state", out / "job.log", free_port()
        self._command = [sys.executable, "-m", "lowwater_pipeline", "dedup", "--brokers", kafka.address]
        self._command += ["--input", INPUT, "--output", OUTPUT, "--id", "key", "--window", str(WINDOW)]
        self._command += ["--state", str(self.state), "--http", f"127.0.0.1:{self._port}"]
        # So that the group notices soon that a member is gone.
        self._command += ["--kafka", "session.timeout.ms=1500", "--kafka", "heartbeat.interval.ms=300"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, or go on."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def check(self) -> None:
        """Raises SystemExit when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise SystemExit(f"the job has ended by itself:\n{self._log.read_text()}")

    def figures(self) -> dict[str, float] | None:
        """Return the sums over the partitions; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=2) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("lowwater_dedup_")
                sums[name] = sums.get(name, 0.0) + sample.value
        return sums


def main(arguments: Sequence[str] | None = None) -> int:
    """Pass messages with copies through a job that is killed; count what comes out."""
    parser = argparse.ArgumentParser(prog="python -m examples.dedup", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo-dedup"), help="picture, log and files of the run")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "demo-dedup", parser)
    say("starting a broker of Kafka ...")
    with Kafka(out / "kafka", settings={"group.min.session.timeout.ms": 1000}) as kafka:
        for topic in (INPUT, OUTPUT):
            kafka.create(topic, PARTITIONS)
        sender, job = Sender(kafka), Job(kafka, out)
        with sending(sender):
            samples, kills = watch(kafka, sender, job)
        rows = kafka.rows(OUTPUT)
    drawing = out / "dedup.png"
    picture.draw(samples, kills, drawing)
    return report(sender, [row.key or b"" for row in rows], len(kills), drawing)


def say(text: str) -> None:
    """Tell the user."""
    print(text, flush=True)


@contextlib.contextmanager
def sending(sender: Sender) -> Iterator[None]:
    """The sender, on a thread."""
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        yield
    finally:
        sender.enough.set()
        thread.join()


def watch(kafka: Kafka, sender: Sender, job: Job) -> tuple[list[Sample], list[float]]:
    """Run the job, kill it on time, and return its figures; stop when it has passed on all."""
    began = time.monotonic()
    kills, samples = list[float](), list[Sample]()
    before: Counter[str] = Counter()
    last: dict[str, float] = {}
    say(f"the job passes {INPUT} on to {OUTPUT}; {UNSURE:.0%} of the messages are sent twice\n")
    say("second   admitted   duplicates   remembered ids   unread")
    shown = -5.0
    job.start()
    try:
        while True:
            second = time.monotonic() - began
            figures = job.figures()
            if figures is not None and figures.get("running") == PARTITIONS:
                last = figures
                sample = Sample(
                    second,
                    before["admitted"] + figures["admitted_messages_total"],
                    before["duplicates"] + figures["duplicate_messages_total"],
                    figures.get("remembered_ids", 0),
                    figures.get("lag_messages", 0),
                )
                samples.append(sample)
                if second >= shown + 4:
                    shown = second
                    say(
                        f"{second:6.0f} {sample.admitted:10,.0f} {sample.duplicates:12,.0f} {sample.ids:16,.0f} {sample.lag:8,.0f}"
                    )
            progress = last.get("admitted_messages_total", 0) >= PROGRESS
            if progress and len(kills) == KILLS:
                sender.enough.set()
            elif progress:
                job.kill()
                kills.append(second)
                before.update(admitted=int(last.get("admitted_messages_total", 0)))
                before.update(duplicates=int(last.get("duplicate_messages_total", 0)))
                last = {}
                lost = len(kills) == LOSES_MEMORY
                if lost:
                    shutil.rmtree(job.state, ignore_errors=True)
                say(f"{second:6.0f} kill -9{', and its disk is lost: the output is read again' if lost else ''}")
                job.start()
            job.check()
            read = sender.done.is_set() and last.get("lag_messages") == 0
            if read and len(kafka.rows(OUTPUT)) >= len(sender.sent):
                job.end()
                return samples, kills
            if second > PATIENCE:
                raise SystemExit(f"not done after {PATIENCE:.0f} s")
            time.sleep(EVERY)
    finally:
        job.kill()


def report(sender: Sender, keys: Sequence[bytes], kills: int, drawing: Path) -> int:
    """Say what came out, exactly; return the exit code."""
    came = Counter(keys)
    lost = len(sender.sent.keys() - came.keys())
    doubled = sum(count - 1 for count in came.values())
    sent = sum(sender.sent.values())
    lines = [
        ("messages sent", sent),
        ("of these copies", sent - len(sender.sent)),
        ("ids", len(sender.sent)),
        ("kill -9", kills),
        ("rows that came out", len(keys)),
        ("lost", lost),
        ("doubled", doubled),
    ]
    say("")
    for name, value in lines:
        say(f"{name:20} {value:10,}")
    say(f"\npicture: {drawing}")
    if lost or doubled:
        say("WRONG: each message has to come out once")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
