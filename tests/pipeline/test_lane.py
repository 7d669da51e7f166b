"""The protocol of one partition, over a real broker. A process that is killed: test_command.py."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from lowwater_pipeline.dedup.errors import Held, Refused
from lowwater_pipeline.dedup.lane import STEPS, Lane
from lowwater_pipeline.dedup.mark import NO_FLOOR, Mark
from lowwater_pipeline.dedup.memory import Memory, Standing
from lowwater_pipeline.dedup.senders import Low
from tests.kit.eventually import eventually
from tests.kit.kafka import Row
from tests.kit.times import SECOND
from tests.pipeline.case import EXACT, Case, Killed, at

Make = Callable[..., Case]


def ids(lane: Lane) -> dict[bytes, int]:
    assert lane.memory is not None
    return dict(lane.memory.items())


def forget_memory(case: Case) -> None:
    shutil.rmtree(case.settings.state, ignore_errors=True)


def transaction_of_another(case: Case, topic: str) -> Producer:
    """Somebody who has no business there has a transaction open; whoever calls this ends it."""
    name = f"{case.settings.group}-stranger"
    producer = Producer({"bootstrap.servers": case.kafka.address, "log_level": 0, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"v", b"stranger", partition=0)
    producer.flush(60)
    return producer


def test_copies_and_aborted_rows_are_dropped_and_the_rest_is_as_it_was(case: Case) -> None:
    transaction_of_another(case, case.settings.input).abort_transaction(60)
    rows = [
        Row(b"first", b"a", 0, 1_500_000_000_000),
        Row(b"a copy", b"a", 0, 1_500_000_000_001),
        Row(b"", b"b", 0, 1_400_000_000_000),
    ]
    case.put(*rows)
    lane = case.lane()
    while lane.counts.admitted < 2:
        lane.step()
    assert case.rows() == [rows[0], rows[2]]


def test_a_strangers_open_transaction_hides_nothing(case: Case) -> None:
    lane = case.lane()
    other = transaction_of_another(case, case.settings.output)
    case.send(*"abc")
    case.drain(lane)
    case.shut(lane)
    forget_memory(case)
    case.send(*"abc")
    try:
        case.drain(case.lane(patience=3.0))
    except Held as error:
        assert "another program has a transaction open" in str(error)  # noqa: PT017
    finally:
        other.abort_transaction(60)
    case.bury_all()
    case.drain(case.lane())
    assert case.outcome() == EXACT


def test_an_input_made_anew_is_refused_and_adopted_loses_nothing(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    with case.asking() as reader:
        committed = reader.committed([TopicPartition(case.settings.input, 0)], 60)
        case.kafka.delete(case.settings.input)
        case.kafka.create(case.settings.input)
        # Kafka forgets the offsets of a topic that is deleted; these come back from a copy.
        reader.commit(offsets=committed, asynchronous=False)
    case.sent.clear()
    case.send(*"defabcghi")
    with pytest.raises(Refused, match="was deleted and made anew: offset 3 is none of its own"):
        case.lane()
    case.shut(case.drain(case.lane(adopt=True)))
    assert case.outcome() == EXACT
    assert len(case.ids()) == 9, "what was passed on from the old one is remembered"
    forget_memory(case)
    case.send("j", "a")
    case.drain(case.lane())  # it is ours now
    assert case.outcome() == EXACT


def test_an_offset_of_another_life_is_refused(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    source, output = case.settings.input, case.settings.output
    with pytest.raises(Refused, match="by the rule key/1000, and is to go on by key/5"):
        case.lane(window=replace(case.settings.window, size=5))
    for topic in (source, output):
        case.kafka.grow(topic, 2)
    with pytest.raises(Refused, match="had 1 partitions, and has 2 now"):
        case.lane()
    case.kafka.delete(output)
    case.kafka.create(output, 2)
    with pytest.raises(Refused, match="what was passed on is gone"):
        case.lane()
    with case.asking() as reader:
        reader.commit(offsets=[TopicPartition(source, 0, 0)], asynchronous=False)
    with pytest.raises(Refused, match="Another program has set or reset the offsets"):
        case.lane()


@pytest.mark.parametrize("window", ["4", "1h"])
def test_a_memory_that_is_lost_is_read_from_the_output(make: Make, window: str) -> None:
    case = make(window)
    case.send(*"abcdefgh")
    lane = case.drain(case.lane(most=2))
    remembered = {name: rank for name, rank in ids(lane).items() if rank >= lane.counts.floor}
    case.shut(lane)
    forget_memory(case)
    lane = case.lane()
    assert ids(lane) == remembered
    assert lane.counts.mended <= 8
    case.send(*"efgh")
    case.drain(lane)
    assert case.ids() == [*"abcdefgh"]


def test_a_memory_that_is_damaged_or_of_another_output_is_made_anew(case: Case) -> None:
    place = case.settings.state / f"{case.settings.output}-0"
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    for path in place.glob("MANIFEST*"):
        path.write_bytes(b"garbage")
    case.send(*"abcd")
    lane = case.drain(case.lane())
    assert lane.counts.rebuilt == 1
    with pytest.raises(Held, match="another process has the memory open"):
        case.lane()
    case.shut(lane)
    with Memory.anew(place) as theirs:
        theirs.write({b"e": 9}, {}, NO_FLOOR, Standing("another", case.settings.rule, 1, 10, 0))
    case.send(*"ade")
    lane = case.drain(case.lane())
    assert lane.counts.rebuilt == 1
    assert lane.memory is not None
    lane.memory.close()  # every call fails from now on
    case.send(*"aef")
    with pytest.raises(Held, match="is damaged, and is made anew"):
        case.drain(lane)
    case.drain(case.lane())
    assert case.outcome() == EXACT


def forget_offsets(case: Case) -> None:
    """Kafka lets the offsets of a group expire that nobody is in, by default after seven days."""
    case.kafka.admin.delete_consumer_groups([case.settings.group])[case.settings.group].result(60)


def test_an_output_that_retention_has_emptied_is_not_taken_for_a_new_one(case: Case) -> None:
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


def cut(case: Case, topic: str, before: int) -> None:
    case.kafka.admin.delete_records([TopicPartition(topic, 0, before)])[TopicPartition(topic, 0, before)].result(60)


def test_a_window_that_the_output_does_not_hold_is_refused_or_published(case: Case) -> None:
    case.send(*"abcdef", times=[1_500_000_000_000 + number for number in range(6)])
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


def test_messages_that_retention_removed_unread_are_refused_and_adopted(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    case.send(*"defg")
    cut(case, case.settings.input, 5)
    with pytest.raises(Refused, match="retention has removed the messages 3 to 4"):
        case.lane()
    case.drain(case.lane(adopt=True))
    assert case.ids() == [*"abcfg"]


def test_a_message_without_an_id_goes_to_the_side_if_the_user_chose(make: Make) -> None:
    case = make(topics=["unreadable"], id="json:id")
    values = [{"id": "a"}, {"id": None}, {"id": 7}, {"id": 7}, {"id": 1.5}, {}, [], {"id": "a"}]
    case.put(*(Row(json.dumps(value).encode()) for value in values), Row(b"{"), Row(b""))
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


def watermark(make: Make, **options: Any) -> Case:
    return make("watermark:orders", event_time="timestamp", topics=["undecidable"], **options)


def test_an_id_is_forgotten_at_the_watermark_and_what_comes_later_is_undecidable(make: Make) -> None:
    case = watermark(make)
    case.send(*"abc", times=[1000, 2000, 3000])
    lane = case.drain(case.lane())
    case.low = Low(2 * SECOND, (1,))
    while lane.counts.floor < 2 * SECOND:
        lane.step()  # without any message
    case.low = Low(SECOND, (1,))  # a floor is never lower
    case.send(*"abcd", times=[1000, 2000, 3000, 1999])
    case.drain(lane)
    assert case.ids() == [*"abc"]
    side = [(row.key or b"").decode() for row in case.rows(case.settings.undecidable or "")]
    assert side == [*"ad"], "a copy and a late original look alike"
    assert ids(lane).keys() == {b"b", b"c"}


def test_a_watermark_counts_behind_what_was_there_when_it_was_read(make: Make) -> None:
    case = watermark(make)
    case.send(*"abc", times=[1000, 2000, 3000])
    case.low = Low(10 * SECOND, (1,))
    case.drain(case.lane(most=1))
    assert case.ids() == [*"abc"], "originals that came in time"


def test_the_watermark_is_committed_with_the_rows(make: Make) -> None:
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
    case.drain(case.lane())
    assert case.ids() == [*"abcd"]


def test_a_computation_that_was_reset_is_refused(make: Make) -> None:
    case = watermark(make)
    case.low = Low(2 * SECOND, (1,))
    case.send("a", times=[5000])
    lane = case.drain(case.lane())
    while lane.counts.floor == NO_FLOOR:
        lane.step()
    case.low = Low(NO_FLOOR, (0,))
    lane.step()  # an authority that has never known it says nothing
    for micros in (3 * SECOND, NO_FLOOR):
        case.low = Low(micros, (2,))
        with pytest.raises(Refused, match="was reset: its watermark is of incarnation"):
            lane.step()


def test_rows_of_somebody_else_in_the_output_are_refused(case: Case) -> None:
    case.send(*"abc")
    case.shut(case.drain(case.lane()))
    case.kafka.put(case.settings.output, [Row(b"v", b"theirs")])
    for _ in range(2):  # not by the memory that was mended with it, either
        with pytest.raises(Refused, match="has 1 rows that this deduplicator has not written"):
            case.lane()


def test_an_input_longer_than_the_window_is_adopted_only_by_one_who_knows(make: Make) -> None:
    case = make("3")
    case.send(*"abcdef")
    case.shut(case.drain(case.lane()))
    forget_offsets(case)
    with pytest.raises(Refused, match="its offsets have expired, or the input was deleted and made anew"):
        case.lane()
    with pytest.raises(Refused, match="up to 6 messages to be read again, and the window remembers the last 3 of 6"):
        case.lane(adopt=True)
    case.drain(case.lane(adopt=True, accept_shorter=True))
    assert case.outcome().doubled == 6, "as was said"


def test_a_message_that_is_stamped_below_the_floor_is_not_passed_on_as_new(make: Make) -> None:
    case = make("1h")
    pins, floor = case.pins(), int(time.time() * 1000) + 365 * 24 * 3_600_000
    mark = Mark(pins.input.id, pins.output.id, 1, case.settings.rule, floor, 0)
    with case.asking() as reader:
        offset = TopicPartition(case.settings.input, 0, 0, mark.text())
        reader.commit(offsets=[offset], asynchronous=False)
    case.send("a", "a")
    with pytest.raises(Refused, match=r"at offset 0 stops the partition: the broker has stamped it .* further back"):
        case.drain(case.lane())
    assert case.ids() == []


def stamp_by_broker(case: Case) -> None:
    """The operator does what the refusal says; what is in the topic keeps the times of its senders."""
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, case.settings.input, incremental_configs=[entry])
    case.kafka.admin.incremental_alter_configs([resource])[resource].result(60)

    def stamped() -> bool:
        try:
            case.pins()
        except Refused:
            return False
        return True

    eventually(stamped, "the broker says so")


def test_a_window_by_time_takes_the_brokers_times_alone(make: Make) -> None:
    case = make("1h", stamped=False)
    with pytest.raises(Refused, match=r"needs the brokers' own times.*message\.timestamp\.type=LogAppendTime"):
        case.lane()
    case.send("ahead", times=[int(time.time() * 1000) + 3_000_000])
    stamp_by_broker(case)
    with pytest.raises(Refused, match="at offset 0 stops the partition: it has the time of its sender"):
        case.drain(case.lane())
    assert case.ids() == []


def test_the_first_start_is_committed_before_anything_is_read(case: Case) -> None:
    lane = case.lane()
    lane.step()
    case.shut(lane)
    with case.asking() as reader:
        (committed,) = reader.committed([TopicPartition(case.settings.input, 0)], 60)
    assert committed.offset == 0
    cut(case, case.settings.output, -1)
    case.send(*"aba")
    case.drain(case.lane())
    assert case.outcome() == EXACT


OPENING = STEPS[: STEPS.index("read")]
A_BATCH = 10
AHEAD = 8 * A_BATCH


def test_killed_at_every_step_nothing_is_lost_or_doubled(make: Make) -> None:
    case, chance = make("100000"), random.Random(1)
    numbers = iter(range(10**9))
    position = 0
    for step in STEPS:
        if len(case.sent) - position < AHEAD:
            fresh = [f"id-{next(numbers)}" for _ in range(3 * AHEAD)]
            copies = [chance.choice(fresh) for _ in range(AHEAD)]
            case.send(*chance.sample(fresh + copies, len(fresh) + len(copies)))
        if chance.random() < 0.1:
            shutil.rmtree(case.settings.state, ignore_errors=True)
        number = 1 if step in OPENING else chance.randint(1, 3)
        with pytest.raises(Killed):
            case.drain(case.lane(probe=at(step, number), most=A_BATCH))
        position = max((lane.position for lane in case.open_lanes()), default=position)
        case.bury_all()
    case.drain(case.lane())
    assert case.outcome() == EXACT
