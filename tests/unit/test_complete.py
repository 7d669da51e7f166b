"""A table's own versions say how far it is complete: against an oracle that knows every row that was ever written."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowwater.watermark import MIN
from lowwater_spark.complete.folder import WATERMARK, complete_folder
from lowwater_spark.complete.mark import (
    COMPLETE,
    ClaimEpoch,
    Completeness,
    History,
    Mark,
    Standing,
    Version,
    follow,
    read,
)
from lowwater_spark.complete.snapshots import said_of, snapshots_of
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.iceberg_log import Snapshot, Table, Written
from lowwater_spark.sources.versioned import app_id, writer_of

WRITERS = ("a", "b")

Row = tuple[str, int, int]
"""Who has written it, in which batch, and its stamp."""


class Refused(CheckpointMismatch):
    """The table has not what the checkpoint remembers, and the writer goes by that alone."""


@dataclass
class Stage:
    app: str
    life: int
    batch: int = -1
    remembered: int = -1
    """The newest batch that the checkpoint knows to be in the table."""
    through: int = 0
    """The time below which no row will be written any more."""
    declared: int = MIN
    """The promise of its newest version that was written under a claim."""


@dataclass
class World:
    """A table with versions that can be read while the log has them, and all rows that were ever written into it."""

    follow: Callable[..., tuple[Mark, str]] = follow
    read: Callable[..., Completeness] = read
    versions: list[Version] = field(default_factory=list)
    content: list[frozenset[Row]] = field(default_factory=list)
    """The rows after each version."""
    rows: set[Row] = field(default_factory=set)
    forgotten: int = 0
    harmed: bool = False
    stages: dict[str, list[Stage]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    """The last batch of each app, as the table has it."""
    lives: dict[str, int] = field(default_factory=dict)
    """The highest life under which each checkpoint has written."""

    def __post_init__(self) -> None:
        for name in WRITERS:
            self.begin(name)

    def begin(self, name: str) -> None:
        lives = self.stages.setdefault(name, [])
        life = max((stage.life for stage in lives), default=0) + 1
        lives.append(Stage(app_id(name, f"c{len(lives)}"), life))

    def log(self, number: int) -> Version | None:
        return self.versions[number] if number >= self.forgotten else None

    def history(self, lost: Mapping[str, str] = MappingProxyType({})) -> History:
        return History(len(self.versions) - 1, set(self.counted), self.log, lost)

    def look(self, stage: Stage, standing: Standing) -> tuple[Mark, object]:
        lost = {stage.app: "fewer"} if self.counted.get(stage.app, -1) < stage.remembered else {}
        return self.follow(stage.app, standing, self.history(lost))[0], None

    def accepts(self, stage: Stage, state: object) -> bool:
        return True

    def commit(self, version: Version, content: Collection[Row]) -> None:
        self.versions.append(version)
        self.content.append(frozenset(content))

    def append(self, stage: Stage, mark: Mark, rows: set[Row]) -> None:
        self.commit(Version({stage.app: mark}), self.now | rows)

    @property
    def now(self) -> frozenset[Row]:
        return self.content[-1] if self.content else frozenset()

    # -- what happens ------------------------------------------------------------------------------------------------

    def write(self, stage: Stage, advance: int, meanwhile: Iterator[tuple[str, int]], *, claimed: bool) -> None:
        low, life, batch = stage.through + advance, stage.life, stage.batch
        standing = Standing(low, ClaimEpoch(life, 1) if claimed else None)
        try:
            mark, state = self.look(stage, standing)
        except Refused:
            return
        except CheckpointMismatch:
            # Who is not claimed goes by the life in which it has written last.
            assert not claimed or any(other.life > life for other in self.stages[writer_of(stage.app)])
            return
        self.step(meanwhile)
        if stage.batch > batch or self.counted.get(stage.app, -1) > batch or not self.accepts(stage, state):
            return  # another run has written the batch: the table lets one of them through
        stage.batch += 1
        new = {(stage.app, stage.batch, stage.through), (stage.app, stage.batch, low)}
        self.rows |= new
        stage.through = low
        if claimed:
            stage.declared = low
            self.lives[stage.app] = max(life, self.lives.get(stage.app, 0))
        self.counted[stage.app] = stage.batch
        stage.remembered = stage.batch
        self.append(stage, mark, new)

    def step(self, events: Iterator[tuple[str, int]]) -> None:
        """One event; one that takes another in takes it from the same list."""
        what, n = next(events, ("nothing", 0))
        name = WRITERS[n % 2]
        lives = self.stages[name]
        if what in ("write", "unclaimed"):
            self.write(lives[-1], n, events if n % 3 == 0 else iter(()), claimed=what == "write")
        elif what == "zombie":
            # The authority lets nobody say anything new whose claim is over. So it must have been asked before another began.
            stage = lives[n % len(lives)]
            self.write(stage, n, events if n % 3 == 0 else iter(()), claimed=stage is lives[-1])
        elif what == "anew":
            self.begin(name)
        elif what == "back":
            # An older checkpoint takes the computation over again.
            lives.append(lives.pop(n % len(lives)))
            lives[-1].life = max(stage.life for stage in lives) + 1
        elif what == "reset":
            lives[-1].life += 1
        elif what == "noise":
            self.commit(Version(), self.now)
        elif self.content and what != "nothing":
            self.harm(what, n)

    def harm(self, what: str, n: int) -> None:
        self.harmed = True
        if what == "restore":
            self.commit(Version(rewinds=what), self.content[n % len(self.content)])
        elif what == "overwrite":
            self.commit(Version(rewinds=what), ())
        elif what == "delete":
            self.commit(Version(deletes="deleted"), self.thinned(n))
        elif what == "clean":
            self.forgotten = max(self.forgotten, n % len(self.versions))
        elif what == "put back":
            keep = n % len(self.versions) + 1
            del self.versions[keep:], self.content[keep:]
            # A copy from before a life began knows nothing of it.
            self.counted, self.lives = {}, {}
            for version in self.versions:
                for app, mark in version.writes.items():
                    self.counted[app] = self.counted.get(app, -1) + 1
                    if mark is not None and mark.life:
                        self.lives[app] = max(mark.life, self.lives.get(app, 0))
            self.forgotten = min(self.forgotten, len(self.versions) - 1)

    def thinned(self, n: int) -> frozenset[Row]:
        return frozenset(row for row in self.now if row[2] % 3 != n % 3)

    # -- what is right ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every row below what is said to be complete is there, and while nothing has happened to the table it is said."""
        for ignore in (False, True):
            answer = self.read(self.history(), WRITERS, ignore_deletes=ignore)
            for name in WRITERS:
                wrote = [stage for stage in self.stages[name] if stage.app in self.lives]
                best = max(wrote, key=lambda stage: self.lives[stage.app], default=None)
                writer = answer.writers[name]
                assert writer.low.unknown == bool(writer.why), writer
                if best is None:
                    assert writer.low.unknown
                    continue
                if writer.low.unknown:
                    assert self.harmed or best.declared == MIN, writer
                    continue
                rows = {row for row in self.rows if row[0] == best.app and row[2] < writer.low.micros}
                assert ignore or rows <= self.now, (writer, rows - self.now)
                assert writer.low.micros <= best.through
                if not self.harmed:
                    assert writer.low.micros in (best.declared, best.through), writer
            lows = [answer.writers[name].low.micros for name in WRITERS]
            assert answer.low.micros == min(lows)


@dataclass
class Lineage(World):
    """A table whose snapshots know their parents alone, and whose properties count the batches. What was rolled back, staged or written to a branch is among them until it expires."""

    table: Table = field(default_factory=lambda: Table("u", "/t", None, {}))
    moments: list[tuple[Table, dict[str, int], dict[str, int]]] = field(default_factory=list)
    """All metadata that there were, with the batches and the lives by then."""
    contents: dict[int | None, frozenset[Row]] = field(default_factory=lambda: {None: frozenset()})
    """The rows in each snapshot."""

    def history(self, lost: Mapping[str, str] = MappingProxyType({})) -> History:
        return snapshots_of(self.table)

    def look(self, stage: Stage, standing: Standing) -> tuple[Mark, object]:
        if self.counted.get(stage.app, -1) < stage.remembered:
            raise Refused
        mark, _ = self.follow(stage.app, standing, self.history())
        return mark, (self.table.properties.get(stage.app), said_of(mark, self.table))

    def accepts(self, stage: Stage, state: Any) -> bool:
        self.mark = state[1]
        return bool(self.table.properties.get(stage.app) == state[0])

    def append(self, stage: Stage, mark: Mark, rows: set[Row]) -> None:
        writer, checkpoint = writer_of(stage.app), stage.app.split(":")[1]
        note = {"checkpoint": checkpoint, "batch": stage.batch, COMPLETE: json.loads(json.dumps(self.mark))}
        snapshot = self.make("append", self.table.current, self.now | rows, writer=writer, mark=note)
        written = json.dumps(Written(stage.batch, "d", 1, snapshot, mark.life)._asdict())
        self.set(snapshot, **{stage.app: written})

    def commit(self, version: Version, content: Collection[Row]) -> None:
        operation = "overwrite" if version.rewinds else "delete" if version.deletes else "replace"
        self.set(self.make(operation, self.table.current, content))

    def make(self, operation: str, parent: int | None, rows: Collection[Row], **fields: Any) -> int:
        snapshot = Snapshot((len(self.contents) * 7919) % 10007, parent, operation, **fields)
        self.contents[snapshot.id] = frozenset(rows)
        self.table = self.table._replace(snapshots={**self.table.snapshots, snapshot.id: snapshot})
        return snapshot.id

    def set(self, current: int, **properties: str) -> None:
        self.table = self.table._replace(current=current, properties={**self.table.properties, **properties})
        self.content.append(self.contents[current])
        self.moments.append((self.table, dict(self.counted), dict(self.lives)))

    def harm(self, what: str, n: int) -> None:
        lineage, every = self.table.lineage, sorted(self.table.snapshots)
        some = self.table.snapshots[every[n % len(every)]]
        if what in ("overwrite", "delete"):
            super().harm(what, n)
        elif what == "branch":
            self.make("delete", some.id, frozenset(row for row in self.contents[some.id] if row[2] % 2))
        elif what == "pick":
            # Somebody's rows once more: nothing is taken away.
            rows = self.contents[some.id] - self.contents.get(some.parent, frozenset())
            self.set(self.make("append", self.table.current, self.now | rows, origin=some.id))
        else:
            self.harmed = True
            if what == "restore":
                self.set(some.id if n % 2 else lineage[n % len(lineage)].id)
            elif what == "clean":
                oldest = n % len(lineage)
                ids = {id_.id for id_ in lineage[oldest:]} | set(every[n % 3 :: 3])
                expired = {id_.id for id_ in lineage[:oldest]}
                rest = {id_: self.table.snapshots[id_] for id_ in every if id_ in ids - expired}
                self.table = self.table._replace(snapshots=rest)
            elif what == "put back":
                self.table, counted, lives = self.moments[n % len(self.moments)]
                self.counted, self.lives = dict(counted), dict(lives)
                self.content.append(self.contents[self.table.current])


KINDS = ["write"] * 6 + [
    *("unclaimed", "zombie", "anew", "back", "reset", "noise", "restore", "overwrite", "delete", "clean"),
    "put back",
]

Events = list[tuple[str, int]]


def events(*more: str) -> st.SearchStrategy[Events]:
    return st.lists(st.tuples(st.sampled_from([*KINDS, *more]), st.integers(0, 11)), max_size=25)


def run(world: type[World], events: Events, **broken: Any) -> None:
    world_ = world(**broken)
    rest = iter(events)
    for _ in events:
        world_.step(rest)
        world_.check()


@settings(max_examples=400, deadline=None)
@given(events())
@example([("write", 4), ("write", 6), ("restore", 0), ("write", 2)])
@example([("write", 2), ("anew", 0), ("write", 2), ("zombie", 2)])
@example([("write", 2), ("write", 4), ("put back", 0), ("write", 2)])
@example([("write", 1), ("write", 1), ("write", 3), ("write", 0), ("put back", 0)])
def test_what_is_said_to_be_complete_is_there(events: Events) -> None:
    run(World, events)


@settings(max_examples=400, deadline=None)
@given(events("branch", "pick"))
@example([("write", 4), ("write", 6), ("restore", 0), ("write", 2)])
@example([("write", 4), ("write", 2), ("write", 3), ("restore", 0), ("write", 2)])
@example([("write", 2), ("branch", 0), ("restore", 1), ("write", 2)])
@example([("write", 2), ("write", 4), ("put back", 0), ("write", 2)])
@example([("write", 2), ("anew", 0), ("write", 4), ("back", 0), ("write", 2), ("restore", 1)])
@example([("write", 4), ("anew", 0), ("write", 2), ("restore", 0), ("unclaimed", 2)])
def test_what_is_said_to_be_complete_is_there_in_a_lineage(events: Events) -> None:
    run(Lineage, events)


def blind(app: str, standing: Standing, history: History) -> tuple[Mark, str]:
    """A writer that looks at no version but its own last one."""
    return follow(app, standing, replace(history, log=lambda at: (history.log(at) or Version())._replace(rewinds="")))


def unlooking(history: History, writers: tuple[str, ...], **options: Any) -> Completeness:
    """A reader that trusts the newest mark."""

    def trusted(at: int) -> Version | None:
        version = history.log(at)
        return None if version is None else version._replace(rewinds="", deletes="")

    return read(replace(history, log=trusted), writers, **options)


def forgetful(app: str, standing: Standing, history: History) -> tuple[Mark, str]:
    """A writer that goes by the versions alone: neither its checkpoint nor the table remembers what it has written."""
    return follow(app, standing, replace(history, lost={}))


def lifeless(history: History, writers: tuple[str, ...], **options: Any) -> Completeness:
    """A reader that takes the newest mark, whatever life it is of."""

    def flat(at: int) -> Version | None:
        version = history.log(at)
        if version is None:
            return None
        return version._replace(writes={app: mark and replace(mark, life=1) for app, mark in version.writes.items()})

    return read(replace(history, log=flat), writers, **options)


@pytest.mark.parametrize(
    ("world", "events", "broken"),
    [
        (World, [("write", 2), ("write", 2), ("restore", 0), ("write", 2)], {"follow": blind}),
        (World, [("write", 2), ("write", 2), ("restore", 0)], {"read": unlooking}),
        (World, [("write", 2), ("write", 4), ("write", 2), ("put back", 0), ("write", 2)], {"follow": forgetful}),
        (World, [("write", 2), ("anew", 0), ("zombie", 6), ("write", 4)], {"read": lifeless}),
        (Lineage, [("write", 2), ("write", 2), ("write", 2), ("restore", 0), ("write", 2)], {"follow": forgetful}),
    ],
    ids=["a writer that does not look", "a reader that does not look", "put back", "a zombie", "rolled back"],
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the rule is broken on purpose")
def test_without_the_rule_it_leads(world: type[World], events: Events, broken: dict[str, Any]) -> None:
    run(world, events, **broken)


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = Mark(5, 3, 7, 41, "rewound", "deleted", ("lowwater:c:a",), 39)
    assert Mark.from_json(mark.to_json()) == mark
    wrong: list[Any] = [None, [], {}, {**mark.to_json(), "through": "5"}, {**mark.to_json(), "after": None}]
    for text in wrong:
        assert Mark.from_json(text) is None


@pytest.mark.parametrize(
    "text", ["[]", "no JSON", '{"format": 2}', '{"format": 1}', '{"format": 1, "through": "9", "life": 1}']
)
def test_what_is_no_mark_of_a_directory_is_told_by_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "batch=0").mkdir()
    (tmp_path / "batch=0" / WATERMARK).write_text(text, encoding="utf-8")
    with pytest.raises(OSError, match=r"batch=0/_watermark.json (is no JSON|is of format|lacks through)"):
        complete_folder(tmp_path, ["a"])


APP, OTHER = app_id("a", "c0"), app_id("a", "c1")


CLAIM = ClaimEpoch(1, 1)


def history(*versions: Version | None, apps: Collection[str] = (APP,)) -> History:
    return History(len(versions) - 1, apps, lambda number: versions[number])


def mark(through: int, life: int = 1, checked: int = -1, **more: Any) -> Mark:
    return Mark(through, life, 1, checked, **more)


def written(mark: Mark | None, app: str = APP) -> Version:
    return Version({app: mark})


def answer(*versions: Version | None, apps: Collection[str] = (APP,)) -> Completeness:
    return read(history(*versions, apps=apps), ("a",))


def followed(*versions: Version | None, claim: ClaimEpoch | None = CLAIM, apps: Collection[str] = (APP,)) -> Mark:
    return follow(APP, Standing(9, claim), history(*versions, apps=apps))[0]


def test_another_checkpoint_that_nobody_sees_any_more_may_be_of_a_higher_life() -> None:
    """Unless the one that is seen has begun after it."""
    assert "what another checkpoint of it has said" in answer(None, written(mark(5, checked=0)), apps=(APP, OTHER)).why
    begun = followed(None, written(mark(5), OTHER), claim=ClaimEpoch(2, 1), apps=(OTHER,))
    assert begun.after == (OTHER,)
    assert answer(None, None, written(begun), apps=(APP, OTHER)).low.micros == 9


def test_a_new_life_begins_at_nothing_until_it_is_current() -> None:
    """The new life resets what the life before has written."""
    assert followed(written(mark(5))).through == 9
    for current, through in ((True, 9), (False, MIN)):
        standing = Standing(9, ClaimEpoch(2, 1), current)
        assert follow(APP, standing, history(written(mark(5))))[0].through == through


def test_who_was_not_asked_for_is_told() -> None:
    other = app_id("b", "c0")
    versions = [written(mark(5)), written(mark(7), other)]
    assert answer(*versions, apps=(APP, other)).why == "b writes into it as well: name it in writers"
    assert read(history(*versions, apps=(APP, other)), ("a", "b")).low.micros == 5
    assert answer(Version({APP: None}), apps=(APP,)).why == "a: a version of it says nothing of how far it is"


def test_a_version_that_is_gone_may_have_taken_anything_away() -> None:
    assert "version 0 is not there any more" in answer(None, written(mark(5))).why
    assert "version 0 is not there any more" in followed(None, written(mark(5))).rewound
    assert answer(None, written(mark(5, checked=0))).low.micros == 5, "its writer had looked at it"
    assert not followed(None, written(mark(5, checked=0))).rewound
