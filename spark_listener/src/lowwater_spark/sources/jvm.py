"""A question about a table that Spark's JVM answers: its answer, or an OSError in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["asked"]

T = TypeVar("T")


def asked(whom: str, what: str, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns.

    Raises OSError, naming whom was asked, what, and why there is no answer.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return ask()
    except Py4JJavaError as failure:
        thrown = failure.java_exception
        reason = f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}"
    except (Py4JError, PySparkException) as failure:
        reason = str(failure)
    msg = f"{whom} does not tell {what}: {reason}"
    raise OSError(msg)
