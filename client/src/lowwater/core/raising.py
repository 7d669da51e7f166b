"""One error for several callers."""

from __future__ import annotations

from copy import copy
from typing import TypeVar

__all__ = ["own_copy"]

Error = TypeVar("Error", bound=Exception)


def own_copy(error: Error) -> Error:
    """Return a copy of an error for one of its callers, with its traceback and cause so far.

    Each raise adds to the traceback and the context of an error. If several callers raised the same
    object, the log of one would show the frames of the others. An error that cannot be copied,
    because its arguments differ from those of its class, is returned itself.
    """
    try:
        own = copy(error).with_traceback(error.__traceback__)
    except Exception:  # noqa: BLE001 - the error matters, and why it cannot be copied does not
        return error
    own.__cause__ = error.__cause__
    own.__suppress_context__ = error.__suppress_context__
    return own
