"""Tasks and groups of tasks on the command line."""

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
from lowwater.cli.failures import answer, fail
from lowwater.cli.render import table, times
from lowwater.core.tasks import granted_of
from lowwater.core.text import duration
from lowwater.views import NewTask, TaskGroup, TaskState, TaskView

__all__ = ["tasks"]


def tasks(lw: Client, args: argparse.Namespace) -> int:
    """Run an action of `lowwater tasks`."""
    return _ACTIONS[args.action](lw, args)


def _list(lw: Client, args: argparse.Namespace) -> int:
    all_tasks = lw.tasks(args.name)
    if args.group is None:
        groups = all_tasks.groups()
        record: dict[str, Any] = {"computation": all_tasks.computation, "groups": list(map(_group_record, groups))}
        none = f"there is no group of tasks of {all_tasks.computation}"
        return answer(args, record, _groups_table(groups) if groups else none)
    page = all_tasks.list(args.group, state=None if args.state is None else TaskState(args.state), limit=args.limit)
    record = {"group": _group_record(page.group), "tasks": list(map(_record, page)), "total": page.total}
    rows = [("AT", "TASK", "STATE", "VERSION", "WORKER", "OUTPUTS")]
    for task in page:
        state = "offered again" if task.offered else task.state.value
        rows.append((str(task.at), _called(task), state, f"{task.version}", task.worker, " ".join(task.outputs)))
    more = page.total - len(page)
    text = table(rows) if len(page) else "there are no tasks"
    return answer(args, record, text + (f"\nand {more} more; --limit shows more" if more > 0 else ""))


def _create_group(lw: Client, args: argparse.Namespace) -> int:
    group = lw.tasks(args.name).create_group(
        args.group,
        every=None if args.every is None else timedelta(seconds=args.every),
        start=args.start,
        lease=timedelta(seconds=args.lease),
        configuration=args.configuration.encode(),
    )
    return answer(args, _group_record(group), f"the group {group.name} of {group.computation} is there")


def _configure(lw: Client, args: argparse.Namespace) -> int:
    group = lw.tasks(args.name).configure(args.group, args.configuration.encode(), args.version)
    sentence = (
        f"version {group.configuration_version} of the configuration of {group.name} is in force; all leases have ended"
    )
    return answer(args, _group_record(group), sentence)


def _create(lw: Client, args: argparse.Namespace) -> int:
    lw.tasks(args.name).create(args.group, [NewTask(args.task, args.at, args.payload.encode())])
    record = {"group": args.group, "name": args.task, **times("at", args.at)}
    return answer(args, record, f"the task {args.task} is there")


def _take(lw: Client, args: argparse.Namespace) -> int:
    lease = lw.tasks(args.name).take(args.group, worker=args.worker, wait=args.wait)
    if lease is None:
        return fail("tasks", errors.Timeout("there is no task to take"), as_json=args.json, code=1)
    print(lease.token)
    return 0


def _output(lw: Client, args: argparse.Namespace) -> int:
    name = _lease(lw, args).output(args.part)
    return answer(args, {"output": name}, name)


def _renew(lw: Client, args: argparse.Namespace) -> int:
    lease = _lease(lw, args)
    lease.renew()
    record = {"lease_seconds": lease.lasts.total_seconds()}
    return answer(args, record, f"no other worker is offered it for {duration(lease.lasts.total_seconds())}")


def _done(lw: Client, args: argparse.Namespace) -> int:
    lease = _lease(lw, args)
    lease.commit(args.output, digest=args.digest)
    return answer(args, {"outputs": args.output}, f"{_called(lease.task)} is done")


def _release(lw: Client, args: argparse.Namespace) -> int:
    lease = _lease(lw, args)
    lease.release()
    return answer(args, {"released": True}, f"{_called(lease.task)} is given back")


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
    """Return the lease in a file or on standard input."""
    fix = "name the file with the output of `lowwater tasks take`, or - for standard input"
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


def _called(task: TaskView) -> str:
    return task.name or f"{task.at} to {'the end' if task.until.finished else task.until}"


def _groups_table(groups: tuple[TaskGroup, ...]) -> str:
    rows = [("GROUP", "EVERY", "READY", "LEASED", "DONE", "CLOSED TO", "CONFIGURATION")]
    for group in groups:
        every = "" if group.every is None else duration(group.every.total_seconds())
        counts = (f"{group.ready}", f"{group.leased}", f"{group.done}")
        rows.append((group.name, every, *counts, _closed(group), f"version {group.configuration_version}"))
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
