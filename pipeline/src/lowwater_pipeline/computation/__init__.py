"""Computations on Spark: code for one key at a time, with state and timers (MillWheel 4 and 5).

docs/concepts/computations.md has the guarantees. :mod:`~lowwater_pipeline.computation.turn` has the
order of records and timers, :mod:`~lowwater_pipeline.computation.keys` the storage of keys.
"""

from lowwater_pipeline.computation.codec import Codec, StateCodec
from lowwater_pipeline.computation.computation import (
    DAY,
    END,
    HOUR,
    MINUTE,
    SECOND,
    Computation,
    Input,
    Output,
    Record,
    Strong,
    Timer,
    Weak,
    floor,
)
from lowwater_pipeline.computation.once import copies_of
from lowwater_pipeline.computation.stage import start
from lowwater_pipeline.computation.turn import Context

__all__ = [
    "DAY",
    "END",
    "HOUR",
    "MINUTE",
    "SECOND",
    "Codec",
    "Computation",
    "Context",
    "Input",
    "Output",
    "Record",
    "StateCodec",
    "Strong",
    "Timer",
    "Weak",
    "copies_of",
    "floor",
    "start",
]
