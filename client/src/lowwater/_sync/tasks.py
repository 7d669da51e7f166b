# Made by scripts/generate_sync.py from _async/tasks.py: change that one.
"""The tasks of a computation, and the leases on them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from lowwater import errors
from lowwater._drive.threads.runtimes import Runtimes
from lowwater._sync.runtime import Runtime
from lowwater.core import checks, tasks
from lowwater.core.call import Call
from lowwater.core.surroundings import Surroundings
from lowwater.views import NewTask, TaskGroup, TaskList, TaskState, TaskView
from lowwater.watermark import EventTime

__all__ = ["TaskLease", "Tasks"]

Result = TypeVar("Result")


class TaskLease:
    """A worker's right to do a task, until another worker takes it. :meth:`Tasks.take` returns it.

    Its time limit takes nothing away: after it the task is offered to others, and while none has
    taken it the lease may still commit. Write each output under a name from :meth:`output`, so that
    it never collides with that of another lease. StaleLease means that another lease counts, and
    IncarnationChanged that the computation was reset: then the outputs are waste.
    """

    def __init__(self, runtimes: Runtimes[Runtime], granted: tasks.Granted) -> None:
        self._runtimes = runtimes
        self._granted = granted
        self.task: TaskView = granted.task
        """Task at the grant."""
        self.configuration: bytes = granted.configuration
        """Configuration of the group at the grant. A change of it ends the lease."""
        self.lasts: timedelta = granted.lasts
        """Time, from the grant or renewal, in which no other worker is offered the task."""

    @property
    def token(self) -> str:
        """Lease as a line of JSON, for :meth:`Tasks.resume` in another process. Protect it."""
        return tasks.token_of(self._granted)

    def output(self, part: str = "") -> str:
        """Return a name for an output, as a relative path, that no other lease on any task has."""
        return tasks.output_name(self._granted, part)

    def renew(self) -> None:
        """Offer the task to no other worker for the lease's time again. Raises StaleLease."""
        self._runtimes.get().call(tasks.renew(self._granted))

    def commit(self, outputs: Iterable[str] = (), *, digest: bytes = b"", successors: Iterable[NewTask] = ()) -> None:
        """Commit the task, together with the ``successors``; durable on return.

        Repeats are harmless.

        Args:
            outputs: Names from :meth:`output` of outputs that are written by now: at most 100, of
                2,048 bytes in all.
            digest: Digest of the outputs, of any kind.
            successors: Tasks to create in the same step.

        Raises StaleLease, IncarnationChanged, TaskConflict, BelowMark; Overloaded when there is no
        room for the successors.
        """
        self._runtimes.get().call(tasks.commit(self._granted, outputs, digest, successors))

    def release(self) -> None:
        """Release the task for other workers. Repeats are harmless. Raises StaleLease."""
        self._runtimes.get().call(tasks.release(self._granted))


class Tasks:
    """The groups of tasks of a computation; ``Client.tasks`` returns it."""

    def __init__(self, runtimes: Runtimes[Runtime], computation: str, surroundings: Surroundings) -> None:
        self.computation: str = computation
        self._runtimes = runtimes
        self._surroundings = surroundings

    @property
    def _calls(self) -> tasks.TaskCalls:
        return tasks.TaskCalls(self._runtimes.get().calls, self.computation)

    def _call(self, call: Call[Result]) -> Result:
        return self._runtimes.get().call(call)

    def create_group(
        self,
        group: str,
        *,
        every: timedelta | None = None,
        start: EventTime | None = None,
        lease: timedelta = timedelta(minutes=1),
        configuration: bytes = b"",
    ) -> TaskGroup:
        """Create a group; repeating it is harmless.

        Args:
            group: Name of the group.
            every: Length of its intervals. A task is created for each, in the step in which the low
                watermark passes its end; the last one, when the computation finishes, has no end.
                None: tasks are created by :meth:`create`.
            start: Start of the first interval.
            lease: Time in which a taken task is offered to no other worker.
            configuration: Bytes that all workers get with their tasks.

        Raises RegistrationConflict when the group exists with another definition, EstimatedInput
        for intervals of an estimated computation, IncarnationChanged when the computation is reset
        meanwhile, Overloaded beyond 16 groups.
        """
        runtime = self._runtimes.get()
        call = self._calls.create_group(group, every, start, lease, configuration)
        # A worker may have the right to report, and not to read.
        with suppress(errors.PermissionDenied):
            call.request.incarnation = runtime.call(runtime.calls.incarnation(self.computation))
        return runtime.call(call)

    def configure(self, group: str, configuration: bytes, version: int, *, incarnation: int = 0) -> TaskGroup:
        """Replace the configuration of ``version`` by another; all leases of the group end.

        Outputs of the old configuration no longer count. ``incarnation``: the only one of the
        computation in which it is changed; 0: any. Raises UnknownGroup, IncarnationChanged, and
        TaskConflict when another version is in force.
        """
        return self._call(self._calls.configure(group, configuration, version, incarnation))

    def create(self, group: str, new: Iterable[NewTask], *, incarnation: int = 0) -> None:
        """Create 1 to 100 tasks, all or none; durable on return. Existing ones stay as they are.

        ``incarnation``: the only one of the computation in which they are created; 0: any. Raises
        UnknownGroup, BelowMark for an event time below the group's mark, TaskConflict for an
        existing task with another payload, IncarnationChanged, InvalidArgument for a group with
        intervals, Overloaded beyond 4,096 tasks.
        """
        self._call(self._calls.create(group, new, incarnation))

    def take(self, group: str, *, worker: str = "", wait: float = 0.0) -> TaskLease | None:
        """Take the oldest task that is ready or whose lease has run out; None when there is none.

        ``wait``: seconds to wait for one at most. ``worker`` is for people, by default the host.
        Raises UnknownGroup.
        """
        time_left = checks.seconds("wait", wait)
        deadline = self._surroundings.monotonic() + time_left
        nonce = self._surroundings.randbytes(16)
        while True:
            runtime = self._runtimes.get()
            request_wait = min(time_left, runtime.connection.settings.timeout * tasks.WAIT_SHARE)
            call = self._calls.take(group, worker or self._surroundings.host(), nonce, request_wait)
            granted = runtime.call(call)
            time_left = deadline - self._surroundings.monotonic()
            if granted is not None:
                return TaskLease(self._runtimes, granted)
            if time_left <= 0:
                return None

    def resume(self, token: str) -> TaskLease:
        """Return the lease of a token. Raises InvalidArgument for another computation's."""
        granted = tasks.granted_of(token)
        if granted.computation != self.computation:
            raise checks.refused("token", granted.computation, f"a lease of {self.computation}")
        return TaskLease(self._runtimes, granted)

    def list(self, group: str, *, state: TaskState | None = None, limit: int = 100) -> TaskList:
        """List the ``limit`` oldest tasks of a group, at most 1,000. Raises UnknownGroup."""
        return self._call(self._calls.list(group, state, limit))

    def groups(self) -> tuple[TaskGroup, ...]:
        """List the groups, by name."""
        return self._call(self._calls.groups())
