"""The arguments of the command, and what their texts mean."""

from __future__ import annotations

import argparse
import re
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from lowwater.watermark import Watermark

__all__ = ["parse_count", "parse_duration", "parse_key", "parse_time", "parser"]

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_EPILOG: Final = """\
examples:
  lowwater serve --data /var/lib/lowwater    run the authority
  lowwater status                            where everything stands
  lowwater why hourly                        who holds it, walking upstream
  lowwater history hourly --last 48          when each of the last hours was complete
  lowwater wait hourly --until 2013-01-09T14:00Z --timeout 1h
  lowwater complete hourly --until 2013-01-09T14:00Z && publish-report
  lowwater journal copy /var/lib/lowwater redis://redis:6379#orders
  lowwater shards                            who serves what
  lowwater drain lowwater-2:7420 && stop-it  have a shard hand over what it serves

The authority's address comes from --address, else from LOWWATER_ADDRESS, else
it is localhost:7420; of many shards name one or more, with commas between. An access token, if a proxy wants one, comes from
LOWWATER_TOKEN. Times are ISO 8601 with a time zone. "unknown" means that
nothing was promised yet, "finished" that nothing will ever come.
"""

_HISTORY: Final = """\
example:
  $ lowwater history hourly --since 2013-01-09T09:00Z
  hourly, in steps of 1 h, UTC
  STEPS                      COMPLETE AT           AFTER END
  2013-01-09 09:00 to 10:00  2013-01-09T10:00:35Z  35 s         #
  2013-01-09 10:00 to 13:00  2013-01-09T13:00:40Z  40 s to 2 h  ############
  2013-01-09 13:00 to 14:00  2013-01-09T14:00:38Z  38 s         #

Each hour counts as complete from the moment at which the authority published
a low watermark at its end or later; AFTER END is how long that was after its
end, for several hours at once of the newest and of the oldest of them. The
bar is as long as the oldest was late. The newest 10,000 lines are kept, also
those of lives that a reset has ended. The step is chosen at the registration,
with history_step.
"""

_SHARDS: Final = """\
example:
  $ lowwater shards
  SHARD            STATE     SILENT  SERVES
  lowwater-0:7420  serving   120 ms  2       flights, weather
  lowwater-1:7420  serving   80 ms   1       hourly
  lowwater-2:7420  draining  200 ms  1       daily
  hourly is pinned to lowwater-1:7420

SILENT is how long ago the store has heard of a shard. One that is silent for
longer than its --dead-after loses what it serves to the others, and is not
listed any more.
"""

_DRAIN: Final = """\
example:
  $ lowwater drain lowwater-2:7420
  lowwater-2:7420 still serves 2: daily, monthly
  lowwater-2:7420 serves nothing any more

Nothing stands still meanwhile: each computation is served where it was until
another shard has taken it over. To stop a shard with SIGTERM does the same; a
shard that is started again at that address does not drain.
"""

_PIN: Final = """\
examples:
  lowwater pin hourly lowwater-1:7420
  lowwater pin hourly --off

While no shard has that address any other serves the computation, and hands it
over when one has it again.
"""


def parse_time(text: str) -> Watermark:
    """Return the event time of an ISO 8601 text with a time zone, or of "finished".

    >>> parse_time("2013-01-09T14:00Z")
    Watermark(2013-01-09T14:00:00Z)
    """
    if text == "finished":
        return Watermark.FINISHED
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text!r} is no time; write it like 2013-01-09T14:00Z, or finished"
        raise argparse.ArgumentTypeError(msg) from None
    if moment.utcoffset() is None:
        example = f"{text}Z" if "T" in text or " " in text else f"{text}T00:00Z"
        msg = f"{text!r} has no time zone; write {example} for UTC"
        raise argparse.ArgumentTypeError(msg)
    return Watermark.of(moment)


def parse_duration(text: str) -> float:
    """Return the seconds of "90", "90s", "5m", "1.5h" or "2d".

    >>> parse_duration("1.5h")
    5400.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if found is None or found[2] not in _UNITS:
        msg = f"{text!r} is no duration; write it like 90s, 5m or 1h"
        raise argparse.ArgumentTypeError(msg)
    return float(found[1]) * _UNITS[found[2]]


def parse_key(text: str) -> bytes:
    """Return the key of a text, or of "0x" and hexadecimal digits.

    >>> parse_key("0x4041"), parse_key("N14228")
    (b'@A', b'N14228')
    """
    if not text.startswith("0x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        msg = f"{text!r} is no key; after 0x come pairs of hexadecimal digits"
        raise argparse.ArgumentTypeError(msg) from None


def parse_count(text: str) -> int:
    """Return a number of at least one.

    >>> parse_count("20")
    20
    """
    if not text.isdecimal() or int(text) < 1:
        msg = f"{text!r} is no number of lines; write 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    top = argparse.ArgumentParser(
        prog="lowwater",
        description="Low watermarks across jobs: what is complete, and who holds up the rest.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"lowwater {version('lowwater')}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("serve", help="run the authority (needs lowwater-authority)", add_help=False)
    commands.add_parser(
        "journal", help="copy a journal to another store, or list it (needs lowwater-authority)", add_help=False
    )

    status = _command(commands, "status", "where computations stand, as a table", reads=True)
    _names(status)

    watch = _command(
        commands, "watch", "follow watermarks: a live table on a terminal, else a line per change", reads=True
    )
    _names(watch)

    why = _command(commands, "why", "who holds a computation: one sentence per hop upstream", reads=True)
    _name(why)

    wait = _command(
        commands, "wait", "wait until everything before a time is here (exit 0; 1 when it is not in time)", reads=True
    )
    _name(wait)
    _until(wait)
    wait.add_argument(
        "--timeout", type=parse_duration, metavar="T", help="how long at most, like 90s or 1h (default: for ever)"
    )

    complete = _command(
        commands,
        "complete",
        "is everything before a time here? exits 0 yes, 1 not yet, 2 error, 3 nobody can tell",
        reads=True,
    )
    _name(complete)
    _until(complete)

    ranges = _command(commands, "ranges", "key ranges of a computation, furthest behind first", reads=True)
    _name(ranges)
    ranges.add_argument("--below", type=parse_time, metavar="TIME", help="only those below an event time")
    ranges.add_argument(
        "--limit", type=parse_count, default=20, metavar="N", help="at most so many (default: %(default)s)"
    )

    history = _command(
        commands,
        "history",
        "when each hour, or other step of event time, became complete",
        reads=True,
        example=_HISTORY,
    )
    _name(history)
    history.add_argument(
        "--since",
        type=parse_time,
        metavar="TIME",
        help="only steps that end after an event time, like 2013-01-09T14:00Z",
    )
    history.add_argument(
        "--last", type=parse_count, default=20, metavar="N", help="the newest so many lines (default: %(default)s)"
    )

    reset = _command(commands, "reset", "start a new life of a computation and of all that reads it", reads=False)
    _name(reset)
    reset.add_argument("--yes", action="store_true", help="do not ask")

    retire = _command(
        commands, "retire", "take a key range out of a computation: nobody waits for it any more", reads=False
    )
    _name(retire)
    retire.add_argument(
        "--start",
        type=parse_key,
        required=True,
        metavar="KEY",
        help="first key, as text or 0x..; '' for the first of all",
    )
    retire.add_argument(
        "--end", type=parse_key, required=True, metavar="KEY", help="first key after; '' for no upper bound"
    )
    retire.add_argument("--force", action="store_true", help="even ranges that a worker owns")

    _command(commands, "shards", "the shards of the deployment, and what each serves", reads=True, example=_SHARDS)

    drain = _command(
        commands,
        "drain",
        "have a shard hand over what it serves; exits 0 when it serves nothing any more, 1 when not in time",
        reads=False,
        example=_DRAIN,
    )
    _shard(drain)
    drain.add_argument("--cancel", action="store_true", help="take it back: the shard serves again")
    drain.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="until it serves nothing any more (default); else say what it serves now",
    )
    drain.add_argument(
        "--timeout", type=parse_duration, metavar="T", help="wait no longer, like 90s or 1h (default: for ever)"
    )

    pin = _command(commands, "pin", "have a shard serve a computation whenever it lives", reads=False, example=_PIN)
    _name(pin)
    where = pin.add_mutually_exclusive_group(required=True)
    _shard(where, nargs="?")
    where.add_argument("--off", action="store_true", help="take the pin back: any shard may serve it")
    return top


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],  # pyright: ignore[reportPrivateUsage]  # it has no other name
    name: str,
    what: str,
    *,
    reads: bool,
    example: str | None = None,
) -> argparse.ArgumentParser:
    made = commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter if example else argparse.HelpFormatter,
    )
    server = made.add_argument_group("the authority")
    server.add_argument(
        "--address",
        metavar="HOST:PORT,...",
        help="where it listens; of many shards one or more (default: LOWWATER_ADDRESS or localhost:7420)",
    )
    server.add_argument("--namespace", default="", metavar="NAME", help="put before names that have none")
    server.add_argument(
        "--answer-within",
        type=parse_duration,
        default=5.0,
        metavar="T",
        help="how long an answer may take (default: 5s)",
    )
    server.add_argument("--server-token", default="", metavar="TOKEN", help="the deployment that must answer")
    server.add_argument("--ca", type=Path, metavar="PEM", help="certificates to trust; turns TLS on")
    server.add_argument("--cert", type=Path, metavar="PEM", help="this client's certificates")
    server.add_argument("--key", type=Path, metavar="PEM", help="this client's key")
    if reads:
        made.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    return made


def _names(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", metavar="NAME", help="which computations (default: all)")


def _name(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the computation")


def _shard(command: argparse._ActionsContainer, nargs: str | None = None) -> None:  # pyright: ignore[reportPrivateUsage]  # as above
    command.add_argument("shard", nargs=nargs, metavar="SHARD", help="its HOST:PORT, as `lowwater shards` has it")


def _until(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--until",
        type=parse_time,
        required=True,
        metavar="TIME",
        help="an event time, exclusive, like 2013-01-09T14:00Z; or finished",
    )
