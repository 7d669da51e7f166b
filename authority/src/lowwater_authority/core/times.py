"""Event times: signed 64-bit microseconds since the Unix epoch, UTC."""

from __future__ import annotations

from typing import Final

MIN: Final = -(2**63)
"""Unknown."""

MAX: Final = 2**63 - 1
"""Finished."""

DAY: Final = 24 * 60 * 60 * 1_000_000
"""Microseconds in a day, the default of ``max_skew``."""

ANY_SKEW: Final = 2**62 - 1
"""Greatest ``max_skew`` in microseconds, for values that another authority has compared with its
clock."""
