"""The authority with other bounds of admission than its own, and what it says of them."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

IMPORT: Final = "from lowwater_authority.engine import admission"
SERVE: Final = "from lowwater_authority.serve import main; raise SystemExit(main())"

NO_ADMISSION: Final = {"STREAMS": 1 << 30, "STARTING": 1 << 30}
"""Bounds that are out of reach."""


def program(bounds: Mapping[str, int]) -> list[str]:
    """Return the command of ``lowwater serve`` with other bounds of admission.

    The bounds are those of :mod:`lowwater_authority.engine.admission`. The caller appends its
    flags.
    """
    other = "".join(f"admission.{name} = {bound}; " for name, bound in bounds.items())
    return [sys.executable, "-c", f"{IMPORT}; {other}{SERVE}"]


def gate(metrics: str, figure: str) -> float:
    """Return what /metrics says of the gate through which report streams start.

    Raises RuntimeError when it says nothing.
    """
    with urllib.request.urlopen(metrics) as response:
        text = response.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"lowwater_admission_{figure}" and "starting_report" in sample.labels["gate"]:
                return float(sample.value)
    msg = f"the authority has no figure {figure}"
    raise RuntimeError(msg)
