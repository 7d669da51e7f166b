"""Each of these breaks one sentence about tasks, in tests only, to show that a test would notice."""

from __future__ import annotations

from typing import Any

from lowwater import errors
from lowwater_authority.core import recovery, tasks
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.tasks import Task, TaskGroup, TaskLease, Tasks
from lowwater_authority.core.times import MAX
from lowwater_authority.core.topology import Spec
from lowwater_authority.records import journal_pb2 as pb
from tests.kit.planting import Part, bug


@bug("is_held_by", Task)
def versions_count_for_nothing(_: Part) -> Part:
    """Whoever had a lease on the task may commit it (rule 4)."""
    return lambda _, __: True


@bug("_leased", Tasks)
def the_clock_judges(part: Part) -> Part:
    """A lease that has run out counts no more, though nobody has taken the task."""

    def judged(self: Tasks, group: TaskGroup, lease: TaskLease) -> Task:
        task: Task = part(self, group, lease)
        if task.key in group.offers._lapsed:
            msg = "it has run out"
            raise errors.StaleLease(msg)
        return task

    return judged


@bug("apply", Tasks)
def configurations_do_not_revoke(apply: Part) -> Part:
    """A result of an older configuration is committed under the newer one."""

    def lenient(self: Tasks, step: pb.TaskStep) -> None:
        if step.WhichOneof("kind") == "configured":
            group = self.groups[step.group]
            group.configuration, group.configuration_version = step.configured.configuration, step.configured.version
            return
        apply(self, step)

    return lenient


@bug("commit", Tasks)
def repeats_are_refused(commit: Part) -> Part:
    """Whoever has not heard the answer is told that the lease counts no more (rule 8)."""

    def again(self: Tasks, lease: TaskLease, *outcome: Any, incarnation: int) -> None:
        self._leased(self._group_of(lease, incarnation), lease)
        commit(self, lease, *outcome, incarnation=incarnation)

    return again


@bug("_group_of", Tasks)
def old_lives_count(_: Part) -> Part:
    """A lease of the incarnation before is looked up among the tasks of this one (rule 9)."""
    return lambda self, lease, _: self.group(lease.group)


@bug("_step", Tasks)
def successors_are_not_journaled(step: Part) -> Part:
    """The tasks that follow are in memory, and the commit alone is in the log (rule 2)."""

    def apart(self: Tasks, step_: pb.TaskStep, *, strong: bool = True) -> None:
        step(self, step_, strong=strong)
        if step_.WhichOneof("kind") == "done":
            del step_.done.successors[:]

    return apart


@bug("mark_behind", TaskGroup)
def the_mark_passes_commits(_: Part) -> Part:
    """The newest commit is forgotten at once, where it was of old work (rule 8)."""

    def forgetful(self: TaskGroup, ended: Any, successors: Any) -> int:
        unfinished: list[int] = [key.at for key in (*self.ready, *self.leased, *successors) if key != ended]
        limit: int = min([*unfinished, self.next if self.every else MAX, ended.at + 1])
        return max(self.mark, limit)

    return forgetful


@bug("_may_remember", TaskGroup)
def commits_are_remembered_at_any_price(_: Part) -> Part:
    """A group that is full of what is done behind one commit of old work stays full (rule 7)."""
    return lambda _, __: 1 << 62


@bug("_group_message", tasks)
def snapshots_forget_intervals(message: Part) -> Part:
    """Which intervals have their tasks is not in the snapshot: they are made once more."""

    def forgetful(group: TaskGroup) -> pb.TaskGroup:
        group_: pb.TaskGroup = message(group)
        group_.next_micros = group.start
        return group_

    return forgetful


@snapshots_forget_intervals.also("check", TaskGroup)
def _unchecked(_: Part) -> Part:
    return lambda _: None


@bug("restarted", recovery)
def resets_keep_tasks(restarted: Part) -> Part:
    """A new incarnation goes on with the tasks of the one before (rule 9)."""

    def keeping(old: Computation, spec: Spec) -> Computation:
        new: Computation = restarted(old, spec)
        new.tasks = old.tasks
        return new

    return keeping


@resets_keep_tasks.also("check", Computation)
def _nothing(_: Part) -> Part:
    return lambda _: None


@bug("TASKS", tasks)
def groups_take_whatever_comes(_: Part) -> Part:
    """A group takes any number of tasks (rule 7)."""
    return 1 << 62


@bug("take_steps", Tasks)
def tasks_are_weak(take: Part) -> Part:
    """A record of tasks may be lost (rule 10)."""
    return lambda self: (take(self)[0], False)


ALL = (
    (4, versions_count_for_nothing),
    ("no clock judges", the_clock_judges),
    ("configuration", configurations_do_not_revoke),
    (8, repeats_are_refused),
    (9, old_lives_count),
    (2, successors_are_not_journaled),
    (8, the_mark_passes_commits),
    (7, commits_are_remembered_at_any_price),
    (7, groups_take_whatever_comes),
    ("once an interval", snapshots_forget_intervals),
    (9, resets_keep_tasks),
    (10, tasks_are_weak),
)
