"""The metrics of an authority, as Prometheus takes them."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.kit.program import run_program
from tests.process.serving import Serving


class Scrape:
    def __init__(self, server: Serving) -> None:
        with urllib.request.urlopen(server.metrics, timeout=20) as page:
            self.text: str = page.read().decode()
        self.families = list(text_string_to_metric_families(self.text))
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((f"lowwater_{name}", frozenset(labels.items())))

    def all(self, name: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(value for _, value in sorted(labels)): value
            for (metric, labels), value in self.samples.items()
            if metric == f"lowwater_{name}"
        }

    def linted(self) -> str:
        """Return promtool's complaints about it."""
        done = run_program(["promtool", "check", "metrics"], input=self.text, timeout=60)
        return done.stdout + done.stderr
