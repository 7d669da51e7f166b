"""The log lines of servers: a line of text for people, or a JSON object a line for programs.

The code logs with the standard library, so that it can be embedded and tested without this module,
which makes a line of every record, of other libraries too. The default is text on a terminal and
JSON elsewhere, where mostly a collector reads it; the JSON has the sentence for people too.

In text, unprintable characters of a worker's name are escaped, and the lines of a traceback are
indented, so that no part of a record looks like another record.
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
    import argparse
    from collections.abc import MutableMapping

    Fields = MutableMapping[str, Any]

__all__ = ["FORMATS", "add_logging", "formatter", "set_up"]

FORMATS: Final = ("text", "json")

_QUIET: Final = ("aiohttp", "asyncio", "grpc", "opentelemetry", "redis")
"""Libraries whose records are only logged from a warning on."""


def add_logging(parse: argparse.ArgumentParser) -> None:
    """Add ``--log-format`` and ``--verbose``, which :func:`set_up` takes."""
    parse.add_argument(
        "--log-format",
        choices=FORMATS,
        help="how to log to standard error: a line of text, or of JSON with the fields of docs/reference/logs.md (default: text on a terminal, else json)",
    )
    parse.add_argument("--verbose", action="store_true", help="log more")


def set_up(chosen: str | None, *, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Make the process log to a stream, standard error by default.

    ``chosen`` is one of FORMATS; None: the format that fits the stream.
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
    """Return the formatter that makes a line of a record."""
    render: list[Any] = (
        [structlog.processors.format_exc_info, _redacted, structlog.processors.JSONRenderer()]
        if chosen == "json"
        else [structlog.processors.format_exc_info, _redacted, _text]
    )
    return structlog.stdlib.ProcessorFormatter(processors=[_fields, *render])


def _fields(logger: Any, method: str, entry: Fields) -> Fields:
    """Return the fields of a line, in order."""
    del logger, method
    record: logging.LogRecord = entry["_record"]
    extra: dict[str, Any] = dict(getattr(record, ATTRIBUTE, None) or {})
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    what = extra.pop("event", "log")
    fields: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": what, "message": entry["event"]}
    fields |= {**extra, "logger": record.name}
    if entry.get("exc_info"):
        fields["exc_info"] = entry["exc_info"]
    return fields


def _redacted(logger: Any, method: str, fields: Fields) -> Fields:
    del logger, method
    return {key: without_passwords(value) if isinstance(value, str) else value for key, value in fields.items()}


def _text(logger: Any, method: str, fields: Fields) -> str:
    del logger, method
    line = f"{fields['time']} {fields['level']:<7} {on_one_line(fields['message'])}"
    traceback = str(fields.get("exception", "")).splitlines()
    return "\n".join([line, *(f"  {on_one_line(traceback_line)}" for traceback_line in traceback)])
