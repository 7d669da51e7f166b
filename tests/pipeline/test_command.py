"""The command's arguments, those that it refuses by name, and a window that a real authority moves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater_pipeline.command import parser
from lowwater_pipeline.dedup.arguments import settings_of
from lowwater_pipeline.dedup.errors import Refused
from lowwater_pipeline.dedup.senders import Low, Senders, low_of
from lowwater_pipeline.dedup.settings import Settings
from tests.kit.eventually import eventually
from tests.kit.kafka import Row
from tests.kit.times import SECOND
from tests.pipeline.case import Case
from tests.process.serving import Serving

PLAIN = {"brokers": "b:9092", "input": "in", "output": "out", "id": "key", "window": "1h", "state": "/s"}


def parsed(*more: str, **changed: str) -> Settings:
    options = [f"--{name}={value}" for name, value in (PLAIN | changed).items()]
    return settings_of(parser().parse_args(["dedup", *options, *more]))


def test_what_is_secret_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# of the job\nsasl.password = a=b \n\nsasl.username=me\n")
    clients = parsed(f"--kafka-file={file}", "--kafka=sasl.username=other").clients
    assert (clients["sasl.password"], clients["sasl.username"]) == ("a=b", "other")
    file.write_text("# of the job\nsasl.password: a secret\n")
    with pytest.raises(ValueError, match="line 2 is no setting; write NAME=VALUE") as refused:
        parsed(f"--kafka-file={file}")
    assert "a secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "changed", "why"),
    [
        (["--kafka=acks=1"], {}, "--kafka acks=1 is not yours to set: a row counts as written when every replica"),
        (["--kafka=bootstrap.servers=x"], {}, "says again what --brokers says"),
        (["--kafka=nonsense"], {}, "write NAME=VALUE"),
        (["--kafka=sasl.password=x"], {}, "the list of processes shows it to everybody"),
        ([], {"id": "timestamp"}, "a timestamp identifies no message"),
        ([], {"id": "header"}, "names no field of a message"),
        ([], {"window": "soon"}, "is no window"),
        (["--undecidable=side"], {}, "--undecidable belongs to --window watermark:NAME"),
        (["--event-time=json:at"], {"window": "watermark:a"}, "needs --undecidable TOPIC"),
        (["--unreadable=out"], {}, "the topics must differ"),
    ],
)
def test_what_cannot_be_is_refused_by_name(more: list[str], changed: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parsed(*more, **changed)


def test_a_partition_has_one_transactional_id_in_every_process() -> None:
    assert parsed(state="/elsewhere").transactional_id(1) == parsed().transactional_id(1)
    assert parsed(output="other").transactional_id(1) != parsed().transactional_id(1) != parsed().transactional_id(0)


def view(low: int, **more: Any) -> lowwater.WatermarkView:
    return lowwater.WatermarkView("a", registered=True, low=lowwater.Watermark(low), **more)


def test_a_watermark_that_nobody_promises_is_refused() -> None:
    with pytest.raises(Refused, match="the watermark of a is estimated"):
        low_of(["a"], {"a": view(7, estimated=True)})
    with Senders(["a"], lambda _: {"a": view(7, estimated=True)}) as senders:

        def refused() -> bool:
            try:
                senders.low()
            except Refused:
                return True
            return False

        eventually(refused, "the lanes are told")


def test_without_the_authority_the_watermark_stands() -> None:
    answers = [{"a": view(7)}]
    names = []

    def ask(name: str) -> dict[str, lowwater.WatermarkView]:
        names.append(name)
        if answers:
            return answers.pop()
        raise lowwater.Unavailable("nobody is there")

    with Senders(["a"], ask, every=0.01) as senders:
        eventually(lambda: len(names) > 3, "it is asked again")
        assert senders.low() == Low(7, (0,))


def test_a_killed_process_goes_on_and_a_real_authority_decides(make: Callable[..., Case], tmp_path: Path) -> None:
    case = make("watermark:orders", event_time="json:at", topics=["undecidable"])
    settings = case.settings

    def orders(*times: int) -> None:
        case.put(*(Row(json.dumps({"at": at * SECOND}).encode(), b"order-%d" % at) for at in times))

    command = [sys.executable, "-m", "lowwater_pipeline", "dedup", "--brokers", case.kafka.address, "--id", "key"]
    command += ["--input", settings.input, "--output", settings.output, "--undecidable", str(settings.undecidable)]
    command += ["--window", "watermark:orders", "--event-time", "json:at", "--state", str(settings.state)]
    command += ["--kafka", "session.timeout.ms=2000", "--kafka", "heartbeat.interval.ms=200"]
    log = tmp_path / "log"
    with Serving(tmp_path / "authority") as server, lowwater.connect(server.address) as lw, log.open("wb") as output:
        lw.register("orders")
        command += ["--address", server.address]
        process = subprocess.Popen(command, stderr=output)
        try:
            with lw.worker("orders") as worker:
                lease = worker.claim()
                orders(1, 2, 3, 2)
                eventually(lambda: case.ids() == ["order-1", "order-2", "order-3"], "each comes once")
                process.kill()
                process.wait()
                orders(3, 4)
                process = subprocess.Popen(command, stderr=output)
                eventually(lambda: len(case.ids()) >= 4, "another goes on")
                lease.advance(None, oldest=None, frontier=3 * SECOND)
                side = str(settings.undecidable)
                while not case.rows(side):
                    orders(1, 3)
                assert {row.key for row in case.rows(side)} == {b"order-1"}, "it is forgotten, and 3 is not"
                assert case.ids() == ["order-1", "order-2", "order-3", "order-4"]
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
