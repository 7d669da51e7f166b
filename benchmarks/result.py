"""Results of a benchmark, one JSON object a line."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure per round: the rounds of a benchmark and of its baselines take turns."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.rounds)

    def __add__(self, other: Spread) -> Spread:
        """Return the sums, round by round."""
        return Spread(tuple(a + b for a, b in zip(self.rounds, other.rounds, strict=True)))

    @classmethod
    def percentile(cls, rounds: Sequence[Sequence[float]], percent: float) -> Spread:
        """Return a percentile of each round's samples."""
        return cls(tuple(float(np.percentile(samples, percent)) for samples in rounds))


@dataclass(frozen=True, slots=True)
class Result:
    """A line: what was measured, against what.

    ``ratio`` is value / baseline_value, in the same unit.
    """

    benchmark: str
    metric: str
    value: Spread
    unit: str
    baseline: str | None = None
    baseline_value: Spread | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    """Sizes of the measurement, and the reason when there is no baseline."""

    def line(self, machine: Mapping[str, object]) -> dict[str, object]:
        """Return the JSON object."""
        ours, theirs = self.value, self.baseline_value
        fields_: dict[str, object] = {
            "benchmark": self.benchmark,
            "metric": self.metric,
            "value": _short(ours.median),
            "unit": self.unit,
            "baseline": self.baseline,
            "baseline_value": None if theirs is None else _short(theirs.median),
            "ratio": None if theirs is None else _short(ours.median / theirs.median),
            "rounds": len(ours.rounds),
            "low": _short(min(ours.rounds)),
            "high": _short(max(ours.rounds)),
        }
        if theirs is not None:
            fields_ |= {"baseline_low": _short(min(theirs.rounds)), "baseline_high": _short(max(theirs.rounds))}
        return fields_ | dict(self.facts) | dict(machine)

    def text(self) -> str:
        """Return the line for people."""
        own = f"{self.benchmark:8} {self.metric:36} {_short(self.value.median):>14,} {self.unit}"
        if self.baseline is None or self.baseline_value is None:
            return own if self.baseline is None else f"{own}; no baseline: {self.facts.get('reason')}"
        theirs = self.baseline_value.median
        return f"{own} = {self.value.median / theirs:.3g} x {self.baseline} ({_short(theirs):,})"


def write(result: Result, machine: Mapping[str, object], *, as_json: bool) -> None:
    """Print a result."""
    print(json.dumps(result.line(machine)) if as_json else result.text(), flush=True)


def machine() -> dict[str, object]:
    """Return what the figures depend on.

    The load is what others did before: more than a little spoils everything.
    """
    return {
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "protobuf": version("protobuf"),
        "numpy": version("numpy"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _short(value: float) -> float:
    """Five digits, which is more than the figures are worth."""
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded
