"""The lanes of a process: what happens to one leaves the others alone, and partitions go from process to process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from prometheus_client import CollectorRegistry, generate_latest

from lowwater_pipeline.dedup.errors import Held
from lowwater_pipeline.dedup.figures import FIGURES, Collector
from lowwater_pipeline.dedup.job import Job, refusal
from lowwater_pipeline.dedup.settings import client_settings
from lowwater_pipeline.dedup.topics import pin
from tests.kit.eventually import eventually
from tests.kit.kafka import Row
from tests.pipeline.case import EXACT, Case, by_partition

Make = Callable[..., Case]

PARTITIONS = 2
IDS = [b"id-%d" % number for number in range(200)]
FIRST, SECOND = (
    [row.key or b"" for row in by_partition(IDS, PARTITIONS) if row.partition == place] for place in range(PARTITIONS)
)


@contextmanager
def running(case: Case, **changes: object) -> Iterator[Job]:
    settings = replace(case.settings, **changes)  # type: ignore[arg-type]
    stopping = threading.Event()
    with Job(settings) as job:
        thread = threading.Thread(target=job.run, args=(stopping,))
        thread.start()
        try:
            yield job
        finally:
            stopping.set()
            thread.join()


def sum_of(job: Job, name: str) -> int:
    return sum(getattr(count, name) for count in job.counts().values())


def has_all(case: Case) -> Callable[[], bool]:
    return lambda: {row.key for row in case.rows()} >= {row.key for row in case.sent if row.key}


def test_a_partition_that_is_fenced_goes_on_and_its_neighbour_never_stops(make: Make) -> None:
    case = make(partitions=PARTITIONS)
    with running(case) as job:
        case.put(*by_partition(IDS, PARTITIONS))
        eventually(has_all(case), "both work")
        opened = job.counts()[1].opened
        name = case.settings.transactional_id(0)
        stranger = Producer({"bootstrap.servers": case.kafka.address, "log_level": 0, "transactional.id": name})
        stranger.init_transactions(60)
        case.put(*by_partition([b"more-%d" % index for index in range(100)], PARTITIONS))
        case.put(*by_partition(IDS, PARTITIONS))
        eventually(has_all(case), "the first one takes its partition back")
        assert job.counts()[0].opened > 1
        assert job.counts()[1].opened == opened, "the second one was not opened again"
        eventually(lambda: sum_of(job, "duplicates") == len(IDS), "all is read")
    assert case.outcome() == EXACT


def test_partitions_go_from_process_to_process(make: Make) -> None:
    case = make(partitions=4)
    elsewhere = case.settings.state.with_name("elsewhere")

    def burst(number: int) -> None:
        ids = [b"%d-%d" % (number, index) for index in range(100)]
        case.put(*by_partition([*ids, *IDS], 4))

    with running(case) as first:
        burst(1)
        eventually(has_all(case), "the first one has all")
        with running(case, state=elsewhere) as second:
            eventually(lambda: len(second.workers()) == len(first.workers()) == 2, "they share the partitions")
            burst(2)
            eventually(has_all(case), "both work")
            assert sum_of(second, "admitted") > 0
        burst(3)
        eventually(lambda: len(first.workers()) == 4, "the first one has all partitions again")
        eventually(has_all(case), "and goes on")
    assert case.outcome() == EXACT


def test_a_topic_that_goes_away_stops_everything(make: Make) -> None:
    case = make(partitions=PARTITIONS, look=0.1, until_known=0.5)
    with running(case) as job:
        case.put(*by_partition(IDS, PARTITIONS))
        eventually(has_all(case), "it works")
        workers = job.workers()
        case.kafka.delete(case.settings.input)
        case.kafka.create(case.settings.input, PARTITIONS)
        eventually(lambda: all(worker.refused for worker in workers), "everything stops")
        assert all("made anew" in str(worker.refused) or "no topic" in str(worker.refused) for worker in workers)


@pytest.mark.parametrize("name", ["OFFSET_METADATA_TOO_LARGE", "INVALID_TIMESTAMP"])
def test_what_a_new_lane_would_meet_as_well_is_refused(name: str) -> None:
    error = KafkaError(getattr(KafkaError, name))
    assert f"Kafka refuses: {error.str()} ({name})" in str(refusal(KafkaException(error)))


def test_what_a_new_lane_may_do_without_holds() -> None:
    passing = KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))
    faults: list[Exception] = [passing, Held("the memory is open elsewhere"), OSError(), SystemError()]
    assert [refusal(error) for error in faults] == [None] * 4


def test_brokers_that_do_not_answer_in_time_hold(case: Case) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = replace(case.settings, clients=client_settings(address, {}), patience=0.05)
        with pytest.raises(Held, match="says what topics there are"):
            pin(settings)


def test_a_message_without_an_id_stops_its_partition_alone_and_the_figures_say_so(make: Make) -> None:
    case = make(partitions=PARTITIONS)
    with running(case) as job:
        case.put(*by_partition(IDS, PARTITIONS), *by_partition(IDS[:50], PARTITIONS))
        case.put(Row(b"v", None, 0))
        eventually(lambda: (sum_of(job, "admitted"), sum_of(job, "duplicates")) == (len(IDS), 50), "all is read")
        eventually(lambda: any(worker.refused for worker in job.workers()), "the first partition stops")
        (stopped,) = [worker for worker in job.workers() if worker.refused is not None]
        assert f"[0] at offset {len(FIRST) + len([key for key in FIRST if key in IDS[:50]])} stops" in str(
            stopped.refused
        )
        case.put(*by_partition(SECOND, PARTITIONS))
        eventually(lambda: sum_of(job, "duplicates") == 50 + len(SECOND), "the second one goes on")
        registry = CollectorRegistry()
        registry.register(Collector(job))
        topic = case.settings.input

        def value(name: str, partition: int) -> float | None:
            return registry.get_sample_value(f"lowwater_dedup_{name}", {"topic": topic, "partition": str(partition)})

        assert [value("admitted_messages_total", partition) for partition in (0, 1)] == [len(FIRST), len(SECOND)]
        assert sum(value("duplicate_messages_total", partition) or 0 for partition in (0, 1)) == 50 + len(SECOND)
        assert [value("remembered_ids", partition) for partition in (0, 1)] == [len(FIRST), len(SECOND)]
        assert [value("refused", partition) for partition in (0, 1)] == [1, 0]
        assert [value("running", partition) for partition in (0, 1)] == [0, 1]
        assert value("state_bytes", 1)
        assert value("lag_messages", 1) == 0
        assert value("window_since_timestamp_seconds", 1) is None
        assert value("watermark_timestamp_seconds", 1) is None
        text = generate_latest(registry).decode()
        assert all(f"# TYPE {figure.name} {figure.kind}" in text for figure in FIGURES)
