"""What each command does; each returns its exit code."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from lowwater import errors
from lowwater._core.causes import Cause
from lowwater._core.checks import is_name
from lowwater._core.file_settings import FileSettings
from lowwater._core.settings import address_of
from lowwater._core.text import duration, on_one_line
from lowwater._sync.client import Client
from lowwater.cli import render
from lowwater.cli.history import history_record, history_table, why_empty
from lowwater.cli.render import to_json
from lowwater.cli.shards import drain_record, handing_over, shards_record, shards_table, taken_by_others

__all__ = ["COMMANDS", "CannotTell", "open_client"]

_AWAY: Final = (
    errors.JournalFailed,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StaleEpoch,
    errors.Timeout,
    errors.Unavailable,
)
"""Answers that are none: asking later may help."""

_SILENT_SECONDS: Final = 5.0
"""A healthy authority is heard every second or so."""

_REDRAW_SECONDS: Final = 1.0

_ASK_SECONDS: Final = 0.2
"""Between two looks at a shard that is drained."""

_CLEAR: Final = "\x1b[H\x1b[2J"


Answer = TypeVar("Answer")


class CannotTell(Exception):
    """The authority is unreachable or silent."""


def open_client(args: argparse.Namespace) -> Client:
    """Return the client that the arguments and the environment describe."""
    settings = FileSettings(
        address_of(args.address),
        token=os.environ.get("LOWWATER_TOKEN"),
        server_token=args.server_token,
        namespace=args.namespace,
        timeout=args.answer_within,
        ca=_file(args.ca, "LOWWATER_CA"),
        certificate=_file(args.cert, "LOWWATER_CERT"),
        key=_file(args.key, "LOWWATER_KEY"),
    )
    return Client(settings.read())


def _file(given: Path | None, variable: str) -> str:
    return str(given or os.environ.get(variable, ""))


def _now_micros() -> int:
    return time.time_ns() // 1_000


def status(lw: Client, args: argparse.Namespace) -> int:
    """Where computations stand."""
    views, now = list(_ask(lambda: lw.get(*args.names)).values()), _now_micros()
    if args.names_only:
        # For a shell's completion: nothing that is no name may get there, whatever answers at the address.
        print("\n".join(view.computation for view in views if view.registered and is_name(view.computation)))
    elif args.json:
        print(
            to_json(
                {"server_token": lw.server_token, "computations": [render.view_record(each, now) for each in views]}
            )
        )
    else:
        print(render.status_table(views, now))
    return 0


def watch(lw: Client, args: argparse.Namespace) -> int:
    """Follow watermarks, until interrupted."""
    if sys.stdout.isatty() and not args.json:
        return _live(lw, args)
    for view in lw.watch(*args.names):
        now = _now_micros()
        print(to_json(render.view_record(view, now)) if args.json else render.line(view, now), flush=True)
    return 0


def _live(lw: Client, args: argparse.Namespace) -> int:
    """The live view; where curses is missing, or the terminal too simple for it, a table that is drawn again and again."""
    if not sys.stdin.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return _live_table(lw, args)
    try:
        from lowwater.cli import terminal

        terminal.show(lw, args.names)
    except ImportError:
        return _live_table(lw, args)
    return 0


def _live_table(lw: Client, args: argparse.Namespace) -> int:
    clock = threading.Event()
    body, heard = "no answer yet", time.monotonic()
    while True:
        try:
            body = render.status_table(lw.get(*args.names).values(), _now_micros())
            heard, note = time.monotonic(), "Ctrl-C ends this."
        except _AWAY as error:
            note = f"No answer for {duration(time.monotonic() - heard)}: {on_one_line(str(error))}"
        print(f"{_CLEAR}{body}\n\n{note}", flush=True)
        clock.wait(_REDRAW_SECONDS)


def why(lw: Client, args: argparse.Namespace) -> int:
    """Who holds a computation; 3 when the authority cannot tell which key ranges do."""
    found = _ask(lambda: lw.why(args.name))
    print(to_json(render.why_record(found)) if args.json else found)
    return 3 if found.guilty.cause is Cause.CANNOT_TELL else 0


def wait(lw: Client, args: argparse.Namespace) -> int:
    """Wait until a computation is complete to a time."""
    try:
        view = lw.wait(args.name, args.until, args.timeout)
    except errors.Timeout as error:
        if float(error.metadata["stale_for"]) > _SILENT_SECONDS:
            raise CannotTell(str(error)) from None
        print(f"lowwater wait: {on_one_line(str(error))}", file=sys.stderr)
        return 1
    now = _now_micros()
    print(to_json(render.view_record(view, now)) if args.json else f"{view.computation} is complete to {view.low}")
    return 0


def complete(lw: Client, args: argparse.Namespace) -> int:
    """Tell by the exit code whether a computation is complete to a time."""
    try:
        found = lw.complete(args.name, args.until)
    except _AWAY as error:
        raise CannotTell(str(error)) from None
    name, low, now = found.watermark.computation, found.watermark.low, _now_micros()
    if args.json:
        print(to_json(render.completeness_record(found, args.until, now)))
    elif found.complete:
        print(f"complete: {name} is at {low}, and nothing before {args.until} will come")
    else:
        print(f"not yet: {name} is at {low}, and {found.holding} key ranges are before {args.until}")
        for holder in found.holders:
            print(f"  {render.holder(holder)}, at {holder.watermark}")
    return 0 if found.complete else 1


def ranges(lw: Client, args: argparse.Namespace) -> int:
    """List key ranges."""
    found = _ask(lambda: lw.ranges(args.name, args.below, args.limit))
    if args.json:
        print(to_json({"total": found.total, "ranges": [render.range_record(each) for each in found]}))
    else:
        print(render.ranges_table(found, _now_micros()))
    return 0


def history(lw: Client, args: argparse.Namespace) -> int:
    """Tell when steps became complete."""
    found = _ask(lambda: lw.history(args.name, args.since, args.last))
    (view,) = _ask(lambda: lw.get(args.name)).values()
    if args.json:
        print(to_json(history_record(found, view.incarnation)))
    else:
        print(history_table(found, view.incarnation) if len(found) else why_empty(found, view, args.since))
    return 0


def reset(lw: Client, args: argparse.Namespace) -> int:
    """Start a new life."""
    if not args.yes:
        question = f"{args.name} and all that reads it start anew, and their workers must claim again."
        if not sys.stdin.isatty():
            print(f"lowwater reset: {question} Pass --yes to do it.", file=sys.stderr)
            return 2
        if input(f"{question} Go on? [y/N] ").strip().lower() not in {"y", "yes"}:
            return 1
    begun = _ask(lambda: lw.reset(args.name))
    if args.json:
        print(to_json({"reset": [{"computation": each.name, "incarnation": each.incarnation} for each in begun]}))
    else:
        print("\n".join(f"{each.name} is in life {each.incarnation}" for each in begun))
    return 0


def retire(lw: Client, args: argparse.Namespace) -> int:
    """Take a key range out."""
    count = _ask(lambda: lw.retire(args.name, args.start, args.end, args.force))
    record = {"computation": args.name, "start": args.start.hex(), "end": args.end.hex(), "retired": count}
    print(to_json(record) if args.json else f"retired {count} key ranges of {args.name}")
    return 0


def shards(lw: Client, args: argparse.Namespace) -> int:
    """List the shards."""
    found = _ask(lw.shards)
    print(to_json(shards_record(found)) if args.json else shards_table(found))
    return 0


def drain(lw: Client, args: argparse.Namespace) -> int:
    """Have a shard hand over what it serves, or take that back."""
    _ask(lambda: lw.drain(args.shard, cancel=args.cancel))
    if args.cancel:
        record = drain_record(args.shard, (), draining=False)
        print(to_json(record) if args.json else f"{args.shard} serves again, and gets back what is its")
        return 0
    clock, told = threading.Event(), ""
    deadline = time.monotonic() + (float("inf") if args.timeout is None else args.timeout)
    while True:
        found = _ask(lw.shards)
        remaining = next((each.computations for each in found if each.address == args.shard), ())
        record = drain_record(args.shard, remaining, draining=True)
        if (state := to_json(record) if args.json else handing_over(args.shard, remaining)) != told:
            print(state, flush=True)
            told = state
        if not remaining:
            return 0
        if not taken_by_others(found):
            print(
                "lowwater drain: no other shard takes anything: start one, or take a drain back with --cancel",
                file=sys.stderr,
            )
            return 1
        if not args.wait or time.monotonic() >= deadline:
            return 1
        clock.wait(_ASK_SECONDS)


def pin(lw: Client, args: argparse.Namespace) -> int:
    """Have a shard serve a computation, or take that back."""
    _ask(lambda: lw.pin(args.name, args.shard))
    said = f"{args.name} is not pinned" if args.off else f"{args.name} is pinned to {args.shard}"
    print(to_json({"computation": args.name, "shard": args.shard}) if args.json else said)
    return 0


def _ask(call: Callable[[], Answer]) -> Answer:
    """Return what is answered. Raises CannotTell when nobody answers."""
    try:
        return call()
    except _AWAY as error:
        raise CannotTell(str(error)) from None


COMMANDS: Final[dict[str, Callable[[Client, argparse.Namespace], int]]] = {
    "status": status,
    "watch": watch,
    "why": why,
    "wait": wait,
    "complete": complete,
    "ranges": ranges,
    "history": history,
    "reset": reset,
    "retire": retire,
    "shards": shards,
    "drain": drain,
    "pin": pin,
}
