"""A frame is what was written, where it was written, or it is refused."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lowwater_authority.journal import GRAPH, Entry, JournalCorrupt, JournalPosition, JournalVersion
from lowwater_authority.journal.frames import FORMAT, Kind, checksum, decode, decode_records, encode, runs_of
from lowwater_authority.journal.rules import Writer

ME = Writer(epoch=3, nonce=0xDEADBEEF)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
POSITIONS = st.integers(1, 2**63 - 1)


@given(NAMES, POSITIONS, st.binary(max_size=200), st.integers(1, 2**63), st.integers(0, 2**32 - 1))
def test_a_frame_comes_back(log: str, position: int, payload: bytes, epoch: int, nonce: int) -> None:
    frame = decode(log, position, encode(log, position, payload, writer=Writer(epoch, nonce)))
    assert frame == (Writer(epoch, nonce), 1, payload)


@given(st.binary(max_size=100), st.data())
def test_any_flipped_byte_is_detected(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(encode("clicks", 7, payload, writer=ME))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalCorrupt, match="log 'clicks' at position 7 is damaged"):
        decode("clicks", 7, bytes(frame))


@given(st.binary(max_size=100), st.data())
def test_any_other_length_is_detected(payload: bytes, data: st.DataObject) -> None:
    frame = encode("clicks", 7, payload, writer=ME)
    shorter = frame[: data.draw(st.integers(0, len(frame) - 1))]
    longer = frame + data.draw(st.binary(min_size=1, max_size=50))
    for other in (shorter, longer):
        with pytest.raises(JournalCorrupt):
            decode("clicks", 7, other)


@given(NAMES, POSITIONS, st.integers(0, 9), NAMES, POSITIONS, st.integers(0, 9))
def test_any_other_place_is_detected(log: str, position: int, part: int, log2: str, position2: int, part2: int) -> None:
    assume((log, position, part) != (log2, position2, part2))
    frame = encode(log, position, b"p", writer=ME, kind=Kind.SNAPSHOT, part=part, parts=10)
    assert decode(log, position, frame, kind=Kind.SNAPSHOT, part=part).parts == 10
    with pytest.raises(JournalCorrupt):
        decode(log2, position2, frame, kind=Kind.SNAPSHOT, part=part2)


def test_a_snapshot_is_no_record() -> None:
    with pytest.raises(JournalCorrupt, match="another kind"):
        decode("clicks", 7, encode("clicks", 7, b"", writer=ME, kind=Kind.SNAPSHOT))


def test_a_newer_format_asks_for_an_upgrade() -> None:
    """The place of format and checksum, and the rule of the checksum, are the same in every format."""
    newer = struct.pack("<H", FORMAT + 1) + b"whatever a newer release writes here"
    place = crc32(b"clicks", crc32(struct.pack("<QII", 7, 0, len(b"clicks"))))
    frame = struct.pack("<I", crc32(newer, place)) + newer
    with pytest.raises(JournalVersion, match=rf"position 7 has format {FORMAT + 1}.*upgrade lowwater") as refused:
        decode("clicks", 7, frame)
    assert (refused.value.stored, refused.value.supported) == (FORMAT + 1, FORMAT)


def rows(count: int, *, epochs: list[int] | None = None, log: str = "a") -> list[tuple[int, bytes]]:
    return [(n, encode(log, n, b"x", writer=Writer(epochs[n - 1] if epochs else 1, 0))) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("records_", "position"),
    [
        ([], 1),
        (rows(6), 6),
        (rows(5, epochs=[1, 1, 2, 1, 1]), 4),
        (rows(5, epochs=[1, 1, 1, 1, 9]), 5),
        (rows(5, epochs=[1, 1, 1, 1, 2]), 5),
    ],
    ids=["none", "one behind", "old owner", "future owner", "another last"],
)
def test_other_records_are_refused_with_their_place(records_: list[tuple[int, bytes]], position: int) -> None:
    tail = checksum(rows(5)[-1][1])
    with pytest.raises(JournalCorrupt) as refused:
        decode_records("a", records_, after=0, last=5, tail=tail, epoch=3)
    assert (refused.value.log, refused.value.position) == ("a", position)


def test_the_graph_has_many_writers() -> None:
    """The graph's records in a journal of release 0.2.0 had epochs there too."""
    rows_ = rows(5, epochs=[1, 2, 0, 3, 0], log=GRAPH)
    tail = checksum(rows_[-1][1])
    records, _ = decode_records(GRAPH, rows_, after=0, last=5, tail=tail, epoch=0)
    assert [position for position, _ in records] == [1, 2, 3, 4, 5]
    with pytest.raises(JournalCorrupt):
        decode_records("a", rows(5, epochs=[1, 2, 0, 3, 0]), after=0, last=5, tail=tail, epoch=3)


def test_a_run_tells_what_its_log_lacks() -> None:
    (run,) = runs_of([Entry("a", 4, b"four", strong=True), Entry("a", 5, b"five", strong=True)], lambda _: ME)
    assert run.is_new(3)
    assert not run.is_new(5)
    for last in (0, 2, 4, 6):
        with pytest.raises(JournalPosition):
            run.is_new(last)
    four, five = run.frames
    assert run.is_written({4: four, 5: five}, last=5, tail=checksum(five))
    assert run.is_written({}, last=5, tail=checksum(five))
    assert not run.is_written({4: five, 5: five}, last=5, tail=checksum(five))
    assert not run.is_written({4: four}, last=5, tail=checksum(four))
