"""A window's verdicts, against an oracle that remembers everything; and what a memory and a mark keep of it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_pipeline.dedup.ids import Field, Unreadable
from lowwater_pipeline.dedup.mark import NO_FLOOR, Chunk, Mark, Short, trail
from lowwater_pipeline.dedup.memory import Memory, Standing
from lowwater_pipeline.dedup.window import Verdict, Window, WindowKind, decide
from tests.pipeline.test_ids import Message

TIMESTAMP = Field.parse("timestamp")
WINDOWS = [Window.parse("5"), Window(WindowKind.TIME, 10), Window.parse("watermark:a", TIMESTAMP)]

A_BATCH = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=12)
A_HISTORY = st.lists(st.tuples(A_BATCH, st.integers(0, 40), st.integers(0, 12)), max_size=12)


class Naive:
    """Every id that was ever passed on, in a list."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.passed: list[tuple[bytes, int]] = []
        self.floor = NO_FLOOR

    def take(self, name: bytes, stamp: int) -> Verdict:
        kind, size = self.window.kind, self.window.size
        if kind is WindowKind.COUNT:
            remembered = {one for one, _ in self.passed[-size:]}
        elif kind is WindowKind.TIME:
            self.floor = max(self.floor, stamp - size)
            remembered = {one for one, rank in self.passed if rank >= self.floor}
        else:
            if stamp < self.floor:
                return Verdict.UNDECIDABLE
            remembered = {one for one, rank in self.passed if rank >= self.floor}
        if name in remembered:
            return Verdict.DUPLICATE
        self.passed.append((name, stamp))
        return Verdict.ADMITTED


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=20)
@given(history=A_HISTORY, reopens=st.sets(st.integers(0, 11)))
def test_a_memory_decides_as_one_that_forgets_nothing_by_itself(
    window: Window, history: list[tuple[list[tuple[int, int]], int, int]], reopens: set[int]
) -> None:
    naive = Naive(window)
    floor, following, raised_to = NO_FLOOR, 0, 0
    with TemporaryDirectory() as folder:
        memory = Memory(Path(folder) / "memory")
        for number, (batch, raise_by, place) in enumerate(history):
            ids, stamps = [b"%d" % name for name, _ in batch], [stamp for _, stamp in batch]
            raised = None
            if window.kind is WindowKind.WATERMARK:
                raised_to = max(raised_to, raise_by)
                raised = min(place, len(batch)), raised_to
            expected = []
            for at, (name, stamp) in enumerate(zip(ids, stamps, strict=True)):
                if raised is not None and at == raised[0]:
                    naive.floor = max(naive.floor, raised[1])
                expected.append(naive.take(name, stamp))
            if raised is not None and raised[0] == len(batch):
                naive.floor = max(naive.floor, raised[1])
            remembered = memory.known(ids)
            decision = decide(window, ids, stamps, remembered, floor, following, raised)
            assert decision.verdicts == expected
            floor, following = decision.floor, decision.next
            memory.write(decision.fresh, remembered, floor, Standing("o", "r", number, following, 0))
            memory.check()
            if number in reopens:
                memory.close()
                memory = Memory(Path(folder) / "memory")
        memory.write({}, {}, floor, Standing("o", "r", 0, following, 0))
        assert all(rank >= floor for _, rank in memory.items()), "what is below the floor is forgotten"
        memory.close()


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 500), st.integers(0, 300)), max_size=200),
    st.integers(0, 10**12),
)
def test_from_where_a_mark_says_the_output_has_all_ids(transactions: list[tuple[int, int, int]], base: int) -> None:
    chunks: tuple[Chunk, ...] = ()
    rows: list[tuple[int, int]] = []
    floor, ordinal, offset = NO_FLOOR, 0, base
    for count, greatest, rises in transactions:
        chunks = trail(chunks, Chunk(offset, ordinal, greatest), floor)
        rows += [(offset + index, greatest) for index in range(count)]
        ordinal += count
        offset += count + 1
        floor = max(floor, rises)
        chunks = trail(chunks, None, floor)
        mark = Mark("i" * 22, "o" * 22, 1000, "header:message-id/1000000", floor, ordinal, chunks, (3, 4), Short(1, 2))
        assert Mark.parse(mark.text()) == mark
        assert len(mark.text()) < 3000, "an offset's metadata has 4096 bytes"
        start = mark.start(offset)
        assert all(at >= start.offset for at, rank in rows if rank >= floor)
        assert sum(at >= start.offset for at, _ in rows) == ordinal - start.ordinal


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[2,3]", "null", "offset", "[1,2,3,4,5,6,7,8,9]", "[1,2,3,4,5,6,7,8,9,0]"]
)
def test_what_is_no_mark_is_not_read_as_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting value|it is no mark of this release"):
        Mark.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0s", "is empty"),
        ("-3", "is no window"),
        ("1 fortnight", "is no window"),
        ("watermark:", "lacks a name"),
        ("watermark:a", "needs --event-time"),
    ],
)
def test_what_is_no_window_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Window.parse(text)


def test_a_stamp_below_the_floor_of_a_window_by_time_says_so() -> None:
    window = Window.parse("1s")
    assert window.risen(NO_FLOOR, 5000) == 4000
    assert window.risen(4000, 4000) == 4000
    with pytest.raises(Unreadable, match="1 ms further back than the window reaches"):
        window.risen(4000, 3999)
    assert Window.parse("5").risen(4000, 0) == 4000, "by count there are no stamps"


def stamp(field: str, message: Message) -> int:
    return Window.parse("watermark:a", Field.parse(field)).stamps()(message)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "message", "micros"),
    [
        ("timestamp", Message(time=1500), 1_500_000),
        ("header:at", Message(headers=[("at", b"1500000")]), 1_500_000),
        ("header:at", Message(headers=[("at", b"1970-01-01T00:00:01.5Z")]), 1_500_000),
        ("json:at", Message(b'{"at": -7}'), -7),
        ("json:at", Message(b'{"at": "1970-01-01T01:00:01.5+01:00"}'), 1_500_000),
    ],
)
def test_an_event_time_is_read(field: str, message: Message, micros: int) -> None:
    assert stamp(field, message) == micros


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("timestamp", Message(time=2**62)),
        ("header:at", Message(headers=[("at", b"\xff")])),
        ("json:at", Message(b'{"at": 1.5}')),
        ("json:at", Message(b'{"at": "1970-01-01T00:00:01"}')),
        ("json:at", Message(b'{"at": 9223372036854775807}')),
        ("json:at", Message(b'{"at": "soon"}')),
    ],
)
def test_what_is_no_event_time_says_so(field: str, message: Message) -> None:
    with pytest.raises(Unreadable, match="is no event time"):
        stamp(field, message)
