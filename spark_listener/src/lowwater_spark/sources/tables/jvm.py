"""Calls into the JVM of Spark's driver whose failures become an OSError in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["jvm_call"]


@contextlib.contextmanager
def jvm_call(whom: str, what: str) -> Iterator[None]:
    """Turn a failure in a ``with`` block into an OSError: what was asked of whom, and the cause."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
        return
    except Py4JJavaError as failure:
        thrown = failure.java_exception
        reason = f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}"
    except (Py4JError, PySparkException) as failure:
        reason = str(failure)
    msg = f"{whom} does not tell {what}: {reason}"
    raise OSError(msg)
