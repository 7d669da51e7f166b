"""Kafka as the source of a tracked stage: a watermark counts when all that the topics had is committed, and else it holds, or is refused by name."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import EARLIER, Partition
from lowwater_spark.sources.kafka.admin import KafkaAdmin
from lowwater_spark.sources.kafka.cluster import NO_ID, BrokerView, agreed
from lowwater_spark.sources.kafka.marks import marks_topic
from lowwater_spark.sources.kafka.source import BROKERS, KAFKA, Ends, KafkaSource, OpenKafka, unread
from lowwater_spark.track.plan.checked import check_plan
from tests.kit.clock import Clock
from tests.kit.kafka import ANSWERS_WITHIN, Kafka, Row
from tests.kit.times import at, mark
from tests.spark.flow import Flow, Readable
from tests.spark.kafka_answers import OPTIONS, Answers, over
from tests.spark.support import Upstream, begun, low, waits

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Topic(Readable):
    def __init__(self, kafka: Kafka, flow: Flow, name: str) -> None:
        self.kafka = kafka
        self.flow = flow
        self.name = name
        kafka.create(name)

    def put(self, *rows: tuple[str, int], partition: int = 0) -> None:
        values = [json.dumps({"key": key, "t": at(hour).isoformat()}).encode() for key, hour in rows]
        self.kafka.put(self.name, [Row(value, partition=partition) for value in values])

    def read(self, **options: str) -> DataFrame:
        settings = {
            "kafka.bootstrap.servers": self.kafka.address,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            "lowwater.brokers": str(len(self.kafka.brokers)),
            "kafka.metadata.max.age.ms": "500",
            **options,
        }
        stream = self.flow.spark.readStream.format("kafka").options(**settings).load()
        row = sf.from_json(sf.col("value").cast("string"), "key string, t timestamp").alias("r")
        return stream.select(row).select("r.*")

    def recreate(self) -> None:
        self.kafka.delete(self.name)
        self.kafka.create(self.name)


@pytest.fixture
def topic(kafka: Kafka, flow: Flow, request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    return Topic(kafka, flow, tmp_path.name)


def test_a_stage_follows_its_inputs_through_a_topic(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    place = f"partition 0 of {topic.name} (read to 2 of 3"
    source = {"kafka.request.timeout.ms": "60000"}
    topic.story(lw, upstream, lambda query: waits(query, place)(), change=lambda: None, **source)


def test_2a_a_partition_that_is_added_is_waited_for(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    topic.followed(lw, upstream, ("a", 9))
    topic.kafka.grow(topic.name, 3)
    topic.put(("b", 10), partition=2)
    upstream.at(11)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(11), "three partitions")
    assert topic.keys() == ["a", "b"]


def test_kafka_is_known_however_it_is_spelt(topic: Topic) -> None:
    for spelt in ("KAFKA", "org.apache.spark.sql.kafka010.KafkaSourceProvider"):
        reader = topic.flow.spark.readStream.format(spelt).option("kafka.bootstrap.servers", topic.kafka.address)
        [source] = check_plan(topic.flow.spark, reader.option("subscribe", topic.name).load()).sources
        options = {"kafka.bootstrap.servers": topic.kafka.address, "subscribe": topic.name}
        assert isinstance(source, KafkaSource)
        assert source == KafkaSource(options, source.cluster)
        assert source.kind == KAFKA


def test_unknown_holds_what_brokers_know_together_has_nothing_old() -> None:
    place, added = Partition("t", 0), Partition("t", 1)
    asleep = BrokerView("c", frozenset({1, 2, 3}), {"t": "1"}, {place: 4})
    awake = BrokerView("c", frozenset({2, 3}), {"t": "1"}, {place: 5, added: 0})
    for brokers in [asleep, awake], [awake, asleep], [awake, awake]:
        agreement = agreed(brokers)
        assert agreement.epochs == {place: 5, added: 0}
        assert agreement.partitions == [place, added]
    with pytest.raises(OSError, match="the brokers do not agree which topics t are"):
        agreed([awake, awake._replace(ids={"t": "2"})])
    with pytest.raises(OSError, match="the brokers do not agree"):
        agreed([awake, awake._replace(cluster="d")])


def test_2d_a_topic_made_anew_between_plan_and_read_closes_no_window(topic: Topic, upstream: Upstream) -> None:
    topic.put(("a", 9), ("b", 9))
    upstream.at(10)

    def anew(reached: str, number: int) -> None:
        if (reached, number) == ("begun", 0):
            topic.recreate()
            topic.put(("z", 9), ("z", 9))

    flow = topic.flow
    query = flow.start(flow.windows, stream=topic.read(), stamp=timedelta(hours=1), ranges=2, probe=anew)
    with pytest.raises(Exception, match="another one"):
        query.await_termination(ANSWERS_WITHIN)
    assert flow.out == []


def test_5b_a_topic_whose_beginning_was_removed_is_refused_unless_it_is_declared(
    topic: Topic, lw: lowwater.Client, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    topic.put(("a", 9), ("b", 9))
    removals = topic.kafka.admin.delete_records([TopicPartition(topic.name, 0, 1)])
    for removal in removals.values():
        removal.result(ANSWERS_WITHIN)
    with pytest.raises(CheckpointMismatch, match=rf"partition 0 of {topic.name} begins at 1: Kafka removed the rows"):
        topic.track()
    upstream.at(9)
    query = topic.track(source={EARLIER: "skip"})
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "the row that is left is committed")
    assert topic.keys() == ["b"]
    assert f"partition 0 of {topic.name} from offset 1: {EARLIER}=skip, so earlier rows count" in caplog.text
    query.stop()
    with pytest.raises(CheckpointMismatch, match=f'declare it: option\\("{EARLIER}", "skip"\\)'):
        topic.track()


def test_1e_a_topic_with_aborted_rows_is_read_with_read_committed_alone(topic: Topic) -> None:
    topic.kafka.create(marks_topic(topic.name))
    with pytest.raises(Unsupported, match=rf"{topic.name} without the option kafka\.isolation\.level read_committed"):
        topic.track()
    assert not (topic.flow.folder / "ck").exists()
    topic.track(source={"kafka.isolation.level": "read_committed"})


def test_a_driver_without_kafkas_client_is_told_what_to_bring(topic: Topic) -> None:
    nowhere: Any = topic.flow.spark._jvm
    bare = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(kafka=nowhere.org.apache.nowhere)))
    with pytest.raises(Unsupported, match="no Kafka client") as refusal:
        KafkaAdmin(bare, {"kafka.bootstrap.servers": topic.kafka.address}).views((topic.name,), 1)
    assert "spark.jars" in refusal.value.fix


def test_other_topics_than_the_checkpoints_are_refused(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    query = topic.followed(lw, upstream, ("a", 9))
    query.stop()
    topic.flow.queries.clear()
    topic.kafka.create(f"{topic.name}-more")
    with pytest.raises(CheckpointMismatch, match=r"has read .*, and the query reads .*-more"):
        topic.track(source={"subscribe": f"{topic.name},{topic.name}-more"})


vectors = st.dictionaries(
    st.builds(Partition, st.sampled_from(["t", "u"]), st.integers(0, 2)), st.integers(0, 5), max_size=6
)


@given(vectors, vectors, vectors)
def test_unknown_holds_what_was_read_to_its_end_is_told_one_row_at_a_time(
    head: dict[Partition, int], read: dict[Partition, int], more: dict[Partition, int]
) -> None:
    rows = {(place, row) for place, end in head.items() for row in range(end)}
    done = {(place, row) for place, end in read.items() for row in range(end)}
    assert (not unread(head, read)) == (rows <= done)
    further = {place: max(read.get(place, 0), more.get(place, 0)) for place in read.keys() | more.keys()}
    assert set(unread(head, further)) <= set(unread(head, read))


REFUSED: list[tuple[dict[str, str], str]] = [
    ({BROKERS: ""}, r"without the option lowwater\.brokers"),
    ({"failondataloss": "false"}, "with the option failOnDataLoss false"),
    ({"startingoffsets": "latest"}, "without the option startingOffsets earliest"),
    ({"startingoffsetsbytimestamp": '{"t":{"0":1}}'}, "without the option startingOffsets earliest"),
    ({"subscribepattern": "t.*"}, "with the option subscribepattern"),
    ({"assign": '{"t":[0]}'}, "with the option assign"),
]


def test_an_option_that_takes_exactness_away_is_named() -> None:
    for options, text in REFUSED:
        source = KafkaSource({**OPTIONS, **options}, Answers())
        assert source.waiting_for(frozenset()) == source
        with pytest.raises(Unsupported, match=f"Kafka as the source of a stage with inputs, {text}") as refusal:
            source.waiting_for(frozenset({"default/source"}))
        assert refusal.value.fix
        if "starting" in str(options):
            assert source.telling_ends().inputs == frozenset()
        else:
            with pytest.raises(Unsupported, match=f"injector with across or delay, {text}"):
                source.telling_ends()


def test_brokers_that_are_not_declared_and_rows_on_one_broker_alone_are_refused() -> None:
    in_sync, unclean = "min.insync.replicas", "unclean.leader.election.enable"
    answers = Answers(brokers=3, settings_of={in_sync: "2", unclean: "false"})
    over(answers, lowwater__brokers="3").check_writers()
    with pytest.raises(Unsupported, match=r"Kafka with 3 brokers .* with inputs, 1 of which are declared"):
        over(answers).check_writers()
    for name, value in ((in_sync, "1"), (unclean, "true")):
        answers.settings_of = {in_sync: "2", unclean: "false", name: value}
        with pytest.raises(Unsupported, match=f"t with {name}={value} as the source of a stage with inputs"):
            over(answers, lowwater__brokers="3").check_writers()


def test_topics_without_ids_are_refused() -> None:
    over(Answers()).check_writers()
    with pytest.raises(Unsupported, match="where the topic t has no id"):
        over(Answers(ids_of={"t": NO_ID})).check_writers()
    with pytest.raises(Unsupported, match="where the cluster has no id"):
        over(Answers(cluster="")).check_writers()


def test_3c_a_log_that_is_shorter_under_a_new_leader_is_found_however_long_it_is_by_now(tmp_path: Path) -> None:
    for lost, how in [(False, "look"), (False, "commit"), (True, "look"), (True, "commit")]:
        manifest = begun(tmp_path / f"{lost} {how}")
        answers = Answers(end=10, epoch=3)
        opened = OpenKafka(over(answers), manifest, 0)
        waiting = opened.wait(opened.head('{"t":{"0":3}}'), None)
        answers.epoch, answers.end, answers.common = 4, 12, 5 if lost else 10
        text = "cut off: partition 0 of t from 10 to 5"
        if not lost:
            opened.head('{"t":{"0":3}}') if how == "look" else opened.confirm('{"t":{"0":12}}')
            assert opened.reached(waiting, '{"t":{"0":12}}')
            opened.close()
            answers.epoch, answers.common = 5, 11
            with pytest.raises(CheckpointMismatch, match="cut off: partition 0 of t from 12 to 11"):
                OpenKafka(over(answers), manifest, 0).confirm('{"t":{"0":12}}')
            continue
        if how == "look":
            with pytest.raises(OSError, match=text):
                opened.head('{"t":{"0":3}}')
        else:
            with pytest.raises(CheckpointMismatch, match=text):
                opened.confirm('{"t":{"0":12}}')
        assert not opened.reached(waiting, '{"t":{"0":12}}')
        with pytest.raises(CheckpointMismatch, match=text):
            OpenKafka(over(answers), manifest, 0)


def test_3c_a_log_that_was_cut_off_holds_also_when_that_cannot_be_stored(tmp_path: Path) -> None:
    answers = Answers(end=10, epoch=3)
    opened = OpenKafka(over(answers), begun(tmp_path / "ck"), 0)
    waiting = opened.wait(opened.head('{"t":{"0":3}}'), None)
    answers.epoch, answers.end, answers.common = 4, 12, 5
    (tmp_path / "ck").rename(tmp_path / "away")
    (tmp_path / "ck").touch()
    with pytest.raises(NotADirectoryError):
        opened.head('{"t":{"0":3}}')
    assert not opened.reached(waiting, '{"t":{"0":12}}')


def test_a_reader_names_open_transactions_first_and_a_limit_only_for_what_is_not_planned(tmp_path: Path) -> None:
    opened = OpenKafka(over(Answers(end=10), maxoffsetspertrigger="5"), begun(tmp_path), 0)
    first, second = Partition("t", 0), Partition("t", 1)
    head = Ends({first: 10, second: 10}, {first: 10, second: 8}, {second: "bank"})
    reason = "partition 1 of t (read to 0 of 10: a transaction is open since 8, that of bank)"
    limited = "partition 0 of t (read to 0 of 10: maxOffsetsPerTrigger may leave them to later batches)"
    assert opened.missing(head, 5) == [reason, limited], "the job has not come to the transaction, and it holds"
    (tmp_path / "sources/0").mkdir(parents=True)
    (tmp_path / "sources/0/0").write_text('v1\n{"t":{"0":0,"1":0}}')
    opened.read_to('{"t":{"0":10,"1":8}}')
    assert opened.missing(head, 5) == [reason, "partition 0 of t (read to 0 of 10: the running batch reads the rest)"]
    assert opened.missing(head, 1) == [reason]


def test_kafka_is_asked_once_a_commit(tmp_path: Path) -> None:
    answers = Answers(end=10)
    opened = OpenKafka(over(answers), begun(tmp_path), 0)
    before = answers.calls
    opened.knock('{"t":{"0":3}}')
    opened.confirm('{"t":{"0":3}}')
    assert answers.calls == before + 1
    opened.knock('{"t":{"0":3}}')
    answers.ids_of = {"t": "2"}
    with pytest.raises(CheckpointMismatch, match="another one"):
        opened.confirm('{"t":{"0":4}}')


@pytest.mark.parametrize("how", ["closed", "later"])
def test_3c_how_far_partitions_were_seen_to_go_is_known_to_the_next_run(how: str, tmp_path: Path) -> None:
    manifest, now = begun(tmp_path), Clock(100.0)
    answers = Answers(end=10, epoch=3)
    opened = OpenKafka(over(answers), manifest, 0, now)
    opened.head('{"t":{"0":3}}')
    answers.end = 12
    now.now += 5 if how == "later" else 0
    opened.head('{"t":{"0":3}}')
    if how == "closed":
        opened.close()
    answers.end, answers.epoch, answers.common = 20, 4, 11
    with pytest.raises(OSError, match="cut off: partition 0 of t from 12 to 11"):
        OpenKafka(over(answers), manifest, 0, now).head('{"t":{"0":3}}')


def test_nobody_waits_for_the_lock_while_kafka_does_not_answer(
    topic: Topic, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, called = threading.Event(), threading.Event()
    answers.set()
    ask = KafkaAdmin.views

    def late(self: KafkaAdmin, topics: tuple[str, ...], enough: int) -> list[BrokerView]:
        if not answers.is_set():
            called.set()
            answers.wait(ANSWERS_WITHIN)
        return ask(self, topics, enough)

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        topic.flow.plain(rows, batch)
        if batch.id:
            answers.clear()

    topic.put(("a", 9))
    upstream.at(9)
    query = topic.track(write)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "the row is committed")
    monkeypatch.setattr(KafkaAdmin, "views", late)
    topic.put(("b", 10))
    assert called.wait(ANSWERS_WITHIN), "whether the second batch has read the same topic"
    reader = threading.Thread(target=query.stage_status)
    reader.start()
    reader.join(ANSWERS_WITHIN / 2)
    waited = reader.is_alive()
    answers.set()
    assert not waited
    upstream.at(10)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(10), "it answers")


def test_rule1_a_stage_in_real_time_mode_is_as_far_as_its_commits(
    topic: Topic, lw: lowwater.Client, upstream: Upstream
) -> None:
    topic.kafka.create(f"{topic.name}.out")
    folder = topic.flow.folder
    rows = topic.read().select("key", sf.to_json(sf.struct("key", "t")).alias("value"), "t")
    sink: dict[str, Any] = {"kafka.bootstrap.servers": topic.kafka.address, "topic": f"{topic.name}.out"}

    def start() -> lws.TrackedQuery:
        stage = lws.stage(
            topic.flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=topic.flow.address
        )
        query = stage.start(
            rows,
            checkpoint=folder / "ck",
            format="kafka",
            output_mode="update",
            trigger={"realTime": "5 seconds"},
            **sink,
        )
        topic.flow.queries.append(query)
        return query

    topic.put(("a", 9))
    query = start()
    upstream.at(10)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(10), "the first commit")
    query.stop()
    # As after a crash between the two entries of a batch: Spark then reads from the batch before on, to another end.
    last = max(int(file.name) for file in (folder / "ck/commits").glob("[0-9]*"))
    (folder / f"ck/commits/{last}").unlink()
    topic.put(("b", 10))
    upstream.at(11)
    start()
    topic.flow.eventually(lambda: low(lw, "stage") == mark(11), "the next commit")
    written = {json.loads(row.value)["key"] for row in topic.kafka.rows(f"{topic.name}.out")}
    assert written == {"a", "b"}
