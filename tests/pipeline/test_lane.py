"""The protocol of one partition, over a real broker; each rule with a twin that runs without it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from lowwater_pipeline.dedup.errors import Held, Refused
from lowwater_pipeline.dedup.ids import Partitioner
from lowwater_pipeline.dedup.lane import Lane
from lowwater_pipeline.dedup.mark import NO_FLOOR
from lowwater_pipeline.dedup.memory import Damaged, Memory, Standing
from lowwater_pipeline.dedup.senders import Low
from lowwater_pipeline.dedup.window import Window
from tests.kit.eventually import eventually
from tests.kit.kafka import Row
from tests.kit.times import SECOND
from tests.pipeline.case import EXACT, Case, Killed, at, by_partition
from tests.pipeline.switches import (
    AsksForNoPartition,
    EndsAtWhatIsCommitted,
    ForgetsItsFloor,
    ReadsBeforeItTakes,
    StoresFirst,
    TakesAnyOffset,
    TakesAnyTopic,
    WatermarkCountsAtOnce,
)
from tests.property.switches import off

Make = Callable[..., Case]


def kill(case: Case, step: str, number: int = 1, *, kind: type[Lane] = Lane, **changes: Any) -> None:
    """Run a lane until it is killed there."""
    with pytest.raises(Killed):
        case.drain(case.lane(kind=kind, probe=at(step, number), **changes))
    case.bury_all()


def ids(lane: Lane) -> dict[bytes, int]:
    """What a lane remembers: ids with their ranks."""
    assert lane.memory is not None
    return dict(lane.memory.items())


def forget_memory(case: Case) -> None:
    """The partition comes to a machine that never had it."""
    shutil.rmtree(case.settings.state, ignore_errors=True)


# -- what comes out ---------------------------------------------------------------------------------------


def test_copies_are_dropped_and_the_rest_is_as_it_was(case: Case) -> None:
    rows = [
        Row(b"first", b"a", 0, 1_500_000_000_000),
        Row(b"a copy", b"a", 0, 1_500_000_000_001),
        Row(b"", b"b", 0, 1_400_000_000_000),
    ]
    case.put(*rows)
    case.drain(case.lane())
    assert case.rows() == [rows[0], rows[2]]


def test_headers_come_with_their_row(make: Make) -> None:
    case = make(id="header:id")
    producer = Producer({"bootstrap.servers": case.kafka.address, "log_level": 0})
    for _ in range(2):
        producer.produce(case.settings.input, b"v", headers=[("id", b"7"), ("id", b"8"), ("none", None)], partition=0)
    producer.flush(60)
    case.sent += [Row(b"v")] * 2
    case.drain(case.lane())
    consumer = Consumer(
        {"bootstrap.servers": case.kafka.address, "log_level": 0, "group.id": "look", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(case.settings.output, 0, 0)])
    (message,) = consumer.consume(1, 60)
    consumer.close()
    assert message.headers() == [("id", b"7"), ("id", b"8"), ("none", None)]


def test_an_id_passes_again_behind_a_window_by_count(make: Make) -> None:
    case = make("3")
    case.send("a", "b", "c", "a", "d", "a", "b")
    case.drain(case.lane())
    # a is the third last before d, and the fourth last behind it.
    assert case.ids() == ["a", "b", "c", "d", "a", "b"]


def test_an_id_passes_again_behind_a_window_by_time(make: Make) -> None:
    """By the times of the broker, which nobody can set: what was sent before the first second of the test is an hour old for the lane's decisions."""
    case = make("1h")
    case.send("a", "b", "a")
    case.drain(case.lane())
    assert case.ids() == ["a", "b"]
    (window,) = [replace(case.settings.window, size=1)]
    (lane,) = case.open_lanes()
    lane._settings = replace(lane._settings, window=window)
    case.send("c")
    case.send("a", "c")
    case.drain(lane)
    assert case.ids()[:4] == ["a", "b", "c", "a"], "a was sent more than a millisecond ago"


def test_transactions_of_senders_that_are_aborted_do_not_pass(case: Case) -> None:
    producer = Producer(
        {"bootstrap.servers": case.kafka.address, "log_level": 0, "transactional.id": case.settings.input}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(case.settings.input, b"v", b"aborted", partition=0)
    producer.flush(60)
    producer.abort_transaction(60)
    case.send("a")
    lane = case.lane()
    while not lane.counts.admitted:
        lane.step()
    assert case.ids() == ["a"]


# -- store after the commit -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Lane, pytest.param(StoresFirst, marks=off("store after the commit"))])
def test_an_id_is_stored_after_the_commit(case: Case, kind: type[Lane]) -> None:
    case.send("first")
    case.shut(case.drain(case.lane()))
    case.send(*"abcdef")
    kill(case, "begun" if kind is Lane else "stored", kind=kind)
    case.drain(case.lane())
    assert case.outcome() == EXACT


# -- one transactional id, and the end after it was taken ------------------------------------------------------


class OfAnotherName(Lane):
    """Takes a partition under a transactional id of its own."""

    def _begin(self) -> None:
        ours, self._settings = self._settings, replace(self._settings, group=f"{self._settings.group}-other")
        super()._begin()
        self._settings = ours


@pytest.mark.parametrize("kind", [Lane, pytest.param(OfAnotherName, marks=off("one transactional id"))])
def test_a_zombie_is_fenced_by_the_transactional_id_of_the_partition(case: Case, kind: type[Lane]) -> None:
    """A process is paused in its transaction; another one, on another machine, takes the partition; the first one goes on."""
    successors: list[Lane] = []

    def paused(step: str) -> None:
        if step == "begun" and len(case.sent) > 1 and not successors:
            successors.append(case.lane(kind=kind, state=case.settings.state.with_name("elsewhere")))

    zombie = case.lane(probe=paused)
    case.send("first")
    case.drain(zombie)
    case.send(*"abcdef")
    try:
        case.drain(zombie)
    except KafkaException as error:
        assert error.args[0].name() in {"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"}  # noqa: PT017
    case.drain(successors[0])
    assert case.outcome() == EXACT


@pytest.mark.parametrize("kind", [Lane, pytest.param(ReadsBeforeItTakes, marks=off("take over, then read"))])
def test_the_end_of_the_output_is_asked_for_when_the_partition_is_taken(case: Case, kind: type[Lane]) -> None:
    """A predecessor has a transaction open while its successor begins, and commits it as soon as nobody prevents that."""
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    predecessor = case.lane(probe=at("sent"))
    case.send(*"def")
    with pytest.raises(Killed):
        case.drain(predecessor)
    case.bury(predecessor)
    forget_memory(case)
    producer = predecessor._producer
    assert producer is not None

    def commits(step: str) -> None:
        if step == "mended" and kind is not Lane:
            producer.commit_transaction(60)

    successor = case.lane(kind=kind, probe=commits)
    case.send(*"def")
    case.drain(successor)
    assert case.outcome() == EXACT


# -- the end of the output ------------------------------------------------------------------------------------


@contextmanager
def stranger(case: Case) -> Iterator[Callable[[], None]]:
    """Somebody who has no business there has a transaction open in the output; yields what ends it."""
    producer = Producer(
        {"bootstrap.servers": case.kafka.address, "log_level": 0, "transactional.id": f"{case.settings.group}-stranger"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(case.settings.output, b"v", b"stranger", partition=0)
    producer.flush(60)
    ended: list[bool] = []

    def end() -> None:
        producer.abort_transaction(60)
        ended.append(True)

    yield end
    if not ended:
        end()


@pytest.mark.parametrize(
    "kind", [Lane, pytest.param(EndsAtWhatIsCommitted, marks=off("the end is the high watermark"))]
)
def test_a_strangers_open_transaction_hides_nothing(case: Case, kind: type[Lane]) -> None:
    """The lane is held until it is decided."""
    lane = case.lane()
    with stranger(case) as end:
        case.send(*"abc")
        case.drain(lane)
        case.shut(lane)
        forget_memory(case)
        case.send(*"abc")
        try:
            case.drain(case.lane(kind=kind, patience=3.0))
        except Held as held:
            assert "somebody else has a transaction open" in str(held)  # noqa: PT017
        end()
    case.bury_all()
    case.drain(case.lane())
    assert case.outcome() == EXACT


# -- whose rows and offsets they are ----------------------------------------------------------------------------


def new_input(case: Case, *, keeps: bool, **told: Any) -> None:
    """Kafka forgets the offsets of a topic that is deleted, as soon as its coordinator hears of it; or they come back from a copy."""
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    with case.asking() as asked:
        kept = asked.committed([TopicPartition(case.settings.input, 0)], 60)
        case.kafka.delete(case.settings.input)
        case.kafka.create(case.settings.input)
        if keeps:
            asked.commit(offsets=kept, asynchronous=False)
    case.sent.clear()
    case.send(*"defabcghi")
    case.drain(case.lane(**told))
    assert case.outcome() == EXACT


@pytest.mark.parametrize(
    ("keeps", "why"),
    [
        (True, "was deleted and made anew: offset 3 is none of its own"),
        (False, "or the input was deleted and made anew"),
    ],
)
def test_an_input_made_anew_is_refused_and_adopted_loses_nothing(case: Case, *, keeps: bool, why: str) -> None:
    with pytest.raises(Refused, match=why):
        new_input(case, keeps=keeps)
    case.drain(case.lane(adopt=True))
    assert case.outcome() == EXACT
    assert len(case.ids()) == 9, "what was passed on from the old one is remembered"
    case.send("j")
    case.bury_all()
    forget_memory(case)
    case.send("a")
    case.drain(case.lane())  # it is ours now
    assert case.outcome() == EXACT


@off("a topic is its id")
def test_twin_of_an_input_known_by_its_name_new_messages_are_lost(case: Case) -> None:
    new_input(case, keeps=True, kind=TakesAnyTopic)


def test_an_output_made_anew_is_refused(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    case.kafka.delete(case.settings.output)
    case.kafka.create(case.settings.output)
    with pytest.raises(Refused, match="what was passed on is gone"):
        case.lane()


def offsets_reset(case: Case, **told: Any) -> None:
    """Somebody resets the offsets of the group, because the output was lost downstream and is to be made again; the memory is still there."""
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    with case.asking() as asked:
        asked.commit(offsets=[TopicPartition(case.settings.input, 0, 0)], asynchronous=False)
    lane = case.lane(**told)
    while lane.position < 3:
        lane.step()
    assert lane.counts.admitted == 3, "they were asked for again"


def test_offsets_that_somebody_has_set_are_refused(case: Case) -> None:
    with pytest.raises(Refused, match="Somebody has set or reset the offsets"):
        offsets_reset(case)


@off("an offset has a mark")
def test_twin_with_offsets_that_somebody_has_set_all_is_dropped(case: Case) -> None:
    offsets_reset(case, kind=TakesAnyOffset)


def test_rows_of_somebody_else_in_the_output_are_refused(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    case.kafka.put(case.settings.output, [Row(b"v", b"theirs")])
    for _ in range(2):  # not by the memory that was mended with it, either
        with pytest.raises(Refused, match="has 1 rows that this deduplicator has not written"):
            case.lane()


def test_an_output_that_has_rows_before_the_first_start_is_refused(case: Case) -> None:
    case.kafka.put(case.settings.output, [Row(b"v", b"theirs"), Row(b"v", b"theirs")])
    with pytest.raises(Refused, match=r"has 2 rows: its offsets have expired, or .* somebody else's"):
        case.lane()


def test_another_window_is_a_new_life(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    with pytest.raises(Refused, match="by the rule key/1000, and is to go on by key/5"):
        case.lane(window=replace(case.settings.window, size=5))


def test_more_partitions_are_a_new_life(make: Make) -> None:
    case = make()
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    for topic in (case.settings.input, case.settings.output):
        case.kafka.grow(topic, 2)
    with pytest.raises(Refused, match="had 1 partitions, and has 2 now"):
        case.lane()


# -- the memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", ["4", "1000", "1h"])
def test_a_memory_that_is_lost_is_read_from_the_output(make: Make, window: str) -> None:
    case = make(window)
    case.send(*"abcdefgh")
    lane = case.drain(case.lane(most=2))
    remembered = {each: rank for each, rank in ids(lane).items() if rank >= lane.counts.floor}
    case.shut(lane)
    forget_memory(case)
    lane = case.lane()
    assert ids(lane) == remembered
    assert lane.counts.mended <= 8
    case.send(*"efgh")
    case.drain(lane)
    assert case.ids() == [*"abcdefgh"]


def test_of_a_window_by_count_only_its_end_is_read(make: Make) -> None:
    case = make("10")
    case.send(*(f"id-{number}" for number in range(300)))
    lane = case.lane(most=10)
    case.shut(case.drain(lane))
    forget_memory(case)
    lane = case.lane()
    assert 10 <= lane.counts.mended <= 30, "of 300"


def test_a_damaged_memory_is_made_anew(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    for path in case.settings.state.rglob("MANIFEST*"):
        path.write_bytes(b"garbage")
    case.send(*"abcd")
    lane = case.drain(case.lane())
    assert lane.counts.rebuilt == 1
    assert case.outcome() == EXACT


def test_a_memory_damaged_at_work_is_made_anew(case: Case) -> None:
    case.send(*"abc")
    lane = case.drain(case.lane())
    assert lane.memory is not None
    lane.memory.close()  # every call fails from now on
    case.send(*"abcd")
    with pytest.raises(Held, match="is damaged, and is made anew"):
        case.drain(lane)
    case.drain(case.lane())
    assert case.outcome() == EXACT


def test_a_lane_whose_memory_cannot_be_flushed_closes_all_the_same(case: Case) -> None:
    """Its disk is gone, or full: what was not kept is read from the output again."""
    case.send(*"abc")
    lane = case.drain(case.lane())
    forget_memory(case)
    assert lane.memory is not None
    with pytest.raises(Damaged):
        lane.memory.close()
    case.shut(lane)
    case.send(*"abcd")
    case.drain(case.lane())
    assert case.outcome() == EXACT


def test_a_memory_of_another_output_is_not_believed(make: Make) -> None:
    """Two lives in one directory: what the first one has passed on is nothing to the second."""
    first, second = make(), make()
    first.send(*"abc")
    first.shut(first.drain(first.lane()))
    second.send(*"abc")
    theirs = first.settings.state / f"{first.settings.output}-0"
    ours = second.settings.state / f"{second.settings.output}-0"
    second.send("d")
    second.shut(second.drain(second.lane()))
    shutil.rmtree(ours)
    shutil.copytree(theirs, ours)
    lane = second.lane()
    assert lane.counts.rebuilt == 1
    second.drain(lane)
    assert second.outcome() == EXACT


def test_a_memory_that_another_process_has_open_holds(case: Case) -> None:
    lane = case.lane()
    with pytest.raises(Held, match="another process has the memory open"):
        case.lane()
    del lane


def test_a_memory_that_another_process_has_open_is_not_thrown_away(make: Make) -> None:
    """Also not by a lane that would begin with an empty one."""
    case = make()
    with Memory(case.settings.state / f"{case.settings.output}-0") as memory:
        memory.write({b"a": 1}, {}, NO_FLOOR, Standing("o", "r", 0, 1, 0))
        with pytest.raises(Held, match="another process has the memory open"):
            case.lane()
        assert memory.known([b"a"]) == {b"a": 1}
        memory.check()


def test_an_old_memory_is_mended(case: Case) -> None:
    """A partition goes to another machine, and comes back."""
    elsewhere = case.settings.state.with_name("elsewhere")
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    case.send(*"def")
    case.shut(case.drain(case.lane(state=elsewhere)))
    case.send(*"abcdefg")
    case.drain(case.lane())
    assert case.outcome() == EXACT


def forget_offsets(case: Case) -> None:
    """Kafka lets the offsets of a group expire that nobody is in, by default after seven days."""
    case.kafka.admin.delete_consumer_groups([case.settings.group])[case.settings.group].result(60)


@pytest.mark.parametrize("window", ["1000", "1h"])
def test_an_output_that_retention_has_emptied_is_not_taken_for_a_new_one(make: Make, window: str) -> None:
    """The job was away for a week, and the input is kept for longer: all of it would pass again."""
    case = make(window)
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    forget_offsets(case)
    cut(case, case.settings.output, -1)
    with pytest.raises(Refused, match=r"begins at offset \d+, without a row: .* its offsets have expired"):
        case.lane()
    with pytest.raises(Refused, match="nothing says how many ids are gone"):
        case.lane(adopt=True)
    case.shut(case.drain(case.lane(adopt=True, accept_shorter=True)))
    assert case.ids() == [*"abc"], "as was said"
    assert case.lane().counts.short_since is not None, "and is published"


def test_the_first_start_is_committed_before_anything_is_read(case: Case) -> None:
    """So an output without rows whose log begins late says nothing of a group that has an offset."""
    lane = case.lane()
    lane.step()
    case.shut(lane)
    with case.asking() as asked:
        (found,) = asked.committed([TopicPartition(case.settings.input, 0)], 60)
    assert found.offset == 0
    cut(case, case.settings.output, -1)
    case.send(*"aba")
    case.drain(case.lane())
    assert case.outcome() == EXACT


def test_an_input_longer_than_the_window_is_adopted_only_by_one_who_knows(make: Make) -> None:
    case = make("3")
    case.send(*"abcdef")
    case.shut(case.drain(case.lane()))
    forget_offsets(case)
    with pytest.raises(
        Refused, match="has up to 6 messages to be read again, and the window remembers the last 3 of 6"
    ):
        case.lane(adopt=True)
    case.drain(case.lane(adopt=True, accept_shorter=True))
    assert case.outcome().doubled == 6, "as was said"


def test_an_input_made_anew_that_is_longer_than_the_window_is_not_adopted_unseen(make: Make) -> None:
    case = make("2")
    with pytest.raises(
        Refused, match="has up to 9 messages to be read again, and the window remembers the last 2 of 3"
    ):
        new_input(case, keeps=True, adopt=True)


def test_an_input_no_longer_than_the_window_is_adopted_and_nothing_doubles(make: Make) -> None:
    case = make("6")
    case.send(*"abcdefg")
    case.shut(case.drain(case.lane()))
    forget_offsets(case)
    with pytest.raises(Refused, match="has up to 7 messages to be read again"):
        case.lane(adopt=True)
    cut(case, case.settings.input, 1)
    case.send("h")
    cut(case, case.settings.input, 2)
    case.drain(case.lane(adopt=True))
    assert case.ids() == [*"abcdefgh"]


def test_an_adopted_output_that_was_cut_says_since_when_copies_are_known(make: Make) -> None:
    case = make("5")
    case.send(*"abcd", times=[1_500_000_000_000 + each for each in range(4)])
    case.shut(case.drain(case.lane()))
    forget_offsets(case)
    cut(case, case.settings.output, case.kafka_offset("c"))
    lane = case.lane(adopt=True, accept_shorter=True)
    assert lane.counts.short_since == 1_500_000_000_002
    case.drain(lane)
    assert case.ids() == [*"cdab"]
    assert lane.counts.short_since == 1_500_000_000_002, "four rows are known, not five"
    case.send("e", "f")
    case.drain(lane)
    assert lane.counts.short_since is None


# -- a log that was cut ----------------------------------------------------------------------------------------------


def cut(case: Case, topic: str, before: int) -> None:
    case.kafka.admin.delete_records([TopicPartition(topic, 0, before)])[TopicPartition(topic, 0, before)].result(60)


def test_a_window_that_the_output_does_not_hold_is_refused_or_published(case: Case) -> None:
    case.send(*"abcdef", times=[1_500_000_000_000 + each for each in range(6)])
    case.shut(case.drain(case.lane()))
    cut(case, case.settings.output, case.kafka_offset("d"))
    case.drain(case.lane())  # the memory is there: nothing is missing
    case.shut(*case.open_lanes())
    forget_memory(case)
    with pytest.raises(Refused, match=r"begins at offset \d+ \(2017-07-14T02:40:00Z\).*: 3 ids are gone"):
        case.lane()
    lane = case.lane(accept_shorter=True)
    assert lane.counts.short_since == 1_500_000_000_003
    case.send(*"abcdef")
    case.drain(lane)
    assert case.ids() == [*"defabc"], "a, b and c pass again, as was said"
    case.shut(lane)
    lane = case.lane()
    assert lane.counts.short_since == 1_500_000_000_003, "it is still short"


def test_a_window_that_was_short_is_whole_again_when_it_is_full(make: Make) -> None:
    case = make("3")
    case.send(*"abcd")
    case.shut(case.drain(case.lane()))
    cut(case, case.settings.output, case.kafka_offset("c"))
    forget_memory(case)
    lane = case.lane(accept_shorter=True)
    assert lane.counts.short_since is not None
    case.send(*"efghi")
    case.drain(lane)
    case.send("j")
    case.drain(lane)
    assert lane.counts.short_since is None


@pytest.mark.parametrize("most", [1, 1000], ids=["exactly", "in one chunk"])
def test_a_log_that_has_lost_only_what_is_forgotten_is_no_matter(make: Make, most: int) -> None:
    case = make("2")
    case.send(*"abcdef")
    case.shut(case.drain(case.lane(most=most)))
    cut(case, case.settings.output, case.kafka_offset("d"))
    forget_memory(case)
    case.send(*"efg")
    case.drain(case.lane())
    assert case.ids() == [*"defg"]


def test_messages_that_retention_removed_unread_are_refused_and_adopted(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    case.send(*"defg")
    cut(case, case.settings.input, 5)
    with pytest.raises(Refused, match="retention has removed the messages 3 to 4"):
        case.lane()
    case.drain(case.lane(adopt=True))
    assert case.ids() == [*"abcfg"]


# -- what stops a partition ------------------------------------------------------------------------------------------------


def test_a_message_without_an_id_stops_the_partition_where_it_stands(case: Case) -> None:
    case.put(Row(b"v", b"a"), Row(b"v", b"b"), Row(b"v", None), Row(b"v", b"c"))
    for _ in range(2):
        lane = case.lane()
        with pytest.raises(
            Refused, match=rf"in {case.settings.input} \[0\] at offset 2 stops.*no id.*--unreadable TOPIC"
        ):
            case.drain(lane)
        assert lane.position == 2, "what stands before it has passed"
        case.shut(lane)
    assert case.ids() == [*"ab"]


def test_a_message_without_an_id_goes_to_the_side_if_the_user_chose(make: Make) -> None:
    case = make(topics=["unreadable"], id="json:id")
    values = [{"id": "a"}, {"id": None}, {"id": 7}, {"id": 7}, {"id": 1.5}, {}, [], {"id": "a"}]
    case.put(*(Row(json.dumps(each).encode()) for each in values), Row(b"{"), Row(b""))
    lane = case.drain(case.lane())
    assert [json.loads(row.value) for row in case.rows()] == [{"id": "a"}, {"id": 7}]
    assert len(case.rows(case.settings.unreadable or "")) == 6
    assert (lane.counts.admitted, lane.counts.duplicates, lane.counts.unreadable) == (2, 2, 6)


def test_an_id_in_a_wrong_partition_stops_the_partition_and_names_the_partitioner(make: Make) -> None:
    case = make(partitions=2)
    producer = Producer({"bootstrap.servers": case.kafka.address, "log_level": 0, "partitioner": "consistent_random"})
    for number in range(50):
        producer.produce(case.settings.input, b"v", b"id-%d" % number)
    producer.flush(60)
    lane = case.lane(0)
    case.sent += [Row(b"v")] * 50
    with pytest.raises(Refused, match=r"belongs into partition 1 by murmur2.*start with --partitioner crc32"):
        case.drain(lane)


@pytest.mark.parametrize("kind", [Lane, pytest.param(AsksForNoPartition, marks=off("hash(id)"))])
def test_copies_in_two_partitions_do_not_pass(make: Make, kind: type[Lane]) -> None:
    """The sender puts ids where Java's clients do, and repeats itself by a client of librdkafka."""
    case = make(partitions=2)
    ids = [b"id-%d" % number for number in range(20)]
    places = Partitioner.CRC32.partitions(ids, 2)
    case.put(*by_partition(ids, 2), *(Row(b"a copy", each, place) for each, place in zip(ids, places, strict=True)))
    for partition in range(2):
        try:
            case.drain(case.lane(partition, kind=kind))
        except Refused as refused:
            assert "belongs into partition" in str(refused)  # noqa: PT017
    assert case.outcome().doubled == 0


# -- windows by a watermark -----------------------------------------------------------------------------------------------


def watermark(make: Make, **told: Any) -> Case:
    return make("watermark:orders", event_time="timestamp", topics=["undecidable"], **told)


def test_an_id_is_forgotten_at_the_watermark_and_what_comes_later_is_undecidable(make: Make) -> None:
    case = watermark(make)
    case.send(*"abc", times=[1000, 2000, 3000])
    lane = case.drain(case.lane())
    case.low = Low(2 * SECOND, (1,))
    while lane.counts.floor < 2 * SECOND:
        lane.step()  # without any message
    case.send(*"abcd", times=[1000, 2000, 3000, 1999])
    case.drain(lane)
    assert case.ids() == [*"abc"]
    side = [(row.key or b"").decode() for row in case.rows(case.settings.undecidable or "")]
    assert side == [*"ad"], "a copy and a late original look alike"
    assert ids(lane).keys() == {b"b", b"c"}


def test_a_watermark_is_never_lower(make: Make) -> None:
    case = watermark(make)
    case.low = Low(2 * SECOND, (1,))
    case.send("a", times=[5000])
    lane = case.drain(case.lane())
    case.low = Low(SECOND, (1,))
    case.send("b", times=[1500])
    case.drain(lane)
    assert case.ids() == ["a"]


@pytest.mark.parametrize("kind", [Lane, pytest.param(WatermarkCountsAtOnce, marks=off("head(W)"))])
def test_a_watermark_counts_behind_what_was_there_when_it_was_read(make: Make, kind: type[Lane]) -> None:
    """W has passed what stands in the topic: the senders have finished it, and the lane has not read it yet."""
    case = watermark(make)
    case.send(*"abc", times=[1000, 2000, 3000])
    case.low = Low(10 * SECOND, (1,))
    case.drain(case.lane(kind=kind, most=1))
    assert case.ids() == [*"abc"], "originals that came in time"


@pytest.mark.parametrize("kind", [Lane, pytest.param(ForgetsItsFloor, marks=off("W durable under N"))])
def test_the_watermark_is_committed_with_the_rows(make: Make, kind: type[Lane]) -> None:
    """The authority does not answer after the start: the floor is that of the last commit."""
    case = watermark(make)
    case.send(*"abc", times=[1000, 2000, 3000])
    lane = case.drain(case.lane())
    case.low = Low(2 * SECOND, (1,))
    case.send("d", times=[4000])
    case.drain(lane)
    while lane.counts.floor < 2 * SECOND:
        lane.step()
    case.shut(lane)
    case.low = None
    case.send("a", times=[1000])
    case.drain(case.lane(kind=kind))
    assert case.ids() == [*"abcd"]


def test_a_lost_memory_of_a_window_by_a_watermark_is_read_from_the_output(make: Make) -> None:
    case = watermark(make)
    case.send(*"abc", times=[3000, 1000, 2000])
    lane = case.drain(case.lane())
    case.low = Low(2 * SECOND, (1,))
    case.send("d", times=[9000])
    case.drain(lane)
    while lane.counts.floor < 2 * SECOND:
        lane.step()
    case.shut(lane)
    forget_memory(case)
    lane = case.lane()
    assert ids(lane).keys() == {b"a", b"c", b"d"}


@pytest.mark.parametrize("micros", [3 * SECOND, SECOND, NO_FLOOR], ids=["above the floor", "below", "unknown"])
def test_a_computation_that_was_reset_is_refused(make: Make, micros: int) -> None:
    case = watermark(make)
    case.low = Low(2 * SECOND, (1,))
    case.send("a", times=[5000])
    lane = case.drain(case.lane())
    while lane.counts.floor == NO_FLOOR:
        lane.step()
    case.low = Low(NO_FLOOR, (0,))
    lane.step()  # an authority that has never known it says nothing
    case.low = Low(micros, (2,))
    with pytest.raises(Refused, match="was reset: its watermark is of incarnation"):
        lane.step()


def test_a_copy_that_is_stamped_anew_after_its_id_was_forgotten_passes(make: Make) -> None:
    """What docs/dedup.md does not promise: the event time has to be the same in all copies."""
    case = watermark(make)
    case.send("a", times=[1000])
    lane = case.drain(case.lane())
    case.low = Low(2 * SECOND, (1,))
    while lane.counts.floor < 2 * SECOND:
        lane.step()
    case.send("a", times=[2000])
    case.drain(lane)
    assert case.ids() == ["a", "a"]


def test_finished_senders_leave_nothing_to_remember(make: Make) -> None:
    case = watermark(make)
    case.send(*"abc", times=[1000, 2000, 3000])
    lane = case.drain(case.lane())
    case.low = Low(2**63 - 1, (1,))
    while lane.counts.ids:
        lane.step()
    case.send("d", times=[4000])
    case.drain(lane)
    assert case.ids() == [*"abc"]


# -- windows by time ---------------------------------------------------------------------------------------------------------


def test_a_window_by_time_needs_the_brokers_times(make: Make) -> None:
    """Senders' clocks would put fresh ids outside of the window."""
    case = make("1h", stamped=False)
    with pytest.raises(Refused, match=r"needs the brokers' own times.*message\.timestamp\.type=LogAppendTime"):
        case.lane()


A_YEAR = 365 * 24 * 3_600_000
AHEAD = 3_000_000
"""Milliseconds: as far ahead as brokers take from senders by default, nearly."""


def stamp_by_broker(case: Case) -> None:
    """The operator does what the refusal says; what is in the topic keeps the times of its senders."""
    told = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, case.settings.input, incremental_configs=[told])
    case.kafka.admin.incremental_alter_configs([resource])[resource].result(60)

    def known() -> bool:
        try:
            case.pins()
        except Refused:
            return False
        return True

    eventually(known, "the broker says so")


def test_a_backlog_with_the_senders_times_stops_a_window_by_time(make: Make) -> None:
    """One stamp that is ahead would put the floor ahead. Brokers before Kafka 3.6 take a year: every copy after it would pass."""
    case = make("1h", stamped=False)
    case.send("ahead", times=[int(time.time() * 1000) + AHEAD])
    stamp_by_broker(case)
    with pytest.raises(Refused, match="at offset 0 stops the partition: it has the time of its sender"):
        case.drain(case.lane())
    assert case.ids() == []


def test_a_backlog_with_the_senders_times_goes_to_the_side_if_the_user_chose(make: Make) -> None:
    case = make("1h", stamped=False, topics=["unreadable"])
    case.send("ahead", times=[int(time.time() * 1000) + AHEAD])
    stamp_by_broker(case)
    lane = case.drain(case.lane())
    assert case.ids() == []
    assert [row.key for row in case.rows(case.settings.unreadable or "")] == [b"ahead"]
    assert lane.counts.floor == NO_FLOOR


def test_a_message_that_is_stamped_below_the_floor_is_not_passed_on_as_new(make: Make) -> None:
    """A broker's clock was a year ahead, and was set right."""
    case = make("1h")
    lane = case.lane()
    lane._mark = replace(lane._mark, floor=int(time.time() * 1000) + A_YEAR)
    case.send("a", "a")
    with pytest.raises(Refused, match=r"at offset 0 stops the partition: the broker has stamped it .* further back"):
        case.drain(lane)
    assert case.ids() == []


@off("LogAppendTime")
def test_twin_by_the_senders_times_a_fresh_id_is_outside_of_the_window(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowwater_pipeline.dedup.topics._check", lambda *_: None)
    monkeypatch.setattr(Window, "stamps", Window.row_stamps)
    monkeypatch.setattr(Window, "risen", lambda _, floor, __: floor)
    case = make("1h", stamped=False)
    hour = 3_600_000
    case.send("now", "slow", "slow", times=[10 * hour, 8 * hour, 8 * hour])
    case.drain(case.lane())
    assert case.outcome() == EXACT
