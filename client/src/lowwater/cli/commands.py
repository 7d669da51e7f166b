"""The commands that ask an authority; each function returns its exit code."""

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
from lowwater.cli.failures import AWAY, agreed, answer, fail, say, unknown
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
from lowwater.core.words import holder_words, severity
from lowwater.views import Promise, RangeState, Shards, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["COMMANDS", "open_client", "run"]

_SILENT_SECONDS: Final = 5.0
"""Silence, in seconds, after which the authority counts as away. It sends every second."""

_REDRAW_SECONDS: Final = 1.0
"""Pause between two questions of a view that is drawn again and again."""

_ASK_SECONDS: Final = 0.2
"""Pause between two questions about a shard that is being drained."""

_PROMISER: Final = "promise"
"""Name of the worker that `lowwater promise` claims with."""

_CLEAR: Final = "\x1b[H\x1b[2J"


def run(args: argparse.Namespace) -> int:
    """Run the command that the arguments name; returns its exit code.

    The error for a name that is not registered offers similar names.
    """
    with open_client(args) as lw:
        try:
            return COMMANDS[args.command](lw, args)
        except errors.UnknownComputation as error:
            names: Iterable[str] = filter(None, error.metadata.get("near", "").split(", "))
            if not error.metadata.get("near"):
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


def _file(path: Path | None, variable: str) -> str:
    return str(path or os.environ.get(variable, ""))


def _now_micros() -> int:
    return time.time_ns() // 1_000


def status(lw: Client, args: argparse.Namespace) -> int:
    """Show the watermarks of computations."""
    requested = _requested(lw, args)
    for view in requested.values() if args.names else ():
        _require_registered(view)
    all_views, now = {**lw.get(), **requested} if args.names else requested, _now_micros()
    slices = find_slices(all_views)
    promised = _to_show(requested, all_views, args, slices=args.slices)
    views = [view for view in promised if _is_answered_for(all_views.get(view.slice_of, view), args)]
    if args.names_only:
        # A shell's completion expands what this prints, so a server at a wrong address must not be
        # able to put anything but names there.
        print("\n".join(view.computation for view in views if is_name(view.slice_of or view.computation)))
        return 0
    views = _sorted(views, now)
    guilty = find_culprits([view.computation for view in views], all_views, now)
    if args.json:
        records = [render.view_record(view, now, guilty.get(view.computation), slices) for view in views]
        print(to_json({"server_token": lw.server_token, "computations": records}))
    elif views:
        print(render.status_table(views, now, guilty, slices=slices, coloured=_coloured()))
    elif promised:
        print(_nobody(args, promised))
    else:
        print(_nothing(args, requested, _reader(lw)))
    return 0


def _is_answered_for(view: WatermarkView, args: argparse.Namespace) -> bool:
    """Tell whether a computation's promise names the team and owner of the arguments, if any."""
    promise = view.promise or Promise()
    return args.team in {None, promise.team} and args.owner in {None, promise.owner}


def _nobody(args: argparse.Namespace, views: Iterable[WatermarkView]) -> str:
    """Say that this team or owner has no promise, and list the teams and owners that have one."""
    filters = {"team": args.team, "owner": args.owner}
    conditions = " and ".join(f"the {what} {on_one_line(name)}" for what, name in filters.items() if name is not None)
    names = {
        what: sorted({getattr(view.promise, what) for view in views if view.promise is not None} - {""})
        for what in filters
    }
    others = [f"{what}s that have some: {on_one_line(', '.join(names[what]))}" for what in filters if names[what]]
    return "; ".join([f"no computation has a promise of {conditions}", *others])


def _requested(lw: Client, args: argparse.Namespace) -> dict[str, WatermarkView]:
    """Return the named computations, by full name as inputs have it."""
    return {view.computation: view for view in lw.get(*args.names).values()}


def _to_show(
    requested: Mapping[str, WatermarkView],
    all_views: Mapping[str, WatermarkView],
    args: argparse.Namespace,
    *,
    slices: bool,
) -> list[WatermarkView]:
    """Return the views to show. A slice is shown if it was named.

    With ``slices`` the slices of every computation shown are added.
    """
    views = [view for view in requested.values() if _is_wanted(view.computation, args)]
    shown = {view.computation: view for view in views if args.names or not view.slice_of}
    below = {name: view for name, view in all_views.items() if slices and view.slice_of in shown}
    return list({**shown, **below}.values())


def _sorted(views: Iterable[WatermarkView], now: int) -> list[WatermarkView]:
    """Return computations, the worst first; a slice follows its computation if that is shown."""
    views = sorted(views, key=lambda view: severity(view, now))
    places = {view.computation: place for place, view in enumerate(views)}
    return sorted(views, key=lambda view: (places.get(view.slice_of, places[view.computation]), bool(view.slice_of)))


def _is_wanted(name: str, args: argparse.Namespace) -> bool:
    """Tell whether a computation was named, or, without names, is in the namespace asked for."""
    return bool(args.names) or _is_inside(name, args)


def _is_inside(name: str, args: argparse.Namespace) -> bool:
    return not args.namespace or name.startswith(f"{args.namespace}/")


def _require_registered(view: WatermarkView) -> None:
    if not view.registered:
        raise errors.UnknownComputation(view.computation, metadata={"computation": view.computation})


def _reader(lw: Client) -> str:
    """Return the name of the caller under access rules; empty if everybody may read everything."""
    try:
        return lw.identify().name
    except errors.LowwaterError:  # an authority that is older than the question
        return ""


def _nothing(args: argparse.Namespace, names: Iterable[str], reader: str = "") -> str:
    """Say that there is nothing to show, and list the namespaces that have computations.

    ``reader``: the caller, who may see only a part; empty if everybody may see everything.
    """
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
    others = sorted({name.partition("/")[0] for name in names if "/" in name})
    return f"{head}; namespaces that have some: {', '.join(others)}" if others else head


def _coloured() -> bool:
    """Tell whether the answer goes to a terminal with colours that are not turned off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def watch(lw: Client, args: argparse.Namespace) -> int:
    """Follow watermarks, until interrupted."""
    if sys.stdout.isatty() and not args.json:
        return _live(lw, args)
    reader_left = _tell_when_the_reader_leaves(lw)
    _tell_of_silence_of(lw, "watch", "what was shown last stands")
    printed: set[str] = set()
    blame = _Blame(lw)
    for view in lw.watch(*_with_slices(lw, args)):
        if not _is_wanted(view.computation, args) or (view.slice_of and not (args.names or args.slices)):
            continue
        if args.names and view.computation not in printed and not args.even_unregistered:
            _require_registered(view)
        printed.add(view.computation)
        now, guilty = _now_micros(), blame.culprit(view)
        answer(args, render.view_record(view, now, guilty), render.line(view, now, guilty))
    if reader_left.is_set():
        raise BrokenPipeError
    return 0


def _with_slices(lw: Client, args: argparse.Namespace) -> list[str]:
    """Return the names that were given; with the slices of these, if they are asked for."""
    if not (args.names and args.slices):
        return list(args.names)
    slices = slices_of(lw.get())
    return [name for view in _requested(lw, args) for name in (view, *slices.get(view, ()))]


class _Blame:
    """Finds the computation that holds one which has changed.

    The culprit may be one that is not watched. So all computations are asked for, at most once a
    second.
    """

    def __init__(self, lw: Client) -> None:
        self._lw = lw
        self._views: dict[str, WatermarkView] = {}
        self._asked_at = float("-inf")

    def culprit(self, view: WatermarkView) -> WatermarkView | None:
        """Return the computation that holds this one; None while the authority is silent."""
        if time.monotonic() - self._asked_at >= _REDRAW_SECONDS:
            self._views = {}
            with suppress(errors.LowwaterError):
                self._views = self._lw.get()
                self._asked_at = time.monotonic()
        if not self._views:
            return None
        self._views[view.computation] = view
        return find_culprits([view.computation], self._views, _now_micros())[view.computation]


def _tell_when_the_reader_leaves(lw: Client) -> threading.Event:
    """Close the client when the reader of the output is gone; returns the event that says so.

    A write would fail then, but the next write may be hours away.
    """
    reader_left = threading.Event()

    def look(output: int) -> None:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(output, 0)  # only errors: one comes when the other end of a pipe is closed
            poll.poll()
            reader_left.set()
            lw.close()

    with suppress(OSError, ValueError):  # standard output that is no file
        threading.Thread(target=look, args=(sys.stdout.fileno(),), name="lowwater-reader", daemon=True).start()
    return reader_left


def _tell_of_silence_of(lw: Client, command: str, meanwhile: str) -> None:
    arguments = lw, command, meanwhile
    threading.Thread(target=_tell_of_silence, args=arguments, name="lowwater-silence", daemon=True).start()


def _tell_of_silence(lw: Client, command: str, meanwhile: str) -> None:
    """Say once when the authority falls silent, and once when it answers again.

    ``meanwhile`` says what the command does until then. Without this a silent authority would look
    like one whose watermarks do not change.
    """
    clock, began, silent = threading.Event(), time.monotonic(), False
    with suppress(errors.Closed):
        while not clock.wait(_REDRAW_SECONDS):
            watcher = lw.statistics().watcher
            seconds = min(watcher.stale_for, time.monotonic() - began)
            if (seconds > _SILENT_SECONDS) == silent:
                continue
            silent = not silent
            shards = f" of {', '.join(watcher.unserved)}" if watcher.unserved else ""
            message = f"no answer{shards} for {duration(seconds)} from {lw.settings.address}; {meanwhile}"
            say(command, message if silent else "the authority answers again")


def _get(lw: Client, args: argparse.Namespace) -> tuple[list[WatermarkView], render.Guilty]:
    """Return the views to show with all their slices, and the culprit of each."""
    requested = _requested(lw, args)
    all_views = {**lw.get(), **requested} if args.names else requested
    views = _to_show(requested, all_views, args, slices=True)
    return views, find_culprits([view.computation for view in views], all_views, _now_micros())


def _live(lw: Client, args: argparse.Namespace) -> int:
    """Run the live view; without curses, or on a simple terminal, draw a table again and again."""
    with suppress(*AWAY):  # the view itself shows that the authority is away
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
    body, answered = "no answer yet", time.monotonic()
    while True:
        try:
            (shown, guilty), now = _get(lw, args), _now_micros()
            slices = find_slices({view.computation: view for view in shown})
            views = _sorted([view for view in shown if args.slices or view.slice_of not in slices], now)
            body = (
                render.status_table(views, now, guilty, slices=slices, coloured=_coloured())
                if views
                else _nothing(args, ())
            )
            answered, note = time.monotonic(), "Ctrl-C ends this."
        except AWAY as error:
            note = f"No answer for {duration(time.monotonic() - answered)}: {on_one_line(str(error))}"
        print(f"{_CLEAR}{body}\n\n{note}", flush=True)
        time.sleep(_REDRAW_SECONDS)


def why(lw: Client, args: argparse.Namespace) -> int:
    """Say who holds a computation; returns 3 when the authority cannot tell which key ranges do."""
    explanation = lw.why(args.name)
    answer(args, render.why_record(explanation), explanation)
    if not args.json:
        with suppress(errors.LowwaterError):  # the answer is complete without this hint
            for line in heat(lw.layout(explanation.guilty.computation)):
                print(line)
    return 3 if explanation.guilty.cause is Cause.CANNOT_TELL else 0


def promise(lw: Client, args: argparse.Namespace) -> int:
    """Promise that nothing older than a time will come.

    Returns 1 if something before ``--after`` is not promised yet. Changes nothing then.
    """
    view = lw.get(args.name)[args.name]
    if view.inputs:
        msg = f"{args.name} reads {', '.join(view.inputs)}, so it goes as far as they do: only a source is promised for"
        raise errors.InvalidArgument(msg, metadata={"fix": "name the source that your script brings in"})
    if args.after is not None and view.low < args.after:
        stands = f"{args.name} {_stands(view.low)}" if view.registered else f"{args.name} is not registered"
        failure = errors.InvalidArgument(
            f"nothing is promised: {stands}, and --after is {args.after}",
            metadata={"fix": "bring in what is missing, and promise once without --after"},
        )
        return fail("promise", failure, as_json=args.json, code=1)
    if not view.registered:
        lw.register(args.name)
    if view.low < args.until:
        _promise(lw, args)
        view = lw.get(args.name)[args.name]
    low = max(view.low, args.until)
    return answer(args, {"computation": args.name, **render.times("low", low)}, f"{args.name} {_stands(low)}")


def _promise(lw: Client, args: argparse.Namespace) -> None:
    """Claim all keys and promise. Raises OwnedRanges where another program has promised before."""
    for claim in lw.ranges(args.name, limit=1000):
        if claim.state is RangeState.RETIRED:
            msg = f"an operator has retired keys of {args.name}, and a promise for all keys would bring them back"
            raise errors.OwnedRanges(msg, metadata={"fix": "let a program claim the other keys, and promise for them"})
        if claim.worker not in {"", _PROMISER} and not args.take_over:
            msg = f"{claim.worker} on {claim.host} reports {args.name}, and may have records left that a promise passes"
            fix = "let that program promise, or pass --take-over when it has no work left and will not run again"
            raise errors.OwnedRanges(msg, metadata={"fix": fix})
    with lw.worker(args.name, name=_PROMISER) as worker:
        lease = worker.claim()
        if args.until.finished:
            lease.finish()
        else:
            lease.advance(None, oldest=None, frontier=args.until)
            lease.flush()


def wait(lw: Client, args: argparse.Namespace) -> int:
    """Wait until a computation is complete to a time."""
    _tell_of_silence_of(lw, "wait", "still waiting")
    try:
        view = lw.wait(args.name, args.until, args.timeout, registered=not args.even_unregistered)
    except errors.Timeout as error:
        silent = float(error.metadata["stale_for"]) > _SILENT_SECONDS
        return fail("wait", error, as_json=args.json, code=3 if silent else 1)
    now = _now_micros()
    reached = "is finished" if view.low.finished else f"is complete to {view.low}"
    return answer(args, render.view_record(view, now), f"{view.computation} {reached}")


def complete(lw: Client, args: argparse.Namespace) -> int:
    """Tell by the exit code whether a computation is complete to a time or for an interval."""
    if args.to is not None or args.start is not None:
        return interval(lw, args)
    completeness = lw.complete(args.name, args.until)
    name, low, now = completeness.watermark.computation, completeness.watermark.low, _now_micros()
    why = None
    with suppress(errors.LowwaterError):  # the answer is complete without the reason
        why = None if completeness.complete else lw.why(args.name)
    if args.json:
        print(to_json(render.completeness_record(completeness, args.until, now, why)))
    elif completeness.complete:
        print(f"complete: {name} {_stands(low)}, and nothing before {args.until} will come")
    else:
        ranges = f"{counted(completeness.holding, 'key range')} {'is' if completeness.holding == 1 else 'are'}"
        print(f"not yet: {name} {_stands(low)}, and {ranges} before {args.until}")
        if why is not None and why.guilty.computation != name:
            # Another computation holds this one: its own key ranges are not to blame.
            print(f"  {on_one_line(why.sentence)}")
            return 1
        for holder in completeness.holders:
            print(f"  {holder_words(holder, now)}, at {holder.watermark}")
    return 0 if completeness.complete else 1


def _stands(low: Watermark) -> str:
    return f"is {low}" if low.unknown or low.finished else f"is at {low}"


def _publish(lw: Client, args: argparse.Namespace) -> int:
    """Tell a target of intervals that close.

    The late import spares all other commands the time to load HTTP and TLS.
    """
    from lowwater.cli.publish import publish

    if not args.once:
        _tell_of_silence_of(lw, "publish", "no interval is published meanwhile")
    return publish(lw, args)


def ranges(lw: Client, args: argparse.Namespace) -> int:
    """List key ranges."""
    page = lw.ranges(args.name, args.below, args.limit)
    record = {"total": page.total, "ranges": [render.range_record(key_range) for key_range in page]}
    return answer(args, record, render.ranges_table(page, _now_micros()))


def history(lw: Client, args: argparse.Namespace) -> int:
    """Show when steps of event time became complete."""
    completions = lw.history(args.name, args.since, args.last)
    (view,) = lw.get(args.name).values()
    table = history_table(completions, view.incarnation)
    text = table if len(completions) else why_empty(completions, view, args.since)
    return answer(args, history_record(completions, view.incarnation), text)


def _advise(lw: Client, args: argparse.Namespace) -> int:
    """Say what waiting costs and loses.

    The late import spares all other commands the time to load it.
    """
    from lowwater.cli.advise import advice

    return advice(lw, args)


def reset(lw: Client, args: argparse.Namespace) -> int:
    """Start a new incarnation."""
    question = f"{args.name} and all that read it begin a new incarnation, and their workers must claim again."
    if not args.yes and not agreed(question, args):
        return 1
    begun = lw.reset(args.name)
    records = [{"computation": computation.name, "incarnation": computation.incarnation} for computation in begun]
    lines = [f"{computation.name} is in incarnation {computation.incarnation}" for computation in begun]
    return answer(args, {"reset": records}, "\n".join(lines))


def retire(lw: Client, args: argparse.Namespace) -> int:
    """Retire a key range."""
    count = lw.retire(args.name, args.start, args.end, args.force)
    record = {"computation": args.name, "start": args.start.hex(), "end": args.end.hex(), "retired": count}
    return answer(args, record, f"retired {counted(count, 'key range')} of {args.name}")


def set_inputs(lw: Client, args: argparse.Namespace) -> int:
    """Change the inputs of a computation."""
    computation = lw.set_inputs(args.name, args.inputs)
    record = {
        "computation": computation.name,
        "inputs": list(computation.inputs),
        "input_version": computation.input_version,
    }
    sentence = f"{computation.name} reads {', '.join(computation.inputs)}; its workers must claim again"
    return answer(args, record, sentence)


def drop(lw: Client, args: argparse.Namespace) -> int:
    """Take a computation out of the graph."""
    question = f"{args.name} leaves the graph for good, with its history and its tasks."
    if not args.yes and not agreed(question, args):
        return 1
    incarnation = lw.drop(args.name, args.force)
    record = {"computation": args.name, "dropped": True, "incarnation": incarnation}
    return answer(args, record, f"dropped {args.name}, in incarnation {incarnation}")


def slices(lw: Client, args: argparse.Namespace) -> int:
    """List the slices of a computation, or cut one in two."""
    if args.action == "split":
        new_slice = lw.split_slice(args.slice, args.at)
        cut = {"slice": args.slice, "new": new_slice.name, "start": new_slice.start.hex(), "end": new_slice.end.hex()}
        sentence = f"{new_slice.name} has the keys of {args.slice} from 0x{new_slice.start.hex()} on; their workers must claim again"
        return answer(args, cut, sentence)
    graph, parts = lw.topology().computations, lw.slices(args.name)
    sources = {part.name: graph[part.name].slice_source if part.name in graph else "" for part in parts}
    records: list[dict[str, str | None]] = []
    rows = [("SLICE", "FIRST KEY", "FIRST KEY AFTER", "")]
    for name, start, end in parts:
        source = sources[name]
        records.append({"slice": name, "start": start.hex(), "end": end.hex(), "source": source or None})
        rows.append((name, _edge(start), _edge(end), f"taken over from {source}" if source else ""))
    return answer(args, {"computation": args.name, "slices": records}, render.table(rows))


def _edge(key: bytes) -> str:
    return f"0x{key.hex()}" if key else "-"


def shards(lw: Client, args: argparse.Namespace) -> int:
    """List the shards."""
    shards_shown = _inside(lw.shards(), args)
    return answer(args, shards_record(shards_shown), shards_table(shards_shown))


def _inside(shards: Shards, args: argparse.Namespace) -> Shards:
    """Return the shards with only those of their computations that are in the namespace."""

    def in_namespace(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if _is_inside(name, args))

    pins = {name: address for name, address in shards.pins.items() if _is_inside(name, args)}
    inside = tuple(replace(shard, computations=in_namespace(shard.computations)) for shard in shards)
    return replace(shards, shards=inside, pins=pins, unserved=in_namespace(shards.unserved))


def drain(lw: Client, args: argparse.Namespace) -> int:
    """Make a shard hand over what it serves, or cancel that."""
    shard = _shard(args.shard)
    lw.drain(shard, cancel=args.cancel)
    if args.cancel:
        record = drain_record(shard, (), draining=False)
        return answer(args, record, f"{shard} serves again, and takes back its computations")
    printed = ""
    deadline = time.monotonic() + (float("inf") if args.timeout is None else args.timeout)
    while True:
        shards = lw.shards()
        remaining = next((other.computations for other in shards if other.address == shard), ())
        record = drain_record(shard, remaining, draining=True)
        if (state := to_json(record) if args.json else handing_over(shard, remaining)) != printed:
            print(state, flush=True)
            printed = state
        if not remaining:
            return 0
        if not taken_by_others(shards):
            fix = "start another shard, or take a drain back with --cancel"
            nobody = errors.LowwaterError(
                f"no other shard can take over what {shard} serves: {fix}",
                reason="NO_OTHER_SHARD",
                metadata={"fix": fix},
            )
            return fail("drain", nobody, as_json=args.json, code=1)
        if not args.wait:
            return 1
        if time.monotonic() >= deadline:
            late = errors.Timeout(f"{handing_over(shard, remaining)}, and --timeout is over")
            return fail("drain", late, as_json=args.json, code=1)
        time.sleep(_ASK_SECONDS)


def _shard(named: str) -> str:
    """Return the address of a shard with its port, as `lowwater shards` shows it."""
    try:
        return with_port(named)
    except ValueError:
        return named  # the authority refuses it, and lists the shards


def pin(lw: Client, args: argparse.Namespace) -> int:
    """Pin a computation to a shard, or take the pin back."""
    shard = None if args.off else _shard(args.shard)
    lw.pin(args.name, shard)
    sentence = f"{args.name} is not pinned" if args.off else f"{args.name} is pinned to {shard}"
    return answer(args, {"computation": args.name, "shard": shard}, sentence)


COMMANDS: Final[dict[str, Callable[[Client, argparse.Namespace], int]]] = {
    "status": status,
    "watch": watch,
    "why": why,
    "promise": promise,
    "wait": wait,
    "complete": complete,
    "publish": _publish,
    "ranges": ranges,
    "history": history,
    "advise": _advise,
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
