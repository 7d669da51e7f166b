"""Each of these breaks one sentence about tasks, in tests only, to show that a test would notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.core import recovery, tasks
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.tasks import NewTask, Task, TaskGroup, TaskLease, Tasks
from lowwater_authority.core.times import MAX
from lowwater_authority.core.topology import Spec
from lowwater_authority.records import journal_pb2 as pb


def versions_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had a lease on the task may commit it (rule 4)."""
    monkeypatch.setattr(Task, "is_held_by", lambda _, __: True)


def the_clock_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that has run out counts no more, though nobody has taken the task."""
    held = Tasks._held

    def judged(self: Tasks, group: TaskGroup, lease: TaskLease) -> Task:
        task = held(self, group, lease)
        if task.key in group.offers._lapsed:
            msg = "it has run out"
            raise errors.StaleLease(msg)
        return task

    monkeypatch.setattr(Tasks, "_held", judged)


def configurations_do_not_revoke(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made with an older configuration is committed under the newer one."""
    apply = Tasks.apply

    def lenient(self: Tasks, step: pb.TaskStep) -> None:
        if step.WhichOneof("kind") == "configured":
            group = self.groups[step.group]
            group.configuration, group.configuration_version = step.configured.configuration, step.configured.version
            return
        apply(self, step)

    monkeypatch.setattr(Tasks, "apply", lenient)


def repeats_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not heard the answer is told that the lease counts no more (rule 8)."""

    def again(
        self: Tasks,
        lease: TaskLease,
        outputs: Sequence[str],
        digest: bytes,
        successors: Sequence[NewTask],
        *,
        incarnation: int,
    ) -> None:
        self._held(self._group_of(lease, incarnation), lease)
        commit(self, lease, outputs, digest, successors, incarnation=incarnation)

    commit = Tasks.commit
    monkeypatch.setattr(Tasks, "commit", again)


def old_lives_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of the incarnation before is looked up among the tasks of this one (rule 9)."""
    monkeypatch.setattr(Tasks, "_group_of", lambda self, lease, _: self.group(lease.group))


def successors_are_not_journaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks that follow are in memory, and the commit alone is in the log (rule 2)."""
    step = Tasks._step

    def apart(self: Tasks, taken: pb.TaskStep, *, strong: bool = True) -> None:
        step(self, taken, strong=strong)
        if taken.WhichOneof("kind") == "done":
            del taken.done.successors[:]

    monkeypatch.setattr(Tasks, "_step", apart)


def the_mark_passes_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest commit is forgotten at once, where it was of old work (rule 8)."""

    def forgetful(self: TaskGroup, ended: Any, successors: Any) -> int:
        unfinished: list[int] = [key.at for key in (*self.ready, *self.leased, *successors) if key != ended]
        limit: int = min([*unfinished, self.next if self.every else MAX, ended.at + 1])
        return max(self.mark, limit)

    monkeypatch.setattr(TaskGroup, "mark_behind", forgetful)


def commits_are_remembered_at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is full of what is done behind one commit of old work stays full (rule 7)."""
    monkeypatch.setattr(TaskGroup, "_may_remember", lambda _, __: 1 << 62)


def snapshots_forget_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which intervals have their tasks is not in the snapshot: they are made once more."""
    message = tasks._group_message

    def forgetful(group: TaskGroup) -> pb.TaskGroup:
        made = message(group)
        made.next_micros = group.start
        return made

    monkeypatch.setattr(tasks, "_group_message", forgetful)
    monkeypatch.setattr(TaskGroup, "_check", lambda _: None)


def resets_keep_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new incarnation goes on with the tasks of the one before (rule 9)."""
    restarted = recovery.restarted

    def keeping(old: Computation, spec: Spec) -> Computation:
        new = restarted(old, spec)
        new.tasks = old.tasks
        return new

    monkeypatch.setattr(recovery, "restarted", keeping)
    monkeypatch.setattr(Computation, "_check", lambda _: None)


def groups_take_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody counts the tasks of a group (rule 7)."""
    monkeypatch.setattr(tasks, "TASKS", 1 << 62)


class WeakTasks(Computation):
    """A record of tasks may be lost (rule 10)."""

    def take_record(self, now: int) -> tuple[bytes, bool] | None:
        steps = self.tasks.changed
        taken = super().take_record(now)
        return taken if taken is None or not steps else (taken[0], False)


ALL = (
    (4, versions_count_for_nothing),
    ("no clock judges", the_clock_judges),
    ("configuration", configurations_do_not_revoke),
    (8, repeats_are_refused),
    (9, old_lives_count),
    (2, successors_are_not_journaled),
    (8, the_mark_passes_commits),
    (7, commits_are_remembered_at_any_price),
    ("once an interval", snapshots_forget_intervals),
    (9, resets_keep_tasks),
)
