"""The oracle of the chaos finds each kind of wrong that it is there for, and nothing in what is right."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lowwater.watermark import MAX, MIN
from tests.cluster.oracle import NEVER, Emitted, Put, Seen, Written, judge_rows, judge_source, judge_windows
from tests.kit.times import HOUR

PUTS = [Put(1.0, "a", 5), Put(1.0, "a", 7), Put(1.5, "b", HOUR), Put(2.0, "a", HOUR + 1)]


@dataclass
class History:
    """A right one: the first hour is committed at 3.0 and promised at 3.1, the rest at 5.0 and 5.1."""

    emitted: list[Emitted] = field(
        default_factory=lambda: [Emitted("a", 0, 2, 3.0), Emitted("b", HOUR, 1, 5.0), Emitted("a", HOUR, 1, 5.0)]
    )
    seen: list[Seen] = field(
        default_factory=lambda: [Seen(0.5, 1, MIN), Seen(2.0, 1, 0), Seen(3.1, 1, HOUR), Seen(5.1, 1, MAX)]
    )

    def judged(self) -> list[str]:
        return judge_windows(PUTS, self.emitted, self.seen, finished=True)


def test_a_right_history_is_right() -> None:
    assert History().judged() == []
    assert judge_source(PUTS, [Seen(2.5, 1, MIN), Seen(2.6, 1, 5), Seen(2.7, 1, MAX)]) == []


@pytest.mark.parametrize(
    ("bug", "problem"),
    [
        ("reported before the commit", "was committed 0.010 s later"),
        ("never committed", "is not committed yet"),
        ("not written", "is not committed yet"),
        ("finished without a window", "was never written"),
        ("written twice", "is written twice"),
        ("a row lost", "is written with 1 rows, and has 2"),
        ("a window of nothing", "is written with 1 rows, and has 0"),
        ("gone back", "came after"),
        ("an earlier incarnation", "came after"),
    ],
)
def test_rule3_and_rule6_each_kind_of_wrong_is_found(bug: str, problem: str) -> None:
    history = History()
    match bug:
        case "reported before the commit":
            history.seen[2] = Seen(2.99, 1, 1)
        case "never committed":
            history.emitted[0] = Emitted("a", 0, 2, NEVER)
        case "not written" | "finished without a window":
            del history.emitted[0]
        case "written twice":
            history.emitted.append(Emitted("a", 0, 2, 3.0))
        case "a row lost":
            history.emitted[0] = Emitted("a", 0, 1, 3.0)
        case "a window of nothing":
            history.emitted.append(Emitted("c", 0, 1, 3.0))
        case "gone back":
            history.seen.insert(3, Seen(3.2, 1, HOUR - 1))
        case "an earlier incarnation":
            history.seen[:2] = [Seen(0.5, 2, MIN), Seen(2.0, 2, 0)]
    assert problem in "\n".join(history.judged())


HANDED_ON = [Put(1.0, "a", 5, 0), Put(1.5, "b", 7, 1)]


@pytest.mark.parametrize(
    ("written", "seen", "problem"),
    [
        ([Written("a", 5, 0, 2.0), Written("b", 7, 1, 2.2)], [Seen(2.1, 1, 6), Seen(2.3, 1, MAX)], ""),
        ([Written("a", 5, 0, 2.0)], [Seen(2.1, 1, 6)], "never written"),
        ([Written("a", 5, 0, 2.0), Written("b", 7, 1, 2.2)], [Seen(2.1, 1, 8)], "was committed 0.100 s later"),
        ([Written("a", 5, 0, NEVER), Written("b", 7, 1, 2.2)], [Seen(2.1, 1, 6)], "is not committed yet"),
        ([*[Written("a", 5, 0, 2.0)] * 2, Written("b", 7, 1, 2.2)], [], "is written twice"),
        ([Written("a", 5, 0, 2.0), Written("b", 7, 1, 2.2), Written("c", 7, 2, 2.2)], [], "was never put"),
        ([Written("a", 6, 0, 2.0), Written("b", 7, 1, 2.2)], [], "was never put"),
        ([Written("a", 5, 0, 2.0), Written("b", 7, 1, 2.2)], [Seen(2.5, 1, 6), Seen(2.6, 1, 5)], "came after"),
    ],
)
def test_rule3_and_rule6_of_rows_that_are_handed_on(written: list[Written], seen: list[Seen], problem: str) -> None:
    judged = judge_rows(HANDED_ON, written, seen, finished=True)
    assert (problem in "\n".join(judged)) if problem else judged == []
