"""How far a table is complete, by its own versions: against an oracle that knows every row that was ever written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowwater.watermark import MIN
from lowwater_spark.complete.folder import WATERMARK, complete_folder
from lowwater_spark.complete.mark import Claim, Completeness, Log, Mark, Standing, Version, follow, read
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.delta import app_id, writer_of

WRITERS = ("a", "b")


@dataclass
class Stage:
    """One checkpoint of a computation."""

    app: str
    life: int
    batch: int = -1
    remembered: int = -1
    """The newest batch that the checkpoint knows to be in the table."""
    through: int = 0
    """Nothing below it will be written any more."""
    told: int = MIN
    """What the newest version of it said that was written under a claim."""


@dataclass
class World:
    """A table with versions that can be read while the log has them, and all rows that were ever written into it."""

    follow: Callable[..., tuple[Mark, str]] = follow
    read: Callable[..., Completeness] = read
    versions: list[Version] = field(default_factory=list)
    content: list[frozenset[tuple[str, int, int]]] = field(default_factory=list)
    """The rows after each version: who has written them, in which batch, and their stamps."""
    rows: set[tuple[str, int, int]] = field(default_factory=set)
    forgotten: int = 0
    harmed: bool = False
    stages: dict[str, list[Stage]] = field(default_factory=dict)
    last: dict[str, dict[str, int]] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    """Of each checkpoint that has written: the highest life under which it has."""

    def __post_init__(self) -> None:
        for name in WRITERS:
            self.begin(name)

    def begin(self, name: str) -> None:
        lives = self.stages.setdefault(name, [])
        life = max((stage.life for stage in lives), default=0) + 1
        lives.append(Stage(app_id(name, f"c{len(lives)}"), life))

    def log(self, number: int) -> Version | None:
        return self.versions[number] if number >= self.forgotten else None

    @property
    def newest(self) -> int:
        return len(self.versions) - 1

    @property
    def apps(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for version in self.content:
            for app, batch, _ in version:
                found[app] = max(batch, found.get(app, -1))
        return {**found, **self._counted}

    @property
    def _counted(self) -> dict[str, int]:
        return self.last.get("", {})

    def commit(self, version: Version, content: Collection[tuple[str, int, int]]) -> None:
        self.versions.append(version)
        self.content.append(frozenset(content))

    @property
    def now(self) -> frozenset[tuple[str, int, int]]:
        return self.content[-1] if self.content else frozenset()

    # -- what happens ------------------------------------------------------------------------------------------------

    def write(self, stage: Stage, advance: int, meanwhile: Iterator[tuple[str, int]], *, claimed: bool) -> None:
        """A batch: look, and commit; whatever happens in between."""
        low, life, batch = stage.through + advance, stage.life, stage.batch
        lost = "fewer" if self._counted.get(stage.app, -1) < stage.remembered else ""
        standing = Standing(low, Claim(life, 1) if claimed else None)
        try:
            mark, _ = self.follow(stage.app, standing, self.newest, set(self._counted), self.log, lost=lost)
        except CheckpointMismatch:
            assert any(each.life > life for each in self.stages[writer_of(stage.app)])
            return
        self.step(meanwhile)
        if stage.batch > batch or self._counted.get(stage.app, -1) > batch:
            return  # another run has written the batch: Delta lets one of them through
        stage.batch += 1
        new = {(stage.app, stage.batch, stage.through), (stage.app, stage.batch, low)}
        self.rows |= new
        stage.through = low
        if claimed:
            stage.told = low
            self.lives[stage.app] = max(life, self.lives.get(stage.app, 0))
        self.last.setdefault("", {})[stage.app] = stage.batch
        stage.remembered = stage.batch
        self.commit(Version({stage.app: mark}), self.now | new)

    def step(self, events: Iterator[tuple[str, int]]) -> None:
        """One event; one that takes another in takes it from the same list."""
        what, n = next(events, ("nothing", 0))
        name = WRITERS[n % 2]
        lives = self.stages[name]
        if what in ("write", "unclaimed"):
            self.write(lives[-1], n, events if n % 3 == 0 else iter(()), claimed=what == "write")
        elif what == "zombie":
            self.write(lives[n % len(lives)], n, events if n % 3 == 0 else iter(()), claimed=True)
        elif what == "anew":
            self.begin(name)
        elif what == "reset":
            lives[-1].life += 1
        elif what == "noise":
            self.commit(Version(), self.now)
        elif self.versions and what in ("restore", "overwrite", "delete"):
            self.harmed = True
            rows = self.content[n % len(self.content)] if what == "restore" else frozenset()
            if what == "delete":
                rows = frozenset(row for row in self.now if row[2] % 3 != n % 3)
                self.commit(Version(deletes="deleted"), rows)
            else:
                self.commit(Version(rewinds=what), rows)
        elif what == "clean" and self.versions:
            self.harmed = True
            self.forgotten = max(self.forgotten, n % len(self.versions))
        elif what == "put back" and self.versions:
            self.harmed = True
            keep = n % len(self.versions) + 1
            del self.versions[keep:], self.content[keep:]
            # A copy from before a life began knows nothing of it.
            self.last[""], self.lives = {}, {}
            for version in self.versions:
                for app, mark in version.writes.items():
                    self.last[""][app] = self.last[""].get(app, -1) + 1
                    if mark is not None and mark.life:
                        self.lives[app] = max(mark.life, self.lives.get(app, 0))
            self.forgotten = min(self.forgotten, self.newest)

    # -- what is right ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every row below what is said to be complete is there, and while nothing has happened to the table it is said."""
        for ignore in (False, True):
            answer = self.read(self.newest, set(self._counted), self.log, WRITERS, ignore_deletes=ignore)
            for name in WRITERS:
                wrote = [stage for stage in self.stages[name] if stage.app in self.lives]
                best = max(wrote, key=lambda stage: self.lives[stage.app], default=None)
                said = answer.writers[name]
                assert said.low.unknown == bool(said.why), said
                if best is None:
                    assert said.low.unknown
                    continue
                if said.low.unknown:
                    assert self.harmed or best.told == MIN, said
                    continue
                rows = {row for row in self.rows if row[0] == best.app and row[2] < said.low.micros}
                assert ignore or rows <= self.now, (said, rows - self.now)
                assert said.low.micros <= best.through
                if not self.harmed:
                    assert said.low.micros in (best.told, best.through), said
            known = [answer.writers[name].low.micros for name in WRITERS]
            assert answer.low.micros == min(known)


KINDS = ["write"] * 6 + [
    "unclaimed",
    "zombie",
    "anew",
    "reset",
    "noise",
    "restore",
    "overwrite",
    "delete",
    "clean",
    "put back",
]

EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11)), max_size=25)

Events = list[tuple[str, int]]


def run(events: Events, **broken: Any) -> None:
    world = World(**broken)
    left = iter(events)
    for _ in events:
        world.step(left)
        world.check()


@settings(max_examples=400, deadline=None)
@given(EVENTS)
@example([("write", 4), ("write", 6), ("restore", 0), ("write", 2)])
@example([("write", 2), ("anew", 0), ("write", 2), ("zombie", 2)])
@example([("write", 2), ("write", 4), ("put back", 0), ("write", 2)])
def test_what_is_said_to_be_complete_is_there(events: Events) -> None:
    run(events)


def blind(app: str, standing: Standing, newest: int, apps: Collection[str], log: Log, *, lost: str) -> tuple[Mark, str]:
    """A writer that looks at no version but its own last one."""
    mark, found = follow(app, standing, newest, apps, lambda at: (log(at) or Version())._replace(rewinds=""))
    return mark, found


def unlooking(newest: int, apps: Collection[str], log: Log, writers: tuple[str, ...], **asked: Any) -> Completeness:
    """A reader that trusts the newest mark."""

    def trusted(at: int) -> Version | None:
        version = log(at)
        return None if version is None else version._replace(rewinds="", deletes="")

    return read(newest, apps, trusted, writers, **asked)


def forgetful(*said: Any, lost: str) -> tuple[Mark, str]:
    """A writer whose checkpoint does not remember what it has written."""
    return follow(*said)


def lifeless(newest: int, apps: Collection[str], log: Log, writers: tuple[str, ...], **asked: Any) -> Completeness:
    """A reader that takes the newest mark, whatever life it is of."""

    def flat(at: int) -> Version | None:
        version = log(at)
        if version is None:
            return None
        return version._replace(writes={app: mark and replace(mark, life=1) for app, mark in version.writes.items()})

    return read(newest, apps, flat, writers, **asked)


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([("write", 2), ("write", 2), ("restore", 0), ("write", 2)], {"follow": blind}),
        ([("write", 2), ("write", 2), ("restore", 0)], {"read": unlooking}),
        ([("write", 2), ("overwrite", 0)], {"read": unlooking}),
        ([("write", 2), ("write", 4), ("write", 2), ("put back", 0), ("write", 2)], {"follow": forgetful}),
        ([("write", 2), ("anew", 0), ("zombie", 6), ("write", 4)], {"read": lifeless}),
    ],
    ids=["a writer that does not look", "a reader that does not look", "overwritten", "put back", "a zombie"],
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the rule is broken on purpose")
def test_without_the_rule_it_leads(events: Events, broken: dict[str, Any]) -> None:
    run(events, **broken)


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = Mark(5, 3, 7, 41, "rewound", "deleted", ("lowwater:c:a",))
    assert Mark.from_json(mark.to_json()) == mark
    wrong: list[Any] = [None, [], {}, {**mark.to_json(), "through": "5"}, {**mark.to_json(), "after": None}]
    for said in wrong:
        assert Mark.from_json(said) is None


def test_who_is_claimed_after_its_first_version_is_compared_with_the_lives_that_were_there_by_then() -> None:
    """Its first version was made without a claim, and after one of a newer life; by then its own claim is known, of the life before."""
    older, newer = app_id("a", "older"), app_id("a", "newer")
    versions: list[Version] = []

    def write(app: str, low: int, claim: Claim | None) -> None:
        apps = {name for version in versions for name in version.writes}
        mark, _ = follow(app, Standing(low, claim), len(versions) - 1, apps, lambda at: versions[at])
        versions.append(Version({app: mark}))

    write(newer, 100, Claim(4, 1))
    write(older, 500, None)
    with pytest.raises(CheckpointMismatch, match="life 4 of a has written into the table, and this run is of life 3"):
        write(older, 500, Claim(3, 1))
    answer = read(1, {older, newer}, lambda at: versions[at], ["a"])
    assert (answer.low.micros, answer.writers["a"].life) == (100, 4)


@pytest.mark.parametrize(
    "said", ["[]", "no JSON", '{"format": 2}', '{"format": 1}', '{"format": 1, "through": "9", "life": 1}']
)
def test_what_is_no_mark_of_a_directory_is_told_by_the_file(tmp_path: Path, said: str) -> None:
    (tmp_path / "batch=0").mkdir()
    (tmp_path / "batch=0" / WATERMARK).write_text(said, encoding="utf-8")
    with pytest.raises(OSError, match=r"batch=0/_watermark.json (is no JSON|is of format|does not say its through)"):
        complete_folder(tmp_path, ["a"])


APP, OTHER = app_id("a", "c0"), app_id("a", "c1")

LOST = "is not in the log any more"

CLAIM = Claim(1, 1)


def at(*versions: Version | None) -> Log:
    """A log; None stands for a version that it has not any more."""
    return lambda number: versions[number]


def said(through: int, life: int = 1, checked: int = -1, **more: Any) -> Mark:
    return Mark(through, life, 1, checked, **more)


def written(mark: Mark | None, app: str = APP) -> Version:
    return Version({app: mark})


def asked(*versions: Version | None, apps: Collection[str] = (APP,)) -> Completeness:
    return read(len(versions) - 1, apps, at(*versions), ("a",))


def left(*versions: Version | None, claim: Claim | None = CLAIM, apps: Collection[str] = (APP,)) -> Mark:
    """What a writer leaves after these versions, which stands at 9."""
    return follow(APP, Standing(9, claim), len(versions) - 1, apps, at(*versions))[0]


def test_a_version_that_is_gone_may_have_taken_rows_away() -> None:
    assert asked(written(said(5)), Version()).low.micros == 5
    assert LOST in asked(written(said(5)), None, Version()).why
    assert LOST in asked(None, None).why
    assert LOST in asked(Version(), None, written(said(5, checked=0))).why
    assert LOST in left(written(said(5)), None, Version()).rewound
    assert left(None, written(said(5, checked=0)), Version()).rewound == ""


def test_a_run_of_an_older_life_is_refused() -> None:
    newer = written(said(5, life=2), OTHER)
    with pytest.raises(CheckpointMismatch, match="life 2 of a has written"):
        left(written(said(5)), newer, apps=(APP, OTHER))
    with pytest.raises(CheckpointMismatch, match="life 2 of a has written"):
        left(newer, Version(), apps=(OTHER,))
    assert left(written(said(5)), newer, claim=Claim(3, 1), apps=(APP, OTHER)).life == 3


def test_another_checkpoint_that_nobody_sees_any_more_may_be_of_a_higher_life() -> None:
    """Unless the one that is seen has begun after it."""
    assert "what another checkpoint of it has said" in asked(None, written(said(5, checked=0)), apps=(APP, OTHER)).why
    begun = left(None, written(said(5), OTHER), claim=Claim(2, 1), apps=(OTHER,))
    assert begun.after == (OTHER,)
    assert asked(None, None, written(begun), apps=(APP, OTHER)).low.micros == 9


def test_what_an_earlier_life_has_said_is_not_carried_on() -> None:
    """Without a claim, or with inputs that were changed, a writer says what its own life had said, and never more than it can."""
    assert left(written(said(5)), claim=None).through == 5
    assert left(written(said(12)), claim=None).through == 9
    assert left(Version(), claim=None, apps=()).through == MIN
    for life, through in ((1, 5), (2, MIN)):
        standing = Standing(9, Claim(life, 1), current=False)
        assert follow(APP, standing, 0, (APP,), at(written(said(5))))[0].through == through


def test_what_was_found_once_stays() -> None:
    assert "has no mark" in left(Version({APP: None})).rewound
    lost = left(written(said(5)), Version(rewinds="restored"), Version(deletes="deleted"))
    assert (lost.rewound, lost.deleted, lost.checked) == ("restored", "deleted", 2)
    later = left(written(said(5)), Version(), Version(), written(lost))
    assert (later.rewound, later.deleted, later.checked) == ("restored", "deleted", 3)
    assert asked(Version(), Version(), Version(), written(lost)).why == "a: restored"


def test_who_was_not_asked_for_is_told() -> None:
    other = app_id("b", "c0")
    versions = [written(said(5)), written(said(7), other)]
    assert asked(*versions, apps=(APP, other)).why == "b writes into it as well: name it in writers"
    assert read(1, (APP, other), at(*versions), ("a", "b")).low.micros == 5
    assert asked(Version({APP: None}), apps=(APP,)).why == "a: a version of it says nothing of how far it is"
