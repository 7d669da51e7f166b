"""Groups of tasks, their tasks, and what is done to them from a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from lowwater import errors
from lowwater._sync.client import Client
from lowwater._sync.tasks import TaskLease
from lowwater.cli.failures import fail
from lowwater.cli.render import table, times, to_json
from lowwater.core.tasks import granted_of
from lowwater.core.text import duration
from lowwater.views import NewTask, TaskGroup, TaskState, TaskView

__all__ = ["tasks"]


def tasks(lw: Client, args: argparse.Namespace) -> int:
    """Do what was asked of tasks."""
    return _ACTIONS[args.action](lw, args)


def _list(lw: Client, args: argparse.Namespace) -> int:
    of = lw.tasks(args.name)
    if args.group is None:
        groups = of.groups()
        if args.json:
            print(to_json({"computation": of.computation, "groups": [_group_record(each) for each in groups]}))
        else:
            print(_groups_table(groups) if groups else f"no group of tasks hangs under {of.computation}")
        return 0
    found = of.list(args.group, state=None if args.state is None else TaskState(args.state), limit=args.limit)
    if args.json:
        record = {"group": _group_record(found.group), "tasks": [_record(each) for each in found], "total": found.total}
        print(to_json(record))
        return 0
    rows = [("AT", "TASK", "STATE", "VERSION", "WORKER", "OUTPUTS")]
    for each in found:
        state = "offered again" if each.offered else each.state.value
        rows.append((str(each.at), _called(each), state, f"{each.version}", each.worker, " ".join(each.outputs)))
    print(table(rows) if len(found) else "there are none")
    if found.total > len(found):
        print(f"and {found.total - len(found)} more; --limit shows more")
    return 0


def _create_group(lw: Client, args: argparse.Namespace) -> int:
    made = lw.tasks(args.name).create_group(
        args.group,
        every=None if args.every is None else timedelta(seconds=args.every),
        start=args.start,
        lease=timedelta(seconds=args.lease),
        configuration=args.configuration.encode(),
    )
    return _say(args, _group_record(made), f"the group {made.name} hangs under {made.computation}")


def _configure(lw: Client, args: argparse.Namespace) -> int:
    made = lw.tasks(args.name).configure(args.group, args.configuration.encode(), args.version)
    said = (
        f"version {made.configuration_version} of the configuration of {made.name} is in force; all leases have ended"
    )
    return _say(args, _group_record(made), said)


def _create(lw: Client, args: argparse.Namespace) -> int:
    lw.tasks(args.name).create(args.group, [NewTask(args.task, args.at, args.payload.encode())])
    record = {"group": args.group, "name": args.task, **times("at", args.at)}
    return _say(args, record, f"the task {args.task} is there")


def _take(lw: Client, args: argparse.Namespace) -> int:
    lease = lw.tasks(args.name).take(args.group, worker=args.worker, wait=args.wait)
    if lease is None:
        return fail("tasks", errors.Timeout("no task is to be had"), as_json=args.json, code=1)
    print(lease.token)
    return 0


def _output(lw: Client, args: argparse.Namespace) -> int:
    name = _lease(lw, args).output(args.part)
    return _say(args, {"output": name}, name)


def _renew(lw: Client, args: argparse.Namespace) -> int:
    lease = _lease(lw, args)
    lease.renew()
    record = {"lease_seconds": lease.lasts.total_seconds()}
    return _say(args, record, f"nobody else is offered it for {duration(lease.lasts.total_seconds())}")


def _done(lw: Client, args: argparse.Namespace) -> int:
    lease = _lease(lw, args)
    lease.commit(args.output, digest=args.digest)
    return _say(args, {"outputs": args.output}, f"{_called(lease.task)} is done")


def _release(lw: Client, args: argparse.Namespace) -> int:
    lease = _lease(lw, args)
    lease.release()
    return _say(args, {"released": True}, f"{_called(lease.task)} is given back")


_ACTIONS: Final[dict[str, Callable[[Client, argparse.Namespace], int]]] = {
    "list": _list,
    "create-group": _create_group,
    "configure": _configure,
    "create": _create,
    "take": _take,
    "output": _output,
    "renew": _renew,
    "done": _done,
    "release": _release,
}


def _lease(lw: Client, args: argparse.Namespace) -> TaskLease:
    """Return the lease of a file, or of standard input."""
    fix = "name the file that the output of `lowwater tasks take` went to, or - for standard input"
    about = {"file": args.lease, "fix": fix}
    try:
        token = sys.stdin.read() if args.lease == "-" else Path(args.lease).read_text("utf-8")
    except OSError as error:
        raise errors.InvalidArgument(f"{args.lease} cannot be read: {error.strerror}; {fix}", metadata=about) from None
    try:
        computation = granted_of(token).computation
    except errors.InvalidArgument:
        raise errors.InvalidArgument(f"{args.lease} holds no lease; {fix}", metadata=about) from None
    return lw.tasks(computation).resume(token)


def _say(args: argparse.Namespace, record: Any, said: str) -> int:
    print(to_json(record) if args.json else said)
    return 0


def _called(task: TaskView) -> str:
    return task.name or f"{task.at} to {'the end' if task.until.finished else task.until}"


def _groups_table(groups: tuple[TaskGroup, ...]) -> str:
    rows = [("GROUP", "EVERY", "READY", "LEASED", "DONE", "CLOSED TO", "CONFIGURATION")]
    for each in groups:
        every = "" if each.every is None else duration(each.every.total_seconds())
        counts = (f"{each.ready}", f"{each.leased}", f"{each.done}")
        rows.append((each.name, every, *counts, _closed(each), f"version {each.configuration_version}"))
    return table(rows)


def _closed(group: TaskGroup) -> str:
    if group.closed.finished and group.every is None:
        return "all are done"
    return str(group.closed)


def _group_record(group: TaskGroup) -> dict[str, Any]:
    return {
        "computation": group.computation,
        "group": group.name,
        "incarnation": group.incarnation,
        "every_seconds": None if group.every is None else group.every.total_seconds(),
        **({} if group.start is None else times("start", group.start)),
        "lease_seconds": group.lease.total_seconds(),
        "configuration": group.configuration.decode(errors="replace"),
        "configuration_version": group.configuration_version,
        **times("mark", group.mark),
        **times("closed", group.closed),
        "ready": group.ready,
        "leased": group.leased,
        "done": group.done,
    }


def _record(task: TaskView) -> dict[str, Any]:
    return {
        "name": task.name,
        **times("at", task.at),
        **times("until", task.until),
        "payload": task.payload.decode(errors="replace"),
        "version": task.version,
        "state": task.state.value,
        "offered": task.offered,
        "worker": task.worker,
        "outputs": list(task.outputs),
        "digest": task.digest.hex(),
    }
