"""What each command does; each returns its exit code."""

from __future__ import annotations

import argparse
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from lowwater import errors
from lowwater._sync.client import Client
from lowwater.cli import render
from lowwater.cli.failures import AWAY, fail, say, unknown
from lowwater.cli.history import history_record, history_table, why_empty
from lowwater.cli.intervals import interval
from lowwater.cli.layouts import heat, hot, merge, move, split
from lowwater.cli.render import to_json
from lowwater.cli.shards import drain_record, handing_over, shards_record, shards_table, taken_by_others
from lowwater.cli.tasks import tasks
from lowwater.core.causes import Cause
from lowwater.core.checks import is_name
from lowwater.core.file_settings import FileSettings
from lowwater.core.settings import address_of, with_port
from lowwater.core.slices import slices_of
from lowwater.core.text import counted, duration, on_one_line
from lowwater.core.why import find_culprits, find_slices
from lowwater.views import Promise, Shards, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["COMMANDS", "open_client", "run"]

_SILENT_SECONDS: Final = 5.0
"""A healthy authority is heard every second or so."""

_REDRAW_SECONDS: Final = 1.0

_ASK_SECONDS: Final = 0.2
"""Between two looks at a shard that is drained."""

_CLEAR: Final = "\x1b[H\x1b[2J"


def run(args: argparse.Namespace) -> int:
    """Run the command that the arguments name; returns its exit code.

    A name that does not exist is told with those that are near.
    """
    with open_client(args) as lw:
        try:
            return COMMANDS[args.command](lw, args)
        except errors.UnknownComputation as error:
            names: Iterable[str] = ()
            with suppress(errors.LowwaterError):
                names = lw.get()
            raise unknown(error.metadata.get("computation", ""), names) from None


def open_client(args: argparse.Namespace) -> Client:
    """Return the client that the arguments and the environment describe."""
    settings = FileSettings(
        address_of(args.address),
        token=os.environ.get("LOWWATER_TOKEN"),
        token_file=os.environ.get("LOWWATER_TOKEN_FILE", ""),
        server_token=args.server_token,
        namespace=args.namespace,
        timeout=args.answer_within,
        ca=_file(args.ca, "LOWWATER_CA"),
        certificate=_file(args.cert, "LOWWATER_CERT"),
        key=_file(args.key, "LOWWATER_KEY"),
    )
    try:
        return Client(settings.read())
    except OSError as error:
        fix = "name a file that this user may read"
        msg = f"{error.filename} cannot be read: {error.strerror}; {fix}"
        raise errors.InvalidArgument(msg, metadata={"file": str(error.filename), "fix": fix}) from None


def _file(given: Path | None, variable: str) -> str:
    return str(given or os.environ.get(variable, ""))


def _now_micros() -> int:
    return time.time_ns() // 1_000


def status(lw: Client, args: argparse.Namespace) -> int:
    """Where computations stand."""
    found = _found(lw, args)
    for view in found.values() if args.names else ():
        _require_registered(view)
    every, now = {**lw.get(), **found} if args.names else found, _now_micros()
    slices = find_slices(every)
    promised = _wanted(found, every, args, slices=args.slices)
    views = [each for each in promised if _is_answered_for(every.get(each.slice_of, each), args)]
    if args.names_only:
        # For a shell's completion: nothing that is no name may get there, whatever answers at the
        # address.
        print("\n".join(view.computation for view in views if is_name(view.slice_of or view.computation)))
        return 0
    views = _sorted(views, now)
    guilty = find_culprits([each.computation for each in views], every, now)
    if args.json:
        records = [render.view_record(each, now, guilty.get(each.computation), slices) for each in views]
        print(to_json({"server_token": lw.server_token, "computations": records}))
    elif views:
        print(render.status_table(views, now, guilty, slices=slices, coloured=_coloured()))
    elif promised:
        print(_nobody(args, promised))
    else:
        print(_nothing(args, found, _reader(lw)))
    return 0


def _is_answered_for(view: WatermarkView, args: argparse.Namespace) -> bool:
    """Whether the promise of a computation names the team and the owner that were asked for, if any were."""
    promise = view.promise or Promise()
    return args.team in {None, promise.team} and args.owner in {None, promise.owner}


def _nobody(args: argparse.Namespace, views: Iterable[WatermarkView]) -> str:
    """Say that nothing is promised by a team or an owner, and who has promised something."""
    asked = {"team": args.team, "owner": args.owner}
    wanted = " and ".join(f"the {what} {on_one_line(name)}" for what, name in asked.items() if name is not None)
    known = {
        what: sorted({getattr(view.promise, what) for view in views if view.promise is not None} - {""})
        for what in asked
    }
    others = [f"{what}s that have some: {on_one_line(', '.join(known[what]))}" for what in asked if known[what]]
    return "; ".join([f"no computation has a promise of {wanted}", *others])


def _found(lw: Client, args: argparse.Namespace) -> dict[str, WatermarkView]:
    """Return what was asked for by its full name, which inputs have, and not by the name that was given within a namespace."""
    return {view.computation: view for view in lw.get(*args.names).values()}


def _wanted(
    found: Mapping[str, WatermarkView], every: Mapping[str, WatermarkView], args: argparse.Namespace, *, slices: bool
) -> list[WatermarkView]:
    """Return what is to be shown of what was found: slices only where they are asked for, with what they are slices of, or by their names."""
    views = [each for each in found.values() if _is_wanted(each.computation, args)]
    shown = {each.computation: each for each in views if args.names or not each.slice_of}
    below = {name: view for name, view in every.items() if slices and view.slice_of in shown}
    return list({**shown, **below}.values())


def _sorted(views: Iterable[WatermarkView], now: int) -> list[WatermarkView]:
    """Return computations, the worst first; each slice right behind its computation, if that is there."""
    views = sorted(views, key=lambda view: render.severity(view, now))
    places = {view.computation: place for place, view in enumerate(views)}
    return sorted(views, key=lambda view: (places.get(view.slice_of, places[view.computation]), bool(view.slice_of)))


def _is_wanted(name: str, args: argparse.Namespace) -> bool:
    """Whether a computation is to be shown: one that was named, or one of the namespace, of all when none is given."""
    return bool(args.names) or _is_inside(name, args)


def _is_inside(name: str, args: argparse.Namespace) -> bool:
    return not args.namespace or name.startswith(f"{args.namespace}/")


def _require_registered(view: WatermarkView) -> None:
    if not view.registered:
        raise errors.UnknownComputation(view.computation, metadata={"computation": view.computation})


def _reader(lw: Client) -> str:
    """Return who asks, where not everybody may read everything; else an empty text."""
    try:
        return lw.identify().name
    except errors.LowwaterError:  # an authority that is older than the question
        return ""


def _nothing(args: argparse.Namespace, found: Iterable[str], reader: str = "") -> str:
    """Say that there is nothing to show, and in which namespaces there is something; where there is a ``reader``, of what that one may read."""
    if not args.namespace and not reader:
        return "no computation is registered yet; its first worker or Spark stage does that"
    place = f" in the namespace {args.namespace}" if args.namespace else ""
    head = (
        f"no computation is registered{place} that {reader} may read"
        if reader
        else f"no computation is registered{place} yet"
    )
    if not args.namespace:
        return f"{head}: `read` in the access file says which those are"
    others = sorted({name.partition("/")[0] for name in found if "/" in name})
    return f"{head}; namespaces that have some: {', '.join(others)}" if others else head


def _coloured() -> bool:
    """Whether whoever reads the answer sees colours and wants them."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def watch(lw: Client, args: argparse.Namespace) -> int:
    """Follow watermarks, until interrupted."""
    if sys.stdout.isatty() and not args.json:
        return _live(lw, args)
    left = _tell_when_the_reader_leaves(lw)
    _tell_of_silence_of(lw, "watch")
    known: set[str] = set()
    blame = _Blame(lw)
    for view in lw.watch(*_with_slices(lw, args)):
        if not _is_wanted(view.computation, args) or (view.slice_of and not (args.names or args.slices)):
            continue
        if args.names and view.computation not in known and not args.even_unregistered:
            _require_registered(view)
        known.add(view.computation)
        now, guilty = _now_micros(), blame.of(view)
        print(
            to_json(render.view_record(view, now, guilty)) if args.json else render.line(view, now, guilty), flush=True
        )
    if left.is_set():
        raise BrokenPipeError
    return 0


def _with_slices(lw: Client, args: argparse.Namespace) -> list[str]:
    """Return the names that were given; with the slices of these, if they are asked for."""
    if not (args.names and args.slices):
        return list(args.names)
    found = [each.computation for each in lw.get(*args.names).values()]
    slices = slices_of(lw.get())
    return [name for each in found for name in (each, *slices.get(each, ()))]


class _Blame:
    """Who holds what has changed.

    It may be one that is not watched, so all are asked for, once a second at most.
    """

    def __init__(self, lw: Client) -> None:
        self._lw = lw
        self._views: dict[str, WatermarkView] = {}
        self._asked = float("-inf")

    def of(self, view: WatermarkView) -> WatermarkView | None:
        """Return the computation that holds it; None when nobody can tell just now."""
        if time.monotonic() - self._asked >= _REDRAW_SECONDS:
            self._views = {}
            with suppress(errors.LowwaterError):
                self._views = self._lw.get()
                self._asked = time.monotonic()
        if not self._views:
            return None
        self._views[view.computation] = view
        return find_culprits([view.computation], self._views, _now_micros())[view.computation]


def _tell_when_the_reader_leaves(lw: Client) -> threading.Event:
    """End what follows watermarks when nobody reads it any more.

    A write would tell, but the next one may be hours away.
    """
    left = threading.Event()

    def look(output: int) -> None:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(output, 0)  # errors alone, and there is one when the other end of a pipe is closed
            poll.poll()
            left.set()
            lw.close()

    with suppress(OSError, ValueError):  # standard output that is no file
        threading.Thread(target=look, args=(sys.stdout.fileno(),), name="lowwater-reader", daemon=True).start()
    return left


def _tell_of_silence_of(lw: Client, command: str) -> None:
    threading.Thread(target=_tell_of_silence, args=(lw, command), name="lowwater-silence", daemon=True).start()


def _tell_of_silence(lw: Client, command: str) -> None:
    """Say once when nothing is heard any more, and once when it is again: no change comes meanwhile, as when all is in order."""
    clock, began, silent = threading.Event(), time.monotonic(), False
    with suppress(errors.Closed):
        while not clock.wait(_REDRAW_SECONDS):
            heard = lw.statistics().watcher
            seconds = min(heard.stale_for, time.monotonic() - began)
            if (seconds > _SILENT_SECONDS) == silent:
                continue
            silent = not silent
            of = f" of {', '.join(heard.unserved)}" if heard.unserved else ""
            said = f"no answer{of} for {duration(seconds)} from {lw.settings.address}; what was shown last stands"
            say(command, said if silent else "the authority answers again")


def _get(lw: Client, args: argparse.Namespace) -> tuple[list[WatermarkView], render.Guilty]:
    """Return what is to be shown and the slices of it, and who holds each."""
    found = _found(lw, args)
    every = {**lw.get(), **found} if args.names else found
    views = _wanted(found, every, args, slices=True)
    return views, find_culprits([each.computation for each in views], every, _now_micros())


def _live(lw: Client, args: argparse.Namespace) -> int:
    """The live view; where curses is missing, or the terminal too simple for it, a table that is drawn again and again."""
    with suppress(*AWAY):  # the view says so itself
        for view in lw.get(*args.names).values() if args.names and not args.even_unregistered else ():
            _require_registered(view)
    if not sys.stdin.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return _live_table(lw, args)
    try:
        from lowwater.cli import terminal

        terminal.show(lw, lambda: _get(lw, args), slices=args.slices)
    except ImportError:
        return _live_table(lw, args)
    return 0


def _live_table(lw: Client, args: argparse.Namespace) -> int:
    body, heard = "no answer yet", time.monotonic()
    while True:
        try:
            (found, guilty), now = _get(lw, args), _now_micros()
            slices = find_slices({view.computation: view for view in found})
            views = _sorted([view for view in found if args.slices or view.slice_of not in slices], now)
            body = (
                render.status_table(views, now, guilty, slices=slices, coloured=_coloured())
                if views
                else _nothing(args, ())
            )
            heard, note = time.monotonic(), "Ctrl-C ends this."
        except AWAY as error:
            note = f"No answer for {duration(time.monotonic() - heard)}: {on_one_line(str(error))}"
        print(f"{_CLEAR}{body}\n\n{note}", flush=True)
        time.sleep(_REDRAW_SECONDS)


def why(lw: Client, args: argparse.Namespace) -> int:
    """Who holds a computation; 3 when the authority cannot tell which key ranges do."""
    found = lw.why(args.name)
    print(to_json(render.why_record(found)) if args.json else found)
    if not args.json:
        with suppress(errors.LowwaterError):  # nobody waits for it: it may help
            for line in heat(lw.layout(found.guilty.computation)):
                print(line)
    return 3 if found.guilty.cause is Cause.CANNOT_TELL else 0


def wait(lw: Client, args: argparse.Namespace) -> int:
    """Wait until a computation is complete to a time."""
    try:
        view = lw.wait(args.name, args.until, args.timeout, registered=not args.even_unregistered)
    except errors.Timeout as error:
        silent = float(error.metadata["stale_for"]) > _SILENT_SECONDS
        return fail("wait", error, as_json=args.json, code=3 if silent else 1)
    now = _now_micros()
    reached = "is finished" if view.low.finished else f"is complete to {view.low}"
    print(to_json(render.view_record(view, now)) if args.json else f"{view.computation} {reached}")
    return 0


def complete(lw: Client, args: argparse.Namespace) -> int:
    """Tell by the exit code whether a computation is complete to a time, or an interval of it is."""
    if args.to is not None or args.start is not None:
        return interval(lw, args)
    found = lw.complete(args.name, args.until)
    name, low, now = found.watermark.computation, found.watermark.low, _now_micros()
    why = None
    with suppress(errors.LowwaterError):  # the answer is there all the same
        why = None if found.complete else lw.why(args.name)
    if args.json:
        print(to_json(render.completeness_record(found, args.until, now, why)))
    elif found.complete:
        print(f"complete: {name} {_stands(low)}, and nothing before {args.until} will come")
    else:
        ranges = f"{counted(found.holding, 'key range')} {'is' if found.holding == 1 else 'are'}"
        print(f"not yet: {name} {_stands(low)}, and {ranges} before {args.until}")
        if why is not None and why.guilty.computation != name:
            # Its own key ranges stand there for what another one holds: their workers are not to
            # blame.
            print(f"  {on_one_line(why.sentence)}")
            return 1
        for holder in found.holders:
            print(f"  {render.holder(holder)}, at {holder.watermark}")
    return 0 if found.complete else 1


def _stands(low: Watermark) -> str:
    return f"is {low}" if low.unknown or low.finished else f"is at {low}"


def _publish(lw: Client, args: argparse.Namespace) -> int:
    """Tell others of intervals that close.

    What that needs of HTTP and TLS is not loaded for every other command.
    """
    from lowwater.cli.publish import publish

    if not args.once:
        _tell_of_silence_of(lw, "publish")
    return publish(lw, args)


def ranges(lw: Client, args: argparse.Namespace) -> int:
    """List key ranges."""
    found = lw.ranges(args.name, args.below, args.limit)
    if args.json:
        print(to_json({"total": found.total, "ranges": [render.range_record(each) for each in found]}))
    else:
        print(render.ranges_table(found, _now_micros()))
    return 0


def history(lw: Client, args: argparse.Namespace) -> int:
    """Tell when steps became complete."""
    found = lw.history(args.name, args.since, args.last)
    (view,) = lw.get(args.name).values()
    if args.json:
        print(to_json(history_record(found, view.incarnation)))
    else:
        print(history_table(found, view.incarnation) if len(found) else why_empty(found, view, args.since))
    return 0


def reset(lw: Client, args: argparse.Namespace) -> int:
    """Start a new incarnation."""
    if not args.yes:
        question = f"{args.name} and all that reads it start anew, and their workers must claim again."
        if args.json or not sys.stdin.isatty():
            refused = errors.InvalidArgument(f"{question} Pass --yes to do it.", metadata={"fix": "pass --yes"})
            return fail("reset", refused, as_json=args.json)
        try:
            answer = input(f"{question} Go on? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in {"y", "yes"}:
            return 1
    begun = lw.reset(args.name)
    if args.json:
        print(to_json({"reset": [{"computation": each.name, "incarnation": each.incarnation} for each in begun]}))
    else:
        print("\n".join(f"{each.name} is in incarnation {each.incarnation}" for each in begun))
    return 0


def retire(lw: Client, args: argparse.Namespace) -> int:
    """Take a key range out."""
    count = lw.retire(args.name, args.start, args.end, args.force)
    record = {"computation": args.name, "start": args.start.hex(), "end": args.end.hex(), "retired": count}
    print(to_json(record) if args.json else f"retired {counted(count, 'key range')} of {args.name}")
    return 0


def set_inputs(lw: Client, args: argparse.Namespace) -> int:
    """Change what a computation reads."""
    found = lw.set_inputs(args.name, args.inputs)
    record = {"computation": found.name, "inputs": list(found.inputs), "input_version": found.input_version}
    said = f"{found.name} reads {', '.join(found.inputs)}; its workers have to claim again"
    print(to_json(record) if args.json else said)
    return 0


def drop(lw: Client, args: argparse.Namespace) -> int:
    """Take a computation out of the graph."""
    incarnation = lw.drop(args.name, args.force)
    record = {"computation": args.name, "dropped": True, "incarnation": incarnation}
    print(to_json(record) if args.json else f"dropped {args.name}, in incarnation {incarnation}")
    return 0


def slices(lw: Client, args: argparse.Namespace) -> int:
    """List the slices of a computation, or cut one in two."""
    if args.action == "split":
        made = lw.split_slice(args.slice, args.at)
        cut = {"slice": args.slice, "new": made.name, "start": made.start.hex(), "end": made.end.hex()}
        said = (
            f"{made.name} has the keys of {args.slice} from 0x{made.start.hex()} on; their workers have to claim again"
        )
        print(to_json(cut) if args.json else said)
        return 0
    graph, found = lw.topology().computations, lw.slices(args.name)
    sources = {each.name: graph[each.name].slice_source if each.name in graph else "" for each in found}
    if args.json:
        record = [
            {"slice": each.name, "start": each.start.hex(), "end": each.end.hex(), "source": sources[each.name] or None}
            for each in found
        ]
        print(to_json({"computation": args.name, "slices": record}))
        return 0
    rows = [
        (
            each.name,
            _edge(each.start),
            _edge(each.end),
            f"taken over from {source}" if (source := sources[each.name]) else "",
        )
        for each in found
    ]
    print(render.table([("SLICE", "FIRST KEY", "FIRST KEY AFTER", ""), *rows]))
    return 0


def _edge(key: bytes) -> str:
    return f"0x{key.hex()}" if key else "-"


def shards(lw: Client, args: argparse.Namespace) -> int:
    """List the shards."""
    found = _inside(lw.shards(), args)
    print(to_json(shards_record(found)) if args.json else shards_table(found))
    return 0


def _inside(found: Shards, args: argparse.Namespace) -> Shards:
    """Return the shards with what they serve of the namespace."""

    def of(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if _is_inside(name, args))

    pins = {name: address for name, address in found.pins.items() if _is_inside(name, args)}
    each = tuple(replace(shard, computations=of(shard.computations)) for shard in found)
    return replace(found, shards=each, pins=pins, unserved=of(found.unserved))


def drain(lw: Client, args: argparse.Namespace) -> int:
    """Have a shard hand over what it serves, or take that back."""
    shard = _shard(args.shard)
    lw.drain(shard, cancel=args.cancel)
    if args.cancel:
        record = drain_record(shard, (), draining=False)
        print(to_json(record) if args.json else f"{shard} serves again, and gets back what is its")
        return 0
    told = ""
    deadline = time.monotonic() + (float("inf") if args.timeout is None else args.timeout)
    while True:
        found = lw.shards()
        remaining = next((each.computations for each in found if each.address == shard), ())
        record = drain_record(shard, remaining, draining=True)
        if (state := to_json(record) if args.json else handing_over(shard, remaining)) != told:
            print(state, flush=True)
            told = state
        if not remaining:
            return 0
        if not taken_by_others(found):
            fix = "start one, or take a drain back with --cancel"
            nobody = errors.LowwaterError(
                f"no other shard takes anything: {fix}", reason="NO_OTHER_SHARD", metadata={"fix": fix}
            )
            return fail("drain", nobody, as_json=args.json, code=1)
        if not args.wait:
            return 1
        if time.monotonic() >= deadline:
            late = errors.Timeout(f"{handing_over(shard, remaining)}, and --timeout is over")
            return fail("drain", late, as_json=args.json, code=1)
        time.sleep(_ASK_SECONDS)


def _shard(named: str) -> str:
    """Return the address of a shard as shards have theirs: with a port."""
    try:
        return with_port(named)
    except ValueError:
        return named  # the authority says which there are


def pin(lw: Client, args: argparse.Namespace) -> int:
    """Have a shard serve a computation, or take that back."""
    shard = None if args.off else _shard(args.shard)
    lw.pin(args.name, shard)
    said = f"{args.name} is not pinned" if args.off else f"{args.name} is pinned to {shard}"
    print(to_json({"computation": args.name, "shard": shard}) if args.json else said)
    return 0


COMMANDS: Final[dict[str, Callable[[Client, argparse.Namespace], int]]] = {
    "status": status,
    "watch": watch,
    "why": why,
    "wait": wait,
    "complete": complete,
    "publish": _publish,
    "ranges": ranges,
    "history": history,
    "reset": reset,
    "retire": retire,
    "hot": hot,
    "split": split,
    "merge": merge,
    "move": move,
    "set-inputs": set_inputs,
    "drop": drop,
    "shards": shards,
    "drain": drain,
    "pin": pin,
    "slices": slices,
    "tasks": tasks,
}
