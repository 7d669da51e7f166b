"""An oracle of leases and tasks, as plain as possible: lists and dicts, one event at a time, nothing kept sorted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MIN = -(2**63)
MAX = 2**63 - 1


class Refused(Exception):
    """A request was refused and changed nothing; the first argument is the reason."""


@dataclass
class Sizes:
    groups: int = 3
    tasks: int = 8
    open: int = 3
    remembered: int = 3
    payload: int = 1


@dataclass
class Group:
    every: int
    start: int
    lease: int
    configuration: bytes
    created_with: bytes
    version: int = 1
    passed: int = 0
    mark: int = MIN
    tasks: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    commits: list[tuple[int, str]] = field(default_factory=list)
    due: dict[tuple[int, str], int] = field(default_factory=dict)

    def unfinished(self) -> list[tuple[int, str]]:
        return [key for key, task in self.tasks.items() if task["state"] != "DONE"]


class TaskOracle:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.low = MIN
        self.incarnation = 1
        self.epoch = 1
        self.groups: dict[str, Group] = {}
        self.saved: Any = None
        self.saved_state: Any = {}
        self.settle()

    def settle(self) -> bool:
        """All that was said is durable. The intervals that the watermark has passed get their tasks, one after the other.

        Return whether anybody was answered since the last time: what nobody was told may be lost.
        """
        answered: bool = self.state() != self.saved_state
        for group in self.groups.values():
            if not group.every:
                continue
            while (
                len(group.unfinished()) < self.sizes.open
                and len(group.tasks) < self.sizes.tasks
                and group.passed != MAX
            ):
                end = group.passed + group.every
                if self.low == MAX:
                    end = MAX
                elif end > self.low:
                    break
                group.tasks[group.passed, ""] = new(b"", end)
                group.passed = end
        self.saved = copy.deepcopy((self.low, self.incarnation, self.groups))
        self.saved_state = copy.deepcopy(self.state())
        return answered

    def crash(self) -> None:
        self.low, self.incarnation, self.groups = copy.deepcopy(self.saved)
        self.epoch += 1
        for group in self.groups.values():
            group.due = {}

    def reset(self) -> None:
        self.low = MIN
        self.incarnation += 1
        for group in self.groups.values():
            group.tasks, group.commits, group.due = {}, [], {}
            group.passed, group.mark = group.start, MIN
        self.settle()

    def create_group(self, name: str, every: int, start: int, lease: int, configuration: bytes) -> int:
        group = self.groups.get(name)
        if group is not None:
            if (group.every, group.start, group.lease) != (every, start, lease):
                raise Refused("REGISTRATION_CONFLICT")
            if configuration not in (group.configuration, group.created_with):
                raise Refused("REGISTRATION_CONFLICT")
            return group.version
        if len(self.groups) == self.sizes.groups:
            raise Refused("OVERLOADED")
        self.groups[name] = Group(every, start, lease, configuration, configuration, passed=start)
        return 1

    def configure(self, name: str, configuration: bytes, version: int) -> int:
        group = self.group(name)
        if group.version == version + 1 and group.configuration == configuration:
            return group.version
        if group.version != version:
            raise Refused("TASK_CONFLICT")
        group.configuration, group.version = configuration, version + 1
        for key, task in group.tasks.items():
            if task["state"] == "LEASED":
                self.give_back(group, key)
        return group.version

    def create(
        self, name: str, tasks: list[tuple[str, int, str, bytes]], then: Callable[[], None] = lambda: None
    ) -> None:
        """``tasks``: group, or "" for this one; event time; name; payload. ``then``: what the same step does, before it is looked for room."""
        before = copy.deepcopy(self.groups)
        try:
            for group_name, at, called, payload in tasks:
                group = self.group(group_name or name)
                if group.every:
                    raise Refused("INVALID_ARGUMENT")
                if len(payload) > self.sizes.payload:
                    raise Refused("INVALID_ARGUMENT")
                if (at, called) in group.tasks:
                    if group.tasks[at, called]["payload"] != payload:
                        raise Refused("TASK_CONFLICT")
                elif at < group.mark:
                    raise Refused("BELOW_MARK")
                else:
                    group.tasks[at, called] = new(payload, at)
            then()
            if any(len(group.tasks) > self.sizes.tasks for group in self.groups.values()):
                raise Refused("OVERLOADED")
        except Refused:
            self.groups = before
            raise

    def take(self, name: str, worker: str, nonce: bytes, now: int) -> tuple[int, str, int] | None:
        group = self.group(name)
        for key, task in group.tasks.items():
            if task["state"] == "LEASED" and task["nonce"] == nonce:
                return (*key, task["version"])
        free = [key for key, task in group.tasks.items() if task["state"] == "READY"]
        for key, task in group.tasks.items():
            if task["state"] == "LEASED" and group.due.setdefault(key, now + group.lease) <= now:
                free.append(key)
        if not free:
            return None
        key = min(free)
        task = group.tasks[key]
        if task["state"] == "LEASED":
            self.give_back(group, key)
        task.update(state="LEASED", version=task["version"] + 1, worker=worker, nonce=nonce, epoch=self.epoch)
        group.due[key] = now + group.lease
        return (*key, task["version"])

    def look(self, name: str, now: int) -> int:
        group = self.group(name)
        leased = [key for key, task in group.tasks.items() if task["state"] == "LEASED"]
        return sum(group.due.setdefault(key, now + group.lease) <= now for key in leased)

    def renew(self, lease: Any, now: int) -> None:
        group, key = self.leased_task(lease)
        group.due[key] = now + group.lease

    def release(self, lease: Any) -> None:
        self.of_this_life(lease)
        group = self.group(lease.group)
        task = group.tasks.get((lease.key.at, lease.key.name))
        if (
            task is not None
            and task["state"] == "READY"
            and task["version"] == lease.version + 1
            and (task["nonce"], task["epoch"]) == (lease.nonce, lease.epoch)
        ):
            return
        group, key = self.leased_task(lease)
        self.give_back(group, key)

    def commit(self, lease: Any, outputs: list[str], successors: list[tuple[str, int, str, bytes]]) -> None:
        self.of_this_life(lease)
        request = (lease.configuration_version, outputs, successors)
        task = self.group(lease.group).tasks.get((lease.key.at, lease.key.name))
        if task is not None and task["state"] == "DONE" and same(task, lease):
            if task["asked"] != request:
                raise Refused("TASK_CONFLICT")
            return
        group, key = self.leased_task(lease)
        self.create(lease.group, successors, lambda: self.end(group, key, outputs, request))

    def end(self, group: Group, key: tuple[int, str], outputs: list[str], request: Any) -> None:
        group.tasks[key].update(state="DONE", outputs=outputs, asked=request)
        group.due.pop(key, None)
        group.commits.append(key)
        limit = min([at for at, _ in group.unfinished()] + [group.passed if group.every else MAX])
        if len(group.commits) > self.sizes.remembered:
            self.forget(group, min([limit, *(at for at, _ in group.commits[-self.sizes.remembered :])]))
        room = self.sizes.tasks - len(group.unfinished())
        while len(group.commits) > max(room - self.sizes.remembered, min(room, self.sizes.remembered)):
            oldest = min(group.tasks)[0]
            if oldest >= limit:
                break
            self.forget(group, oldest + 1)

    def forget(self, group: Group, mark: int) -> None:
        group.mark = max(group.mark, mark)
        group.tasks = {key: task for key, task in group.tasks.items() if key[0] >= group.mark}
        group.commits = [key for key in group.commits if key in group.tasks]

    def group(self, name: str) -> Group:
        if name not in self.groups:
            raise Refused("UNKNOWN_GROUP")
        return self.groups[name]

    def of_this_life(self, lease: Any) -> None:
        if lease.incarnation != self.incarnation:
            raise Refused("INCARNATION_CHANGED")

    def leased_task(self, lease: Any) -> tuple[Group, tuple[int, str]]:
        self.of_this_life(lease)
        group, key = self.group(lease.group), (lease.key.at, lease.key.name)
        if key not in group.tasks:
            raise Refused("BELOW_MARK" if key[0] < group.mark else "STALE_LEASE")
        task = group.tasks[key]
        if task["state"] != "LEASED" or not same(task, lease) or group.version != lease.configuration_version:
            raise Refused("STALE_LEASE")
        return group, key

    def give_back(self, group: Group, key: tuple[int, str]) -> None:
        task = group.tasks[key]
        task.update(state="READY", version=task["version"] + 1)
        group.due.pop(key, None)

    def state(self) -> Any:
        return {
            name: (
                group.version,
                group.passed,
                group.mark,
                {
                    key: (task["state"], task["version"], task["worker"], task["nonce"], task["outputs"])
                    for key, task in group.tasks.items()
                },
            )
            for name, group in self.groups.items()
        }


def new(payload: bytes, until: int) -> dict[str, Any]:
    return {
        "state": "READY",
        "version": 1,
        "payload": payload,
        "until": until,
        "worker": "",
        "nonce": b"",
        "epoch": 0,
        "outputs": [],
        "asked": None,
    }


def same(task: dict[str, Any], lease: Any) -> bool:
    return (task["version"], task["epoch"], task["nonce"]) == (lease.version, lease.epoch, lease.nonce)
