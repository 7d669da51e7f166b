"""Calls into the JVM of Spark's driver whose failures become an OSError in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["call_jvm"]

T = TypeVar("T")


def call_jvm(whom: str, what: str, ask: Callable[[], T]) -> T:
    """Return the result of ``ask``.

    Raises OSError that names what was asked of whom, and why there is no answer.
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
