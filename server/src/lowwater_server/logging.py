"""How ``lowwater serve`` writes its log: a line of text for people, or a JSON object a line for programs.

The code logs with the standard library, so that it can be embedded and tested without any of this; here every record, of other libraries
too, becomes a line. The default is text on a terminal and JSON elsewhere: what is not a terminal is read by a collector first, and the
sentence for people is in the JSON as well. A line of text is one, whatever a worker calls itself: what is not printable is escaped in it, and
the lines of a traceback are indented, so that none of them looks like a line of its own.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from lowwater.core.events import ATTRIBUTE
from lowwater.core.text import on_one_line, without_passwords

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    Fields = MutableMapping[str, Any]

__all__ = ["FORMATS", "formatter", "set_up"]

FORMATS: Final = ("text", "json")

_QUIET: Final = ("aiohttp", "asyncio", "grpc", "opentelemetry", "redis")
"""Libraries whose news below a warning are about themselves."""


def set_up(chosen: str | None, *, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Have the process log to a stream, standard error by default.

    ``chosen`` is one of FORMATS; None: what fits the stream.
    """
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter(chosen or ("text" if out.isatty() else "json")))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def formatter(chosen: str) -> logging.Formatter:
    """Return what makes a line of a record."""
    render: list[Any] = (
        [structlog.processors.format_exc_info, _redacted, structlog.processors.JSONRenderer()]
        if chosen == "json"
        else [structlog.processors.format_exc_info, _redacted, _text]
    )
    return structlog.stdlib.ProcessorFormatter(processors=[_fields, *render])


def _fields(logger: Any, method: str, given: Fields) -> Fields:
    """Return what a line has, in the order in which it has it."""
    del logger, method
    record: logging.LogRecord = given["_record"]
    told: dict[str, Any] = dict(getattr(record, ATTRIBUTE, None) or {})
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    what = told.pop("event", "log")
    made: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": what, "message": given["event"]}
    made |= {**told, "logger": record.name}
    if given.get("exc_info"):
        made["exc_info"] = given["exc_info"]
    return made


def _redacted(logger: Any, method: str, made: Fields) -> Fields:
    del logger, method
    return {key: without_passwords(value) if isinstance(value, str) else value for key, value in made.items()}


def _text(logger: Any, method: str, made: Fields) -> str:
    del logger, method
    line = f"{made['time']} {made['level']:<7} {on_one_line(made['message'])}"
    traceback = str(made.get("exception", "")).splitlines()
    return "\n".join([line, *(f"  {on_one_line(each)}" for each in traceback)])
