"""Tasks and their leases over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowwater.v1 import tasks_pb2 as pb
from lowwater.v1 import tasks_pb2_grpc
from lowwater_authority.access.caller import holder
from lowwater_authority.core.requests import bad_field
from lowwater_authority.core.tasks import (
    DEFAULT_LEASE,
    NONCE_BYTES,
    GroupFigures,
    NewTask,
    Task,
    TaskGroup,
    TaskKey,
    TaskLease,
    TaskState,
)
from lowwater_authority.engine.task_master import TaskMaster
from lowwater_authority.rpc.codec import MAX_NAME, printable
from lowwater_authority.rpc.refusals import at_most, refusing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowwater_authority.core.tasks import TaskGrant
    from lowwater_authority.rpc.services import Context, Services
    from lowwater_authority.rpc.streams import Streams

MAX_WAIT_MILLIS: Final = 30_000
DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000


class TaskServicer(tasks_pb2_grpc.TaskServiceServicer):
    """See proto/lowwater/v1/tasks.proto."""

    def __init__(self, services: Services, streams: Streams) -> None:
        self.services = services
        self._master = TaskMaster(services.shard, streams.admission.task_waits)

    @refusing
    async def CreateGroup(self, request: pb.CreateGroupRequest, context: Context) -> pb.CreateGroupResponse:  # noqa: N802
        """Create a group of tasks."""
        group = TaskGroup(
            request.group,
            request.every_micros,
            request.start_micros,
            request.lease_micros or DEFAULT_LEASE,
            request.configuration,
        )
        await self.services.confirm(request.computation)  # this shard learns of a new incarnation first
        figures = await self._master.create_group(request.computation, group, request.incarnation)
        return pb.CreateGroupResponse(server_token=self.services.token, group=group_message(*figures))

    @refusing
    async def ConfigureGroup(self, request: pb.ConfigureGroupRequest, context: Context) -> pb.ConfigureGroupResponse:  # noqa: N802
        """Change the configuration of a group."""
        await self.services.confirm(request.computation)
        figures = await self._master.configure(
            request.computation,
            request.group,
            request.configuration,
            request.configuration_version,
            request.incarnation,
        )
        return pb.ConfigureGroupResponse(group=group_message(*figures))

    @refusing
    async def CreateTasks(self, request: pb.CreateTasksRequest, context: Context) -> pb.CreateTasksResponse:  # noqa: N802
        """Create tasks."""
        await self.services.confirm(request.computation)
        tasks = new_tasks(request.tasks)
        await self._master.create(request.computation, request.group, tasks, request.incarnation)
        return pb.CreateTasksResponse(server_token=self.services.token)

    @refusing
    async def TakeTask(self, request: pb.TakeTaskRequest, context: Context) -> pb.TakeTaskResponse:  # noqa: N802
        """Lease a task."""
        wait = at_most("wait_millis", request.wait_millis, MAX_WAIT_MILLIS) / 1000
        worker = printable("worker", request.worker, MAX_NAME)
        await self.services.confirm(request.computation)
        granted = await self._master.take(
            request.computation,
            request.group,
            worker,
            request.nonce,
            wait=wait,
            leaving=self.services.leaving,
            who=holder(),
        )
        return granted_message(self.services.token, granted)

    @refusing
    async def RenewTask(self, request: pb.RenewTaskRequest, context: Context) -> pb.RenewTaskResponse:  # noqa: N802
        """Renew a lease."""
        granted = lease(request)
        await self.services.confirm(request.computation)
        return pb.RenewTaskResponse(lease_micros=await self._master.renew(request.computation, granted))

    @refusing
    async def CommitTask(self, request: pb.CommitTaskRequest, context: Context) -> pb.CommitTaskResponse:  # noqa: N802
        """Mark a task as done, and create its successors."""
        granted = lease(request)
        outputs = [printable(f"outputs[{i}]", output) for i, output in enumerate(request.outputs)]
        successors = new_tasks(request.successors)
        await self.services.confirm(request.computation)
        await self._master.commit(request.computation, granted, outputs, request.digest, successors)
        return pb.CommitTaskResponse()

    @refusing
    async def ReleaseTask(self, request: pb.ReleaseTaskRequest, context: Context) -> pb.ReleaseTaskResponse:  # noqa: N802
        """Release a lease, so that the task is ready again."""
        granted = lease(request)
        await self.services.confirm(request.computation)
        await self._master.release(request.computation, granted)
        return pb.ReleaseTaskResponse()

    @refusing
    async def ListTasks(self, request: pb.ListTasksRequest, context: Context) -> pb.ListTasksResponse:  # noqa: N802
        """Return the groups, or the tasks of one."""
        limit = at_most("page_size", request.page_size, MAX_PAGE) or DEFAULT_PAGE
        state = _state(request.state)
        await self.services.confirm(request.computation)
        response = pb.ListTasksResponse(server_token=self.services.token)
        if not request.group:
            incarnation, groups = await self._master.groups(request.computation)
            response.groups.extend(group_message(incarnation, figures) for figures in groups)
            return response
        incarnation, group, tasks, total = await self._master.tasks(request.computation, request.group, state, limit)
        response.groups.append(group_message(incarnation, group))
        response.tasks.extend(task_message(incarnation, group.name, task, offered=offered) for task, offered in tasks)
        response.total = total
        return response


def lease(request: Any) -> TaskLease:
    """Decode the lease of a request, which must name the deployment. Raises InvalidArgument."""
    if not request.server_token:
        raise bad_field("server_token", "is empty", "send the one that came with the lease")
    message = request.lease
    if len(message.nonce) != NONCE_BYTES:
        raise bad_field("lease.nonce", f"has {len(message.nonce)} bytes", "send the lease as it came")
    key = TaskKey(message.key.at_micros, message.key.name)
    return TaskLease(
        message.key.incarnation,
        message.key.group,
        key,
        message.version,
        message.configuration_version,
        message.epoch,
        message.nonce,
    )


def new_tasks(messages: Iterable[pb.NewTask]) -> list[NewTask]:
    """Decode tasks to create. The core checks them."""
    return [NewTask(TaskKey(task.at_micros, task.name), task.payload, task.group) for task in messages]


def granted_message(token: str, granted: TaskGrant | None) -> pb.TakeTaskResponse:
    """Encode a granted lease with its task; None: no task was ready."""
    if granted is None:
        return pb.TakeTaskResponse(server_token=token)
    lease_, task, configuration, micros = granted
    return pb.TakeTaskResponse(
        server_token=token,
        lease=pb.TaskLease(
            key=_key_message(lease_.incarnation, lease_.group, task.key),
            version=lease_.version,
            configuration_version=lease_.configuration_version,
            epoch=lease_.epoch,
            nonce=lease_.nonce,
        ),
        task=task_message(lease_.incarnation, lease_.group, task, offered=False),
        configuration=configuration,
        lease_micros=micros,
    )


def group_message(incarnation: int, figures: GroupFigures) -> pb.TaskGroup:
    """Encode the figures of a group."""
    return pb.TaskGroup(
        name=figures.name,
        every_micros=figures.every,
        start_micros=figures.start,
        lease_micros=figures.lease,
        configuration=figures.configuration,
        configuration_version=figures.configuration_version,
        mark_micros=figures.mark,
        closed_micros=figures.closed,
        ready=figures.ready,
        leased=figures.leased,
        done=figures.done,
        incarnation=incarnation,
    )


def task_message(incarnation: int, group: str, task: Task, *, offered: bool) -> pb.Task:
    """Encode a task."""
    return pb.Task(
        key=_key_message(incarnation, group, task.key),
        until_micros=task.until,
        payload=task.payload,
        version=task.version,
        state=pb.TaskState.ValueType(task.state),
        worker=task.worker,
        outputs=task.outputs,
        digest=task.digest,
        offered=offered,
    )


def _key_message(incarnation: int, group: str, key: TaskKey) -> pb.TaskKey:
    return pb.TaskKey(incarnation=incarnation, group=group, at_micros=key.at, name=key.name)


def _state(value: int) -> TaskState | None:
    if value not in (0, *TaskState):
        raise bad_field("state", f"is {value}", "1 for ready, 2 for leased, 3 for done, 0 for all")
    return TaskState(value) if value else None
