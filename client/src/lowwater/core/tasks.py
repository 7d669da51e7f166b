"""Calls about leases and tasks: their requests, and the conversion of the answers. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from lowwater import errors
from lowwater.core import checks
from lowwater.core.call import Call, Stubs
from lowwater.core.calls import Calls
from lowwater.core.intervals import first_start
from lowwater.v1 import tasks_pb2 as pb
from lowwater.views import NewTask, TaskGroup, TaskList, TaskState, TaskView
from lowwater.watermark import EventTime, Watermark, to_micros

__all__ = ["Granted", "TaskCalls", "WAIT_SHARE", "granted_of", "output_name", "token_of"]

Result = TypeVar("Result")

WAIT_SHARE: Final = 0.25
"""Share of a call's time that the authority may use to wait for a task: the rest is for the way,
and for another shard."""

_MOST_WAIT_MILLIS: Final = 30_000
"""Most milliseconds of such a wait that the authority accepts."""

_MICROSECOND: Final = timedelta(microseconds=1)
_LENGTHS: Final = (timedelta(seconds=1), timedelta(days=366))
_LEASES: Final = (timedelta(seconds=1), timedelta(days=7))
_STATES: Final = {
    TaskState.READY: pb.TASK_STATE_READY,
    TaskState.LEASED: pb.TASK_STATE_LEASED,
    TaskState.DONE: pb.TASK_STATE_DONE,
}


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease that the authority has granted."""

    server_token: str
    computation: str
    lease: pb.TaskLease
    task: TaskView
    configuration: bytes
    lasts: timedelta

    @property
    def identity(self) -> dict[str, Any]:
        """Fields of every request about the lease."""
        return {"server_token": self.server_token, "computation": self.computation, "lease": self.lease}


class TaskCalls:
    """Describes the calls about the tasks of one computation."""

    def __init__(self, calls: Calls, computation: str) -> None:
        self._calls = calls
        self._computation = computation

    def _call(
        self, method: Callable[[Stubs], Callable[..., Any]], request: Any, take: Callable[[Any], Result]
    ) -> Call[Result]:
        request.computation = self._computation
        return self._calls.call(method, request, take, self._computation)

    def _group(self, answer: pb.CreateGroupResponse | pb.ConfigureGroupResponse) -> TaskGroup:
        return _group(self._computation, answer.group)

    def create_group(
        self, group: str, every: timedelta | None, start: EventTime | None, lease: timedelta, configuration: bytes
    ) -> Call[TaskGroup]:
        """Create a group."""
        if (every is None) != (start is None):
            raise checks.refused(
                "start", start, "the event time at which the first interval begins, with every and only with it"
            )
        request = pb.CreateGroupRequest(
            group=checks.text("group", group),
            every_micros=0 if every is None else checks.micros("every", every, *_LENGTHS),
            start_micros=0 if start is None or every is None else to_micros(first_start(start, every)),
            lease_micros=checks.micros("lease", lease, *_LEASES),
            configuration=checks.key("configuration", configuration),
        )
        return self._call(lambda stubs: stubs.tasks.CreateGroup, request, self._group)

    def configure(self, group: str, configuration: bytes, version: int, incarnation: int) -> Call[TaskGroup]:
        """Change the configuration of a group."""
        request = pb.ConfigureGroupRequest(
            group=checks.text("group", group),
            configuration=checks.key("configuration", configuration),
            configuration_version=checks.count("version", version, 64),
            incarnation=checks.count("incarnation", incarnation, 64),
        )
        return self._call(lambda stubs: stubs.tasks.ConfigureGroup, request, self._group)

    def create(self, group: str, tasks: Iterable[NewTask], incarnation: int) -> Call[None]:
        """Create tasks."""
        request = pb.CreateTasksRequest(
            group=checks.text("group", group),
            tasks=_new_tasks("tasks", tasks),
            incarnation=checks.count("incarnation", incarnation, 64),
        )
        return self._call(lambda stubs: stubs.tasks.CreateTasks, request, lambda _: None)

    def take(self, group: str, worker: str, nonce: bytes, wait: float) -> Call[Granted | None]:
        """Take a task, waiting ``wait`` seconds at the authority; ``nonce`` makes it repeatable."""
        request = pb.TakeTaskRequest(
            group=checks.text("group", group),
            worker=checks.text("worker", worker),
            nonce=nonce,
            wait_millis=min(int(wait * 1000), _MOST_WAIT_MILLIS),
        )

        def take(answer: pb.TakeTaskResponse) -> Granted | None:
            if not answer.HasField("lease"):
                return None
            return Granted(
                answer.server_token,
                self._computation,
                answer.lease,
                _task(answer.task),
                answer.configuration,
                timedelta(microseconds=answer.lease_micros),
            )

        return self._call(lambda stubs: stubs.tasks.TakeTask, request, take)

    def list(self, group: str, state: TaskState | None, limit: int) -> Call[TaskList]:
        """List the tasks of a group."""
        value: Any = state
        if state is not None and value not in _STATES:
            raise checks.refused("state", value, "a TaskState, or None for all")
        request = pb.ListTasksRequest(
            group=checks.text("group", group),
            state=pb.TASK_STATE_UNSPECIFIED if state is None else _STATES[state],
            page_size=checks.count("limit", limit, 32, least=1),
        )
        if not group:
            raise checks.refused("group", group, "the name of a group")

        def take(answer: pb.ListTasksResponse) -> TaskList:
            [group_message] = answer.groups
            return TaskList(_group(self._computation, group_message), tuple(map(_task, answer.tasks)), answer.total)

        return self._call(lambda stubs: stubs.tasks.ListTasks, request, take)

    def groups(self) -> Call[tuple[TaskGroup, ...]]:
        """List the groups."""

        def take(answer: pb.ListTasksResponse) -> tuple[TaskGroup, ...]:
            return tuple(_group(self._computation, message) for message in answer.groups)

        return self._call(lambda stubs: stubs.tasks.ListTasks, pb.ListTasksRequest(), take)


# -- leases ----------------------------------------------------------------------------------------


def renew(granted: Granted) -> Call[timedelta]:
    """Renew a lease."""

    def take(answer: pb.RenewTaskResponse) -> timedelta:
        return timedelta(microseconds=answer.lease_micros)

    request = pb.RenewTaskRequest(**granted.identity)
    return Call(lambda stubs: stubs.tasks.RenewTask, request, take, granted.computation)


def release(granted: Granted) -> Call[None]:
    """Release a lease."""
    request = pb.ReleaseTaskRequest(**granted.identity)
    return Call(lambda stubs: stubs.tasks.ReleaseTask, request, lambda _: None, granted.computation)


def commit(granted: Granted, outputs: Iterable[str], digest: bytes, successors: Iterable[NewTask]) -> Call[None]:
    """Commit a task."""
    request = pb.CommitTaskRequest(
        **granted.identity,
        outputs=[checks.text(f"outputs[{i}]", output) for i, output in enumerate(checks.names("outputs", outputs))],
        digest=checks.key("digest", digest),
        successors=_new_tasks("successors", successors),
    )
    return Call(lambda stubs: stubs.tasks.CommitTask, request, lambda _: None, granted.computation)


def output_name(granted: Granted, part: str) -> str:
    """Return a name for an output that no other lease uses: group, task, version and nonce."""
    task, lease = granted.task, granted.lease
    name = task.name or str(task.at).replace(":", "")
    return "/".join([task.group, name, f"{lease.version}-{lease.nonce.hex()}", checks.text("part", part)])


def token_of(granted: Granted) -> str:
    """Return a lease as one line of JSON, with which another process can continue."""
    lease, task = granted.lease, granted.task
    return json.dumps(
        {
            "server_token": granted.server_token,
            "computation": granted.computation,
            "incarnation": lease.key.incarnation,
            "group": lease.key.group,
            "name": lease.key.name,
            "at_micros": lease.key.at_micros,
            "until_micros": task.until.micros,
            "version": lease.version,
            "configuration_version": lease.configuration_version,
            "epoch": lease.epoch,
            "nonce": lease.nonce.hex(),
            "worker": task.worker,
            "payload": task.payload.hex(),
            "configuration": granted.configuration.hex(),
            "lease_micros": granted.lasts // _MICROSECOND,
        }
    )


def granted_of(token: str) -> Granted:
    """Return the lease of a token. Raises InvalidArgument for any other text."""
    try:
        fields = json.loads(checks.text("token", token))
        key = pb.TaskKey(
            incarnation=fields["incarnation"], group=fields["group"], at_micros=fields["at_micros"], name=fields["name"]
        )
        lease = pb.TaskLease(
            key=key,
            version=fields["version"],
            configuration_version=fields["configuration_version"],
            epoch=fields["epoch"],
            nonce=bytes.fromhex(fields["nonce"]),
        )
        task = TaskView(
            key.group,
            key.name,
            Watermark(key.at_micros),
            Watermark(fields["until_micros"]),
            bytes.fromhex(fields["payload"]),
            lease.version,
            TaskState.LEASED,
            fields["worker"],
            (),
            b"",
            offered=False,
        )
        lasts = timedelta(microseconds=fields["lease_micros"])
        return Granted(
            fields["server_token"], fields["computation"], lease, task, bytes.fromhex(fields["configuration"]), lasts
        )
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, errors.InvalidArgument):
            raise
        raise checks.refused("token", token, "the text of lease.token, or of `lowwater tasks take`") from error


# -- from the wire ---------------------------------------------------------------------------------


def _group(computation: str, message: pb.TaskGroup) -> TaskGroup:
    return TaskGroup(
        computation,
        message.name,
        message.incarnation,
        timedelta(microseconds=message.every_micros) if message.every_micros else None,
        Watermark(message.start_micros) if message.every_micros else None,
        timedelta(microseconds=message.lease_micros),
        message.configuration,
        message.configuration_version,
        Watermark(message.mark_micros),
        Watermark(message.closed_micros),
        message.ready,
        message.leased,
        message.done,
    )


def _task(message: pb.Task) -> TaskView:
    states = {number: state for state, number in _STATES.items()}
    return TaskView(
        message.key.group,
        message.key.name,
        Watermark(message.key.at_micros),
        Watermark(message.until_micros),
        message.payload,
        message.version,
        states.get(message.state, TaskState.READY),
        message.worker,
        tuple(message.outputs),
        message.digest,
        message.offered,
    )


# -- to the wire -----------------------------------------------------------------------------------


def _new_tasks(field: str, tasks: Iterable[NewTask]) -> list[pb.NewTask]:
    return [_new_task(f"{field}[{i}]", task) for i, task in enumerate(checks.listed(field, tasks))]


def _new_task(field: str, task: Any) -> pb.NewTask:
    if not isinstance(task, NewTask):
        raise checks.refused(field, task, "a NewTask")
    return pb.NewTask(
        group=checks.text(f"{field}.group", task.group),
        at_micros=to_micros(task.at),
        name=checks.text(f"{field}.name", task.name),
        payload=checks.key(f"{field}.payload", task.payload),
    )
