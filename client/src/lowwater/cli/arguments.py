"""The arguments of the command, and how they are parsed."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from lowwater import errors
from lowwater.cli.examples import EXAMPLES, TOP
from lowwater.cli.failures import fail
from lowwater.core.text import did_you_mean
from lowwater.layout import SLOTS
from lowwater.watermark import Watermark, parse_iso

__all__ = [
    "SHELLS",
    "CommandParser",
    "add_answer_within",
    "add_command",
    "add_tls_files",
    "parse_count",
    "parse_duration",
    "parse_key",
    "parse_time",
    "parser",
]

SHELLS: Final = ("bash", "zsh", "fish")
"""Shells with a completion script beside this module, made by scripts/generate_cli.py."""

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


_MEANT: Final = {"get": "status", "list": "status"}
"""Commands of other programs, and what does the same here."""

_GROUPS: Final = {
    "everyday": (
        "demo",
        "status",
        "watch",
        "why",
        "promise",
        "wait",
        "complete",
        "publish",
        "ranges",
        "history",
        "advise",
        "tasks",
        "completion",
    ),
    "operate": (
        *("serve", "journal", "access", "set-inputs", "reset", "drop", "retire"),
        *("hot", "split", "merge", "move"),
    ),
    "cluster": ("shards", "drain", "pin", "slices", "global", "region", "references"),
}
"""Commands by the heading under which ``lowwater --help`` lists them."""


class _Grouped(argparse.RawDescriptionHelpFormatter):
    """Help with a heading above the first command of each group."""

    def _format_action(self, action: argparse.Action) -> str:
        heading = next((f"\n  {group}:\n" for group, names in _GROUPS.items() if names[0] == action.dest), "")
        return heading + super()._format_action(action)


class CommandParser(argparse.ArgumentParser):
    """Parser of a command and its subcommands: options in full only, examples as they were written.

    An abbreviation of one option could fit two options in the next release.
    """

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)
        self._as_json = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # overloads
        """Parse as argparse does, and note whether an error is to be JSON."""
        self._as_json = "--json" in (sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check as argparse does; the error for an unknown command offers similar commands only."""
        commands: Any = action.choices
        if action.dest == "command" and value not in commands:
            fix = did_you_mean(_MEANT.get(str(value), str(value)), tuple(commands), "") or f"see {self.prog} --help"
            raise argparse.ArgumentError(None, f"there is no command {value!r}: {fix}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """End with an error about the arguments."""
        if self._as_json:
            fix = f"see {self.prog} --help"
            self.exit(fail("", errors.InvalidArgument(message, metadata={"fix": fix}), as_json=True))
        super().error(message)


def parse_time(text: str) -> Watermark:
    """Return the event time of an ISO 8601 text with a time zone, or of "finished".

    >>> parse_time("2013-01-09T14:00Z")
    Watermark(2013-01-09T14:00:00Z)
    """
    return Watermark.of(parse_start(text))


def parse_start(text: str) -> datetime | Watermark:
    """Return the same with the zone of the text, by which intervals of a day are checked."""
    if text == "finished":
        return Watermark.FINISHED
    try:
        return parse_iso(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_duration(text: str) -> float:
    """Return the seconds of "90", "90s", "5m", "1.5h" or "2d".

    >>> parse_duration("1.5h")
    5400.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write it like 90s, 5m or 1h")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > timedelta.max.total_seconds():
        raise argparse.ArgumentTypeError(f"{match[1][:9]}... is too long for a duration; write it like 90s, 5m or 1h")
    return seconds


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
        raise argparse.ArgumentTypeError(f"{text!r} is no key; after 0x come pairs of hexadecimal digits") from None


def parse_slot(text: str) -> int:
    """Return the slot of the key space of "0x" and hexadecimal digits.

    >>> parse_slot("0x4000")
    16384
    """
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text):
        msg = f"{text!r} is no place in the key space; write it like 0x4000, as `lowwater hot` does"
        raise argparse.ArgumentTypeError(msg)
    return int(text, 16)


def parse_parts(text: str) -> int:
    """Return a number of parts, at least two.

    >>> parse_parts("4")
    4
    """
    if not text.isdecimal() or not 2 <= int(text) <= SLOTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of parts; write 2 or more")
    return int(text)


def parse_task(text: str) -> int:
    """Return the number of a task, from 1; 0 for "any".

    >>> parse_task("any"), parse_task("2")
    (0, 2)
    """
    if text == "any":
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= SLOTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no task; count from 1, or write any")
    return int(text)


def parse_count(text: str) -> int:
    """Return a number of at least one.

    >>> parse_count("20")
    20
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines; write 1 or more")
    return int(text)


def parser() -> CommandParser:
    """Return the parser of the whole command."""
    top = CommandParser(
        prog="lowwater",
        description="Low watermarks across jobs: what is complete, and who holds up the rest.",
        epilog=TOP,
        formatter_class=_Grouped,
    )
    top.add_argument("--version", action="version", version=f"lowwater {version('lowwater')}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, what in (
        ("serve", "run the authority (needs lowwater-authority)"),
        ("demo", "a small living pipeline to ask, without Spark (needs lowwater-authority)"),
        ("journal", "copy a journal to another store, or list it (needs lowwater-authority)"),
        ("access", "make tokens, and explain what an access file allows (needs lowwater-authority)"),
        ("global", "run the global authority of several regions (needs lowwater-regions)"),
        ("region", "run the agent of a region (needs lowwater-regions)"),
        ("references", "which region makes what, and decide about it (needs lowwater-regions)"),
    ):
        commands.add_parser(name, help=what, add_help=False)

    status = _command(commands, "status", "the watermarks of computations, as a table")
    _names(status)
    status.add_argument("--team", metavar="TEAM", help="only those with a promise of this team")
    status.add_argument("--owner", metavar="OWNER", help="only those with a promise of this owner")
    status.add_argument(
        "--names", dest="names_only", action="store_true", help="only the names of registered computations, a line each"
    )
    _slices(status)

    watch = _command(commands, "watch", "follow watermarks: a live table on a terminal, else a line per change")
    _names(watch)
    _unregistered(watch)
    _slices(watch)

    _named(commands, "why", "who holds a computation: the root cause in a sentence, then one per hop upstream")

    promise = _named(commands, "promise", "promise for a source that nothing older than a time will come")
    _until(promise)
    promise.add_argument(
        "--after",
        type=parse_time,
        metavar="TIME",
        help="only if everything before this time is promised already; exits 1 otherwise",
    )
    promise.add_argument(
        "--take-over",
        action="store_true",
        help="even if another program has reported the source: it has no work left, and will not run again",
    )

    wait = _named(commands, "wait", "wait until everything before a time is here (exits 0; 1 at the end of --timeout)")
    _until(wait)
    _unregistered(wait)
    _timeout(wait)

    complete = _named(
        commands,
        "complete",
        "is everything before a time, or of an interval, here? exits 0 yes, 1 not yet, 2 error, 3 no answer",
    )
    ends = complete.add_mutually_exclusive_group(required=True)
    _until(ends, required=False)
    ends.add_argument(
        "--to", type=parse_time, metavar="TIME", help="the end of an interval, exclusive; with --from, its start"
    )
    complete.add_argument(
        "--from",
        dest="start",
        type=parse_time,
        metavar="TIME",
        help="the start of the interval; the answer lists what is missing, by computation and key range",
    )

    publish = _named(
        commands, "publish", "tell others of each complete interval, in order, by a marker file or a webhook"
    )
    publish.add_argument(
        "--every", type=parse_duration, required=True, metavar="T", help="the length of the intervals, like 1h or 1d"
    )
    publish.add_argument(
        "--from", dest="start", type=parse_start, required=True, metavar="TIME", help="where the first interval begins"
    )
    publish.add_argument(
        "--until",
        type=parse_time,
        default=Watermark.FINISHED,
        metavar="TIME",
        help="the end of the last interval, after which the command exits (default: go on for ever)",
    )
    publish.add_argument(
        "--to",
        metavar="TARGET",
        help="file:/PATH, in which %%Y, %%m, %%d, %%H and %%M are the start of the interval; or https://..., with a bearer token from LOWWATER_PUBLISH_TOKEN, and signed by the key in LOWWATER_PUBLISH_KEY (default: LOWWATER_PUBLISH_TO)",
    )
    publish.add_argument(
        "--cursor",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file that remembers which intervals were told; each target needs one of its own",
    )
    publish.add_argument(
        "--once",
        action="store_true",
        help="tell the intervals that are complete now, and exit, for cron; exits 1 if the target does not take one",
    )

    ranges = _named(commands, "ranges", "key ranges of a computation, furthest behind first")
    ranges.add_argument("--below", type=parse_time, metavar="TIME", help="only key ranges below an event time")
    ranges.add_argument(
        "--limit", type=parse_count, default=20, metavar="N", help="greatest number of lines (default: %(default)s)"
    )

    history = _named(
        commands,
        "history",
        "when each hour, or other step of event time, became complete",
    )
    history.add_argument(
        "--since",
        type=parse_time,
        metavar="TIME",
        help="only steps that end after an event time, like 2013-01-09T14:00Z",
    )
    history.add_argument(
        "--last", type=parse_count, default=20, metavar="N", help="number of lines, the newest (default: %(default)s)"
    )

    advise = _named(
        commands,
        "advise",
        "what waiting costs and loses: constant delays of Spark's watermark, beside the low watermark",
    )
    advise.add_argument(
        "--progress",
        type=Path,
        action="append",
        metavar="FILE",
        help="Spark's event log, or lines of query.lastProgress.json; - for standard input; repeatable",
    )
    advise.add_argument("--query", metavar="QUERY", help="query of these files (default: the only one)")
    advise.add_argument(
        "--delay",
        type=parse_duration,
        action="append",
        metavar="T",
        help="delay of Spark's watermark, like 2h; repeatable (default: 10m, 1h, 2h, 6h and 1d)",
    )
    advise.add_argument(
        "--window", type=parse_duration, metavar="T", help="length of the query's windows, which lose fewer rows"
    )
    advise.add_argument("--since", type=parse_time, metavar="TIME", help="only what is at or after an event time")
    advise.add_argument("--picture", type=Path, metavar="FILE", help="write the picture too, an SVG")

    reset = _named(commands, "reset", "start a new incarnation of a computation and of all that read it")
    reset.add_argument("--yes", action="store_true", help="do not ask")

    retire = _named(
        commands, "retire", "take a key range out of a computation, so that no reader waits for it any more"
    )
    retire.add_argument(
        "--start",
        type=parse_key,
        required=True,
        metavar="KEY",
        help="first key, as text or 0x..; '' for no lower bound",
    )
    retire.add_argument(
        "--end", type=parse_key, required=True, metavar="KEY", help="first key after; '' for no upper bound"
    )
    retire.add_argument("--force", action="store_true", help="even ranges that a worker owns")

    _named(commands, "hot", "the key ranges of a computation, and which of them cost most")

    split = _named(commands, "split", "ask the owner of a computation to cut a key range in parts")
    _range(split, "range", "start of the range, as `lowwater hot` shows it")
    where = split.add_mutually_exclusive_group()
    where.add_argument("--into", type=parse_parts, metavar="N", help="number of parts, all of one size")
    where.add_argument("--at", type=parse_slot, metavar="SLOT", help="where the second part starts, like 0x4400")

    merge = _named(commands, "merge", "ask the owner of a computation to make one key range of several")
    _range(merge, "first", "start of the first range")
    _range(merge, "last", "start of the last range")

    move = _named(commands, "move", "ask the owner of a computation to run a key range in a task")
    _range(move, "range", "start of the range")
    move.add_argument("task", type=parse_task, metavar="TASK", help="the task, counted from 1; or any")

    inputs = _named(commands, "set-inputs", "change the inputs of a computation; its workers must claim again")
    inputs.add_argument("inputs", nargs="+", metavar="INPUT", help="all inputs from now on")

    drop = _named(commands, "drop", "remove a computation that is gone for good; its alerts end")
    drop.add_argument("--yes", action="store_true", help="do not ask")
    drop.add_argument(
        "--force", action="store_true", help="even if a worker owns key ranges; the worker is refused then"
    )

    _command(commands, "shards", "the shards of the deployment, and which computations each serves")

    drain = _command(
        commands,
        "drain",
        "make a shard hand over what it serves; exits 0 when it serves nothing any more, 1 at the end of --timeout",
        names=False,
    )
    _shard(drain)
    drain.add_argument("--cancel", action="store_true", help="take the drain back; the shard serves again")
    drain.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until the shard serves nothing any more (default); else only show what it serves",
    )
    _timeout(drain)

    pin = _named(commands, "pin", "make a shard serve a computation whenever the shard is there")
    where = pin.add_mutually_exclusive_group(required=True)
    _shard(where, nargs="?")
    where.add_argument("--off", action="store_true", help="take the pin back; any shard may serve the computation")

    what = "the slices that a computation is cut into"
    _of_slices(add_command(commands, "slices", what, EXAMPLES["slices"]))

    what = "work that one worker does once, such as a close each day"
    _tasks(add_command(commands, "tasks", what, EXAMPLES["tasks"]))

    what = "print a script that completes commands, options and names in a shell"
    completion = add_command(commands, "completion", what, EXAMPLES["completion"])
    completion.add_argument("shell", choices=SHELLS, help="which shell")
    order = [name for names in _GROUPS.values() for name in names]
    commands._choices_actions.sort(key=lambda action: order.index(action.dest))  # pyright: ignore[reportPrivateUsage]  # what the help lists
    return top


def add_command(
    commands: argparse._SubParsersAction[CommandParser],  # pyright: ignore[reportPrivateUsage]  # it has no other name
    name: str,
    what: str,
    epilog: str,
) -> CommandParser:
    """Add a command; ``what`` is its description, without a capital and a full stop."""
    return commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".", epilog=epilog)


def _command(
    commands: argparse._SubParsersAction[CommandParser],  # pyright: ignore[reportPrivateUsage]  # as above
    name: str,
    what: str,
    *,
    names: bool = True,
    parent: str = "",
) -> CommandParser:
    """Add a command that asks an authority.

    ``names`` says that it is about named computations, so that it takes a namespace. ``parent`` is
    the command whose action this one is.
    """
    command = add_command(commands, name, what, EXAMPLES.get(f"{parent} {name}".strip(), ""))
    command.add_argument(
        "--json", action="store_true", help="answer in JSON, for programs; docs/reference/cli.md lists the fields"
    )
    server = command.add_argument_group("the authority")
    server.add_argument(
        "--address",
        metavar="HOST:PORT,...",
        help="address of the authority, or of one or more of its shards; the port is 7420 if none is named (default: LOWWATER_ADDRESS or localhost:7420)",
    )
    if names:
        server.add_argument(
            "--namespace",
            default="",
            metavar="NAME",
            help="namespace of names that have none; without names, only computations of this namespace are shown",
        )
    else:
        command.set_defaults(namespace="")
    add_answer_within(server)
    server.add_argument("--server-token", default="", metavar="TOKEN", help="token of the deployment that must answer")
    add_tls_files(server, variables=True)
    return command


def _named(commands: Any, name: str, what: str, *, parent: str = "") -> CommandParser:
    """Add a command about one computation, its first argument."""
    command = _command(commands, name, what, parent=parent)
    command.add_argument("name", metavar="NAME", help="the computation")
    return command


def add_answer_within(server: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]  # as above
    """Add ``--answer-within``, which bounds each call."""
    server.add_argument(
        "--answer-within",
        type=parse_duration,
        default=5.0,
        metavar="T",
        help="how long an answer may take (default: 5s)",
    )


def add_tls_files(server: argparse._ArgumentGroup, *, variables: bool) -> None:  # pyright: ignore[reportPrivateUsage]  # as above
    """Add the files of TLS. ``variables``: LOWWATER_CA, _CERT and _KEY name files as well."""
    for flag, what in (
        ("ca", "certificates to trust; turns TLS on"),
        ("cert", "this client's certificates"),
        ("key", "this client's key"),
    ):
        default = f" (default: LOWWATER_{flag.upper()})" if variables else ""
        server.add_argument(f"--{flag}", type=Path, metavar="PEM", help=f"{what}{default}")


def _of_slices(command: CommandParser) -> None:
    """Add the actions of `lowwater slices`."""
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    _named(actions, "list", "the slices of a computation, in the order of their keys", parent="slices")
    split = _command(
        actions, "split", "cut a slice in two, so that each part may have a shard of its own", parent="slices"
    )
    split.add_argument("slice", metavar="SLICE", help="the slice, like hourly~3")
    split.add_argument(
        "--at",
        type=parse_key,
        required=True,
        metavar="KEY",
        help="first key of the new slice, as text or 0x..",
    )


def _tasks(command: CommandParser) -> None:
    """Add the actions of `lowwater tasks`."""
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)

    def of_group(name: str, what: str) -> CommandParser:
        command = _named(actions, name, what, parent="tasks")
        command.add_argument("group", metavar="GROUP", help="the group of tasks")
        return command

    def of_lease(name: str, what: str) -> CommandParser:
        command = _command(actions, name, what, names=False, parent="tasks")
        command.add_argument(
            "lease", metavar="FILE", help="file with the output of `lowwater tasks take`; - for standard input"
        )
        return command

    listed = _named(
        actions, "list", "the groups of a computation, or the tasks of one, the oldest first", parent="tasks"
    )
    listed.add_argument("--group", metavar="GROUP", help="show the tasks of this group (default: the groups)")
    listed.add_argument("--state", choices=("ready", "leased", "done"), help="only tasks in this state")
    listed.add_argument(
        "--limit", type=parse_count, default=20, metavar="N", help="greatest number of lines (default: %(default)s)"
    )

    group = of_group("create-group", "create a group of tasks; repeating it is harmless")
    group.add_argument(
        "--every", type=parse_duration, metavar="T", help="a task for each interval of this length, like 1d or 1h"
    )
    group.add_argument(
        "--start", type=parse_start, metavar="TIME", help="where the first interval begins, like 2013-01-01T00:00Z"
    )
    group.add_argument(
        "--lease",
        type=parse_duration,
        default=60.0,
        metavar="T",
        help="time for which a task that was taken is offered to no other worker (default: 1m)",
    )
    _configuration(group, default="")

    configure = of_group("configure", "change the configuration for all workers of a group; their leases end")
    _configuration(configure)
    configure.add_argument("--version", type=parse_count, required=True, metavar="N", help="the version to replace")

    create = of_group("create", "create a task in a group without intervals; an existing task stays as it is")
    create.add_argument("task", metavar="TASK", help="name of the task")
    create.add_argument(
        "--at", type=parse_time, required=True, metavar="TIME", help="event time of the oldest work of the task"
    )
    create.add_argument("--payload", default="", metavar="TEXT", help="text for the worker of the task")

    take = of_group("take", "take the oldest task and print the lease; exits 1 if there is none at the end of --wait")
    take.add_argument(
        "--worker", default="", metavar="WORKER", help="name of the worker, for people (default: the host)"
    )
    take.add_argument(
        "--wait",
        type=parse_duration,
        default=0.0,
        metavar="T",
        help="how long to wait for a task, like 90s or 1h (default: 0s)",
    )

    output = of_lease("output", "print a name for an output that no other lease has")
    output.add_argument("part", nargs="?", default="", metavar="PART", help="end of the name")

    of_lease("renew", "extend the lease, so that no other worker is offered the task")

    done = of_lease("done", "commit the task as done; refused if another worker has it by now")
    done.add_argument(
        "--output", action="append", default=[], metavar="PATH", help="path of an output, named by `output`; repeatable"
    )
    done.add_argument(
        "--digest", type=parse_key, default=b"", metavar="KEY", help="digest of the output, as text or 0x.."
    )

    of_lease("release", "give the task back, so that other workers can take it at once")


def _configuration(command: argparse.ArgumentParser, default: str | None = None) -> None:
    command.add_argument(
        "--configuration",
        default=default,
        required=default is None,
        metavar="TEXT",
        help="text for all workers, such as the version of a program",
    )


def _names(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", metavar="NAME", help="computations to show (default: all)")


def _range(command: argparse.ArgumentParser, name: str, what: str) -> None:
    command.add_argument(name, type=parse_slot, metavar=name.upper(), help=what)


def _slices(command: argparse.ArgumentParser) -> None:
    command.add_argument("--slices", action="store_true", help="show slices too, of computations that are cut")


def _unregistered(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--even-unregistered",
        action="store_true",
        help="wait for the registration of names that are not registered, which are errors otherwise",
    )


def _timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout",
        type=parse_duration,
        metavar="T",
        help="how long to wait at most, like 90s or 1h (default: for ever)",
    )


def _shard(command: argparse._ActionsContainer, nargs: str | None = None) -> None:  # pyright: ignore[reportPrivateUsage]  # as above
    command.add_argument(
        "shard", nargs=nargs, metavar="SHARD", help="HOST:PORT of the shard, as `lowwater shards` shows it"
    )


def _until(command: argparse._ActionsContainer, *, required: bool = True) -> None:  # pyright: ignore[reportPrivateUsage]  # as above
    command.add_argument(
        "--until",
        type=parse_time,
        required=required,
        metavar="TIME",
        help="an event time, exclusive, like 2013-01-09T14:00Z; or finished",
    )
