"""A staged incident: one executor of the flights pipeline is paused.

How long until ``why``, the page and an alert name it?

Every worker is a process (:mod:`examples.incident.worker`); the one of *enriched* for the carriers
from EV to UA is stopped with SIGSTOP in the middle of the run. Asked about *hourly*, two jobs
downstream, each of the three has to name that worker and that key range. The alert is one of those
the project ships, in a real Prometheus that scrapes the authority.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.sync_api import Page

import lowwater
from benchmarks.result import Result, Spread
from examples.flights.data import HOUR
from examples.flights.plain import CARRIER_BOUNDS, ENRICHED, FLIGHTS, HOURLY, INPUTS, ORIGIN_BOUNDS, SHARE
from examples.incident.worker import EXECUTORS, executor
from lowwater.views import RangeState
from tests.browser.chromium import chromium, watched
from tests.monitoring.prometheus_server import Prometheus
from tests.process.serving import serving

PAUSED: Final = 2
RANGES: Final = len(CARRIER_BOUNDS) - 1 + 2 * (len(ORIGIN_BOUNDS) - 1)
LABEL: Final = f"[{CARRIER_BOUNDS[PAUSED].decode()}, {CARRIER_BOUNDS[PAUSED + 1].decode()})"
ALERT: Final = "LowwaterHolderSilent"

HISTORY_HOURS: Final = 9
"""Age of the first replayed event, hours."""
HEALTHY_HOURS: Final = 1
"""Event time that every step must have reached before the pause, hours."""
SILENT_SECONDS: Final = 15.0
"""Without a report for so long, a worker counts as silent for ``why`` and the page."""
ALERT_SECONDS: Final = 90.0
"""Delay of the alert: 30 s of silence, and a minute that it has to last."""
PATIENCE: Final = 300.0
LOOK: Final = 0.1

ROUNDS: Final = 3
SCRAPED_EVERY: Final = 1
"""Seconds; rules are evaluated as often."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Findings of one round, in seconds."""

    why_named: float
    """Time from the pause until ``lowwater why`` named worker and range."""
    why_answer: float
    """Duration of such a call of ``lowwater why``, start of the process included."""
    page_named: float
    """Time from the pause until a page that was open named them."""
    page_opened: float
    """Time from opening such a page anew until it named them."""
    alert_fired: float
    """Time from the pause until the alert fired with them."""
    recovered: float
    """Time from the end of the pause until *enriched* was where *flights* was at that end."""
    paused: float
    """Duration of the executor's pause."""
    sentences: Mapping[str, str]
    """Sentences that were shown, by figure."""


class Pipeline:
    """The workers as processes, over an authority. Use it as a context manager."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        self._start = (time.time_ns() // 1000 // HOUR - HISTORY_HOURS) * HOUR
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._client = lowwater.connect(address)

    def __enter__(self) -> Pipeline:
        self._folder.mkdir()
        for name, inputs in INPUTS.items():
            self._client.register(name, inputs=inputs, heuristics=(SHARE,))
        # The last job claims first: nobody reports before everybody holds.
        self._run(HOURLY, HOURLY)
        for number in range(EXECUTORS):
            self._run(executor(number), ENRICHED, number)
        self._await(
            lambda: all(self._owned(name) for name in (HOURLY, ENRICHED)), "the workers have claimed their ranges"
        )
        self._run(FLIGHTS, FLIGHTS)
        healthy = self._start + HEALTHY_HOURS * HOUR
        self._await(lambda: self._client.get(HOURLY)[HOURLY].low.micros >= healthy, "the pipeline runs")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._client.close()

    def pause(self) -> None:
        """Stop the executor in the middle of what it does."""
        os.kill(self._running[executor(PAUSED)].pid, signal.SIGSTOP)

    def resume(self) -> float:
        """Let the executor go on; return the seconds until *enriched* is where *flights* is now."""
        began = time.monotonic()
        promised = self._client.get(FLIGHTS)[FLIGHTS].low
        os.kill(self._running[executor(PAUSED)].pid, signal.SIGCONT)
        self._await(lambda: self._client.get(ENRICHED)[ENRICHED].low >= promised, "enriched catches up")
        return time.monotonic() - began

    def _run(self, name: str, role: str, number: int = 0) -> None:
        arguments = [str(self._folder), self._address, role, str(number), str(self._start)]
        self._running[name] = subprocess.Popen([sys.executable, "-m", "examples.incident.worker", *arguments])

    def _owned(self, name: str) -> bool:
        return all(key_range.state is RangeState.OWNED for key_range in self._client.ranges(name))

    def _await(self, done: Callable[[], bool], what: str) -> None:
        deadline, pause = time.monotonic() + PATIENCE, threading.Event()
        while not done():
            if time.monotonic() > deadline:
                msg = f"waited {PATIENCE:g} s in vain until {what}"
                raise AssertionError(msg)
            for name, process in self._running.items():
                assert process.poll() is None, f"{name} has ended"
            pause.wait(LOOK)


def names_it(text: str) -> bool:
    """Return whether a text names the worker and the key range."""
    return executor(PAUSED) in text and LABEL in text


def ask_why(address: str, paused: float) -> tuple[float, float, str]:
    """Run ``lowwater why`` until its answer names worker and range.

    Returns the seconds since the pause, those of the answer, and its sentence.
    """
    while True:
        began = time.monotonic()
        answer = json.loads(_lowwater("why", HOURLY, "--json", "--address", address))
        ended = time.monotonic()
        if names_it(answer["sentence"]):
            return ended - paused, ended - began, answer["sentence"]
        assert ended - paused < PATIENCE, answer


def _lowwater(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "lowwater.cli", *arguments], check=True, capture_output=True, text=True
    ).stdout


def fired(prometheus: Prometheus, paused: float) -> tuple[float, str]:
    """Wait for the alert; returns the seconds since the pause, and what it says."""
    pause = threading.Event()
    while True:
        pending = prometheus.alerts(ALERT)
        for alert in pending:
            text = alert["annotations"]["description"]
            if alert["state"] == "firing" and names_it(text):
                return time.monotonic() - paused, text
        assert time.monotonic() - paused < PATIENCE, pending
        pause.wait(LOOK)


def wait_for_headline(page: Page) -> str:
    """Wait until the sentence on top of a page names them; returns it."""
    page.wait_for_function(
        "([worker, range]) => [worker, range].every((each) => document.querySelector('h1')?.innerText.includes(each))",
        arg=[executor(PAUSED), LABEL],
        timeout=PATIENCE * 1000,
    )
    return page.locator("h1").inner_text()


def stage(folder: Path) -> Incident:
    """Stage it once."""
    with contextlib.ExitStack() as stack:
        folder.mkdir()
        authority = stack.enter_context(serving(folder, page="127.0.0.1:0"))
        prometheus = stack.enter_context(
            Prometheus(folder / "prometheus", {"lowwater": [urlsplit(authority.metrics).netloc]})
        )
        pipeline = stack.enter_context(Pipeline(folder / "records", authority.address))
        browser = stack.enter_context(chromium())
        page = stack.enter_context(watched(browser, authority.page)).open()
        pool = stack.enter_context(ThreadPoolExecutor(2))
        began = time.monotonic()
        pipeline.pause()
        why = pool.submit(ask_why, authority.address, began)
        alert = pool.submit(fired, prometheus, began)
        headline = wait_for_headline(page)
        page_named = time.monotonic() - began
        why_named, why_answer, sentence = why.result()
        opened = time.monotonic()
        wait_for_headline(stack.enter_context(watched(browser, authority.page)).open())
        page_opened = time.monotonic() - opened
        alert_fired, alert_text = alert.result()
        paused = time.monotonic() - began
        recovered = pipeline.resume()
    sentences = {"why_named": sentence, "page_named": headline, "alert_fired": alert_text}
    return Incident(why_named, why_answer, page_named, page_opened, alert_fired, recovered, paused, sentences)


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Stage the incident three times, once when quick.

    Raises AssertionError when something never named it.
    """
    rounds = [stage(folder / str(number)) for number in range(1 if quick else ROUNDS)]

    def line(metric: str, baseline: str, least: float | None, figure: Callable[[Incident], float]) -> Result:
        facts: dict[str, object] = {
            "ranges": RANGES,
            "worker": executor(PAUSED),
            "key_range": LABEL,
            "scraped_every": SCRAPED_EVERY,
        }
        facts |= {"said": rounds[-1].sentences[metric]} if metric in rounds[-1].sentences else {}
        against = [incident.paused if least is None else least for incident in rounds]
        return Result(
            "incident", metric, Spread(tuple(map(figure, rounds))), "s", baseline, Spread(tuple(against)), facts
        )

    return [
        line("why_answer", "target", 2.0, lambda incident: incident.why_answer),
        line("page_opened", "target", 5.0, lambda incident: incident.page_opened),
        line("why_named", "silence that counts", SILENT_SECONDS, lambda incident: incident.why_named),
        line("page_named", "silence that counts", SILENT_SECONDS, lambda incident: incident.page_named),
        line("alert_fired", "what its rule asks for", ALERT_SECONDS, lambda incident: incident.alert_fired),
        line("recovered", "the pause", None, lambda incident: incident.recovered),
    ]
