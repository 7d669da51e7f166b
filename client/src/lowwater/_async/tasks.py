"""The tasks of a computation, and the leases on them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from lowwater import errors
from lowwater._async.runtime import Runtime
from lowwater._drive.tasks.runtimes import Runtimes
from lowwater.core import checks, tasks
from lowwater.core.surroundings import Surroundings
from lowwater.views import NewTask, TaskGroup, TaskList, TaskState, TaskView
from lowwater.watermark import EventTime

__all__ = ["TaskLease", "Tasks"]


class TaskLease:
    """The right to do a task, until another worker has it. :meth:`Tasks.take` gives it.

    No clock takes it away: when it runs out, others are offered the task, and what nobody has taken
    may still be committed. Whatever is written under it gets a name by :meth:`output`, so that it
    is never in the way of another lease. StaleLease says that another one counts, and
    IncarnationChanged that the computation was reset: then what was written is waste.
    """

    def __init__(self, runtimes: Runtimes[Runtime], granted: tasks.Granted) -> None:
        self._runtimes = runtimes
        self._granted = granted
        self.task: TaskView = granted.task
        """The task as it was granted."""
        self.configuration: bytes = granted.configuration
        """What the group's configuration was then. Once it is changed the lease counts no more."""
        self.lasts: timedelta = granted.lasts
        """For how long nobody else is offered the task, from when it was granted or renewed."""

    @property
    def token(self) -> str:
        """The lease as a line of JSON: another process goes on with it by :meth:`Tasks.resume`.

        It is a right; keep it as such.
        """
        return tasks.token_of(self._granted)

    def output(self, part: str = "") -> str:
        """Return a name for an output, as a relative path, that no other lease on any task has."""
        return tasks.output_name(self._granted, part)

    async def renew(self) -> None:
        """Have the task offered to nobody else for as long as at first, from now on.

        Raises StaleLease once another worker has it.
        """
        await self._runtimes.get().call(tasks.renew(self._granted))

    async def commit(
        self, outputs: Iterable[str] = (), *, digest: bytes = b"", successors: Iterable[NewTask] = ()
    ) -> None:
        """End the task; durable when it returns, together with the ``successors``.

        A repeat changes nothing.

        ``outputs`` are names by :meth:`output`, which must be there by now: at most 100, of 2,048
        bytes in all. ``digest`` says what they hold, in whatever way the program likes. Raises
        StaleLease, IncarnationChanged, TaskConflict, BelowMark; Overloaded when there is no room
        for the successors. Cancelled, it may or may not count: repeat it.
        """
        await self._runtimes.get().call(tasks.commit(self._granted, outputs, digest, successors))

    async def release(self) -> None:
        """Give the task back, for others to take at once.

        A repeat changes nothing until one has. Raises StaleLease.
        """
        await self._runtimes.get().call(tasks.release(self._granted))


class Tasks:
    """The groups of tasks that hang under a computation; ``Client.tasks`` gives it."""

    def __init__(self, runtimes: Runtimes[Runtime], computation: str, surroundings: Surroundings) -> None:
        self.computation: str = computation
        self._runtimes = runtimes
        self._surroundings = surroundings

    def _calls(self, runtime: Runtime) -> tasks.TaskCalls:
        return tasks.TaskCalls(runtime.calls, self.computation)

    async def create_group(
        self,
        group: str,
        *,
        every: timedelta | None = None,
        start: EventTime | None = None,
        lease: timedelta = timedelta(minutes=1),
        configuration: bytes = b"",
    ) -> TaskGroup:
        """Create a group; repeating it is harmless.

        With ``every``, a task is made for each interval of that length, from ``start`` on, in the
        same step in which the low watermark passes its end; the last one, when the computation
        finishes, has no end. Without it tasks are made by :meth:`create`. For the time of ``lease``
        a task that was taken is offered to nobody else. ``configuration`` is what all workers are
        to know. Raises RegistrationConflict when the group is there with another definition,
        EstimatedInput for intervals of a computation that nobody promises, IncarnationChanged when
        the computation is reset meanwhile, Overloaded beyond 16 groups.
        """
        runtime = self._runtimes.get()
        call = self._calls(runtime).create_group(group, every, start, lease, configuration)
        with suppress(errors.PermissionDenied):  # one who may report, and not read
            call.request.incarnation = await runtime.call(runtime.calls.incarnation(self.computation))
        return await runtime.call(call)

    async def configure(self, group: str, configuration: bytes, version: int, *, incarnation: int = 0) -> TaskGroup:
        """Give a group another configuration in place of that of ``version``.

        All leases of it end: nothing made with the old one counts any more.

        ``incarnation``: only in that one of the computation. Raises UnknownGroup,
        IncarnationChanged, and TaskConflict when another version is in force.
        """
        runtime = self._runtimes.get()
        return await runtime.call(self._calls(runtime).configure(group, configuration, version, incarnation))

    async def create(self, group: str, new: Iterable[NewTask], *, incarnation: int = 0) -> None:
        """Create tasks, 1 to 100, all of them or none; durable when it returns.

        Those that are there already, done or not, stay as they are.

        ``incarnation``: only for that one of the computation. Raises UnknownGroup, BelowMark for
        work before the group's mark, TaskConflict for a task that is there with another payload,
        IncarnationChanged, InvalidArgument for a group with intervals, Overloaded beyond 4,096
        tasks.
        """
        runtime = self._runtimes.get()
        await runtime.call(self._calls(runtime).create(group, new, incarnation))

    async def take(self, group: str, *, worker: str = "", wait: float = 0.0) -> TaskLease | None:
        """Take the oldest task that is ready or whose lease has run out, and wait for one at most ``wait`` seconds; None: there was none.

        ``worker`` is for people, by default the host. Raises UnknownGroup.
        """
        left = checks.seconds("wait", wait)
        deadline = self._surroundings.monotonic() + left
        nonce = self._surroundings.randbytes(16)
        while True:
            runtime = self._runtimes.get()
            asked = min(left, runtime.connection.settings.timeout * tasks.WAIT_SHARE)
            call = self._calls(runtime).take(group, worker or self._surroundings.host(), nonce, asked)
            granted = await runtime.call(call)
            left = deadline - self._surroundings.monotonic()
            if granted is not None:
                return TaskLease(self._runtimes, granted)
            if left <= 0:
                return None

    def resume(self, token: str) -> TaskLease:
        """Return the lease of a token, of whichever process.

        Raises InvalidArgument for what is none of this computation.
        """
        granted = tasks.granted_of(token)
        if granted.computation != self.computation:
            raise checks.refused("token", granted.computation, f"a lease of {self.computation}")
        return TaskLease(self._runtimes, granted)

    async def list(self, group: str, *, state: TaskState | None = None, limit: int = 100) -> TaskList:
        """List the oldest ``limit`` tasks of a group, at most 1,000; only those that stand so, if given. Raises UnknownGroup."""
        runtime = self._runtimes.get()
        return await runtime.call(self._calls(runtime).list(group, state, limit))

    async def groups(self) -> tuple[TaskGroup, ...]:
        """List the groups, by name."""
        runtime = self._runtimes.get()
        return await runtime.call(self._calls(runtime).groups())
