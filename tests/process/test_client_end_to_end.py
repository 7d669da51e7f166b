"""The client against a real ``lowwater serve``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest

import lowwater
from lowwater import RangeState, TaskAttempt, Watermark
from lowwater.cli import main
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.process.serving import Serving

BOUNDS = [b"", b"\x40", b"\x80", b""]


def pipeline(lw: lowwater.Client) -> tuple[lowwater.Lease, lowwater.Worker, lowwater.Lease]:
    """Register flights -> enriched, each with one worker."""
    lw.register("flights")
    lw.register("enriched", inputs=["flights"], heuristics=[0.5, 0.99])
    flights = lw.worker("flights", name="injector").claim()
    worker = lw.worker("enriched", name="exec-7")
    return flights, worker, worker.claim(bounds=BOUNDS)


def inputs_at(worker: lowwater.Worker, low: Watermark) -> lowwater.Inputs:
    """Wait until a worker's inputs have come to a time."""
    eventually(lambda: worker.inputs().low >= low)
    return worker.inputs()


def test_a_pipeline_from_registration_to_its_end(lw: lowwater.Client) -> None:
    flights, worker, enriched = pipeline(lw)
    assert lw.register("flights").incarnation == 1
    assert lw.topology().computations["enriched"].input_incarnations == (1,)
    assert list(enriched.watermarks) == [Watermark.UNKNOWN] * 3
    assert worker.inputs().low.unknown

    flights.advance(None, oldest=None, frontier=at(14))
    assert lw.wait("flights", at(14), timeout=30).low == mark(14)
    seen = inputs_at(worker, mark(14))
    assert seen.held_by == f"flights all keys, owned by injector on {worker.host}"
    enriched.advance(seen, oldest=[None, at(13), None], pending=[at(13)], finished=99)
    enriched.flush()

    view = lw.get("enriched")["enriched"]
    assert view.low == mark(13)
    assert view.heuristic[0.5] == mark(14), "99 of 100 records are past 14:00"
    found = lw.complete("enriched", at(14))
    assert (bool(found), found.holding, found.holders[0].start) == (False, 1, b"\x40")
    assert lw.complete("enriched", at(13)).complete
    why = lw.why("enriched")
    assert [hop.computation for hop in why] == ["enriched"]
    assert "held by [0x40, 0x80) at 2013-01-09T13:00:00Z, owned by exec-7" in str(why)
    assert [each.watermark for each in lw.ranges("enriched")] == [mark(13), mark(14), mark(14)]
    assert lw.ranges("enriched", below=at(14)).total == 1

    enriched.advance(seen, oldest={1: None})
    assert lw.wait("enriched", at(14), timeout=30).low == mark(14)
    assert lw.why("enriched").hops[0].sentence.endswith("that is as far as its input flights allows.")

    with pytest.raises(lowwater.Timeout, match="did not reach finished"):
        lw.wait("enriched", Watermark.FINISHED, timeout=0.05)
    flights.finish()
    enriched.advance(inputs_at(worker, Watermark.FINISHED), oldest=None)
    assert lw.wait("enriched", Watermark.FINISHED, timeout=30).low.finished
    assert str(lw.why("enriched")) == "enriched is finished: nothing will ever come."
    with pytest.raises(lowwater.Closed, match="finished"):
        flights.advance(None, oldest=None, frontier=at(15))
    assert lw.statistics().reporter.refused == 0


def test_subscribers_see_every_computation_and_the_newest_values(lw: lowwater.Client) -> None:
    flights, _, _ = pipeline(lw)
    changes = lw.watch()
    assert {next(changes).computation, next(changes).computation} == {"flights", "enriched"}
    with lw.inputs("flights", "enriched") as both:
        folds = both.watch()
        assert next(folds).low.unknown
        for hour in (10, 11, 12):
            flights.advance(None, oldest=None, frontier=at(hour))
            flights.flush()
        while next(changes).low != mark(12):
            pass
        assert both.read().each["flights"].low == mark(12)
        assert both.read().held_by == f"enriched [.., @), owned by exec-7 on {lw.worker('x').host}"
        assert both.read().stale_for < 10


def test_a_watch_ends_when_its_reader_or_client_is_closed(lw: lowwater.Client) -> None:
    lw.register("flights")
    reader = lw.inputs("flights")
    seen: list[object] = []
    first = threading.Event()

    def follow(iterator: Iterator[object]) -> None:
        for each in iterator:
            seen.append(each)
            first.set()

    for source, end in ((reader.watch(), reader.close), (lw.watch("flights"), lw.close)):
        first.clear()
        thread = threading.Thread(target=follow, args=(source,))
        thread.start()
        assert first.wait(30)
        end()
        thread.join(30)
        assert not thread.is_alive()
    assert len(seen) == 2


def test_values_keep_across_kill_and_restart_while_a_worker_reports(server: Serving, lw: lowwater.Client) -> None:
    flights, worker, enriched = pipeline(lw)
    flights.advance(None, oldest=None, frontier=at(14))
    enriched.advance(inputs_at(worker, mark(14)), oldest=at(13))
    enriched.flush()
    server.kill()

    # Without the authority the pipeline goes on; watermarks stop.
    flights.advance(None, oldest=None, frontier=at(16))
    assert worker.inputs().low == mark(14)
    enriched.advance(worker.inputs(), oldest=None)
    with pytest.raises(lowwater.Timeout, match="stays staged"):
        enriched.flush(timeout=0.05)
    eventually(lambda: worker.inputs().stale_for > 0.3)

    server.start()
    assert lw.wait("flights", at(16), timeout=30).low == mark(16)
    assert lw.wait("enriched", at(14), timeout=30).low == mark(14)
    enriched.advance(inputs_at(worker, mark(16)), oldest=None)
    enriched.flush(timeout=30)
    assert lw.get("enriched")["enriched"].low == mark(16)
    assert lw.statistics().reporter.streams > 1
    assert worker.inputs().stale_for < 10


def test_a_newer_claim_fences_the_older_one(lw: lowwater.Client) -> None:
    _, worker, old = pipeline(lw)
    seen = worker.inputs()
    old.advance(seen, oldest=None)
    old.flush()
    new = lw.worker("enriched", name="exec-8").claim(b"\x40", b"\x80")
    eventually(lambda: old.lost == {1})
    with pytest.raises(lowwater.StaleSequencer, match="1 of its 3 ranges"):
        old.advance(seen, oldest=None)
    old.advance(seen, oldest=None)
    assert list(old.live) == [0, 2]
    lw.worker("enriched").claim()
    for lease in (old, new):
        eventually(lambda lease=lease: len(lease.live) == 0 or _advance(lease, seen))  # type: ignore[misc]
        with pytest.raises(lowwater.StaleSequencer, match="all its ranges"):
            lease.advance(seen, oldest=None)
        with pytest.raises(lowwater.StaleSequencer):
            lease.flush()


def _advance(lease: lowwater.Lease, seen: lowwater.Inputs) -> bool:
    """A claim that never reported hears of its loss with its first report."""
    try:
        lease.advance(seen, oldest=None)
    except lowwater.StaleSequencer:
        pass
    return False


def test_a_released_range_holds_until_it_is_claimed_again(lw: lowwater.Client) -> None:
    flights, worker, enriched = pipeline(lw)
    flights.advance(None, oldest=None, frontier=at(14))
    enriched.advance(inputs_at(worker, mark(14)), oldest=at(13))
    enriched.release()
    with pytest.raises(lowwater.Closed, match="released"):
        enriched.advance(worker.inputs(), oldest=None)
    [unowned, *_] = lw.ranges("enriched")
    assert (unowned.watermark, unowned.state) == (mark(13), RangeState.UNOWNED)
    again = worker.claim(bounds=BOUNDS, bound=[at(11), at(15), at(12)])
    assert list(again.watermarks) == [mark(11), mark(13), mark(12)]
    assert lw.retire("enriched", b"\x40", b"\x80", force=True) == 1
    seen = worker.inputs()
    eventually(lambda: _advance(again, seen) or 1 in again.lost)


def workers_that_cannot_leave(server: Serving, lw: lowwater.Client) -> list[lowwater.Lease]:
    """Three claims of three workers, with states that will not be durable: the authority is gone."""
    leases = []
    for name in ("a", "b", "c"):
        lw.register(name)
        leases.append(lw.worker(name).claim())
    server.kill()
    for lease in leases:
        lease.advance(None, oldest=None, frontier=at(14))
    return leases


def test_a_program_that_is_interrupted_while_it_leaves_leaves(server: Serving, lw: lowwater.Client) -> None:
    workers_that_cannot_leave(server, lw)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)  # SIGINT is ignored in a run in the background
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            lw.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(lowwater.Closed):
        lw.get()


def test_leaving_a_worker_makes_its_last_state_durable(lw: lowwater.Client) -> None:
    lw.register("flights")
    with lw.worker("flights") as worker:
        lease = worker.claim()
        lease.advance(None, oldest=None, frontier=at(14))
    assert lw.get("flights")["flights"].low == mark(14)
    with pytest.raises(lowwater.Closed):
        lease.advance(None, oldest=None, frontier=at(15))
    with pytest.raises(lowwater.Closed):
        worker.claim()


def test_leaving_a_client_does_so_for_all_its_workers(server: Serving, lw: lowwater.Client) -> None:
    with lowwater.connect(server.address) as leaving:
        leaving.register("flights")
        leaving.worker("flights").claim().advance(None, oldest=None, frontier=at(14))
    assert lw.get("flights")["flights"].low == mark(14)


def test_a_wait_does_not_survive_a_reset(server: Serving, lw: lowwater.Client) -> None:
    flights, worker, enriched = pipeline(lw)
    flights.advance(None, oldest=None, frontier=at(14))
    enriched.advance(inputs_at(worker, mark(14)), oldest=None)
    lw.wait("enriched", at(14), timeout=30)
    with lowwater.connect(server.address) as other, futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, "enriched", at(15), timeout=30)
        eventually(lambda: other.statistics().watcher.messages > 0, "it knows in which incarnation it waits")
        assert [each.name for each in lw.reset("flights")] == ["flights", "enriched"]
        assert isinstance(waiting.exception(30), lowwater.IncarnationChanged)
    eventually(lambda: bool(flights.lost) and bool(enriched.lost))
    assert lw.get("enriched")["enriched"].incarnation == 2
    again = worker.claim(bounds=BOUNDS)
    again.advance(worker.inputs(), oldest=None)
    again.flush()
    lw.worker("flights").claim().finish()
    again.advance(inputs_at(worker, Watermark.FINISHED), oldest=None)
    assert lw.wait("enriched", Watermark.FINISHED, timeout=30).incarnation == 2


def test_a_wait_after_a_reset_never_sees_the_old_incarnation(server: Serving, lw: lowwater.Client) -> None:
    lw.register("flights")
    lw.register("other")
    for _ in range(5):
        lw.worker("flights").claim().advance(None, oldest=None, frontier=at(14))
        old = lw.wait("flights", at(14), timeout=30)
        lw.reset("flights")
        with pytest.raises(lowwater.Timeout):
            lw.wait("flights", at(14), timeout=0.01)
        assert lw.get("flights")["flights"].incarnation == old.incarnation + 1

    lw.worker("flights").claim().advance(None, oldest=None, frontier=at(14))
    old = lw.wait("flights", at(14), timeout=30)
    server.kill()
    eventually(lambda: lw.statistics().watcher.stale_for > 1)
    with pytest.raises(lowwater.Timeout):
        lw.wait("flights", at(14), timeout=0.01)
    server.start()
    with lowwater.connect(server.address) as somebody:
        somebody.reset("flights")
    for _ in range(2):
        # Its claim is gone with its incarnation, so nobody reports.
        with pytest.raises(lowwater.Timeout):
            lw.wait("flights", at(14), timeout=0.3)
    with lw.inputs("flights") as reader:
        assert reader.read().incarnations == (old.incarnation + 1,)


def test_another_deployment_is_refused(server: Serving, lw: lowwater.Client, tmp_path: Path) -> None:
    flights, worker, _ = pipeline(lw)
    flights.advance(None, oldest=None, frontier=at(14))
    inputs_at(worker, mark(14))
    server.kill()
    (tmp_path / "other").mkdir()
    with Serving(tmp_path / "other" / "data", port=server.port):
        for call in (lw.get, lw.topology, worker.claim, lambda: lw.wait("flights", at(15), timeout=30)):
            with pytest.raises(lowwater.ServerTokenMismatch):
                call()
        eventually(lambda: _refused(lambda: flights.advance(None, oldest=None, frontier=at(15))))
        eventually(lambda: _refused(worker.inputs))
        with lowwater.connect(server.address, server_token=lw.server_token) as strict:
            with pytest.raises(lowwater.ServerTokenMismatch):
                strict.get()


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except lowwater.ServerTokenMismatch:
        return True
    return False


@pytest.mark.long  # unit/test_wide_claims.py and test_client_values.py tell its parts
def test_a_million_ranges(server: Serving) -> None:
    count = 1_000_000
    with lowwater.connect(server.address, timeout=60) as lw:
        lw.register("flights", heuristics=[])
        lease = lw.worker("flights").claim(bounds=[b"", *(i.to_bytes(3, "big") for i in range(1, count)), b""])
        column = np.arange(count, dtype=np.int64)
        lease.advance(None, oldest=column, frontier=at(14))  # type: ignore[arg-type]
        lease.flush()
        assert lw.get("flights")["flights"].low == Watermark(0)
        column[:10] = 500
        lease.advance(None, oldest=column, frontier=at(14))  # type: ignore[arg-type]
        lease.flush()
        assert lw.get("flights")["flights"].low == Watermark(10)
        lease.advance(None, oldest={10: 11}, frontier=at(14))
        lease.flush()
        assert lw.ranges("flights", below=Watermark(12), limit=5).total == 2
        lease.advance(None, oldest=None, frontier=at(14))
        lease.flush()
        assert lw.get("flights")["flights"].low == mark(14)


def test_micro_batches_are_staged_prepared_and_committed(lw: lowwater.Client) -> None:
    flights, worker, enriched = pipeline(lw)
    flights.advance(None, oldest=None, frontier=at(14))
    seen = inputs_at(worker, mark(14))
    name, sequencer, task = "enriched", enriched.sequencer, TaskAttempt(1, 0, 5)
    batch = {"digest": b"plan", "bound": seen.low, "seen": seen, "covers_all": True}
    assert lw.batches.prepare(name, sequencer, 0, tasks=[task], **batch) == (task,)  # type: ignore[arg-type]
    lw.batches.stage_task(name, sequencer, 0, task, handles=[0, 1, 2], oldest=[None, at(13), None], finished=10)
    with pytest.raises(lowwater.NotPrepared):
        lw.batches.commit(name, sequencer, 0)
    assert lw.batches.prepare(name, sequencer, 0, tasks=[task], **batch) == ()  # type: ignore[arg-type]
    assert lw.get(name)[name].low.unknown
    assert lw.batches.commit(name, sequencer, 0) == ()
    assert lw.batches.commit(name, sequencer, 0) == ()
    assert lw.get(name)[name].low == mark(13)


def run(program: str, *arguments: str) -> str:
    """Run a program that must end quietly, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # gRPC notes in its own log that it leaves the threads of a forking process alone.
    complaints = [line for line in done.stderr.splitlines() if "skipping fork() handlers" not in line]
    assert (done.returncode, complaints) == (0, [])
    return done.stdout


WATCHING = """
import os, signal, sys, traceback
import lowwater

lw = lowwater.connect(sys.argv[1])
lw.register("parent")

def started():
    changes = lw.watch("parent")
    assert next(changes).registered
    return changes

begun, dropped = started(), started()
watcher = lw._runtime().watcher
pid = os.fork()
if not pid:
    signal.alarm(20)
    code = 1
    try:
        watcher.changed = None  # nobody may touch the parent's lock: it may be held for ever
        dropped.close()
        assert list(begun) == []
        assert next(lw.watch("parent")).registered
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
lw.worker("parent").claim().advance(None, oldest=None, frontier=5)
for changes in (begun, dropped):
    while next(changes).low.micros != 5:
        pass
lw.close()
assert (list(begun), list(dropped)) == ([], [])
print("done")
"""


def test_a_watch_that_was_begun_ends_in_a_child_and_goes_on_in_its_parent(server: Serving) -> None:
    assert run(WATCHING, server.address) == "done\n"


def test_a_program_ends_though_a_thread_of_the_client_went_away_with_a_lock(server: Serving) -> None:
    """At the end of a program threads cease to exist wherever they are, and what was begun is ended: a watch, for one."""
    program = """
        import sys, threading, lowwater
        lw = lowwater.connect(sys.argv[1])
        lw.register("flights")
        changes = lw.watch("flights")
        next(changes)
        gone = threading.Thread(target=lw._runtime().watcher.changed.acquire)
        gone.start()
        gone.join()
        print("done")
    """
    assert run(program, server.address) == "done\n"


def test_streams_that_have_ended_leave_nothing_to_the_collector(server: Serving) -> None:
    """Calls of gRPC wait for a lock when they are freed: at the end of a program perhaps for one of a thread that is gone."""
    program = """
        import gc, sys, lowwater
        gc.disable()
        lw = lowwater.connect(sys.argv[1])
        lw.register("flights")
        changes = lw.watch("flights")
        next(changes)
        with lw.worker("flights") as worker:
            worker.claim().advance(None, oldest=None, frontier=5)
        lw.close()
        print([each for each in gc.get_objects() if type(each).__name__.endswith("Rendezvous")])
    """
    assert run(program, server.address) == "[]\n"


def test_a_program_that_just_ends_ends_at_once_and_quietly(server: Serving) -> None:
    program = """
        import sys, lowwater
        lw = lowwater.connect(sys.argv[1])
        lw.register("flights")
        lease = lw.worker("flights").claim()
        lease.advance(None, oldest=None, frontier=5)
        lease.flush()
        print(lw.inputs("flights").read().low)
    """
    assert run(program, server.address) == "1970-01-01T00:00:00.000005Z\n"


def test_a_wait_for_what_has_to_be_registered_ends_at_once(lw: lowwater.Client) -> None:
    """By default a name may be registered at any time, so only a time-out ends the wait."""
    with pytest.raises(lowwater.UnknownComputation, match="flihgts") as caught:
        lw.wait("flihgts", at(14), registered=True)
    assert caught.value.metadata == {"computation": "flihgts"}
    with pytest.raises(lowwater.Timeout, match="is not registered"):
        lw.wait("flihgts", at(14), 0.2)
    lw.register("flihgts")
    lw.worker("flihgts").claim().finish()
    assert lw.wait("flihgts", at(14), 60, registered=True).low.finished


def test_a_lateness_budget_from_registration_over_a_kill_to_the_command(
    server: Serving, lw: lowwater.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    registered = lw.register("flights", heuristics=[], lateness_budget=0.01)
    assert registered.lateness_budgets == (0.01,)
    with pytest.raises(lowwater.RegistrationConflict, match="lateness budgets"):
        lw.register("flights", heuristics=[])
    lease = lw.worker("flights").claim()
    for minute in range(10):
        clock = at(14, minute)
        lease.advance(None, oldest=at(9), frontier=clock, finished=[clock] * 80 + [at(13, minute)] * 20)
        lease.flush()
    budget = lw.get("flights")["flights"].budget[0.01]
    assert mark(13) <= budget.watermark <= mark(13, 30), (
        "a fifth of the records is an hour late, and nothing has come behind yet"
    )
    assert (budget.records, budget.excused) == (1000, 0)
    server.kill()
    server.start()
    lease.advance(None, oldest=at(9), frontier=at(14, 9), finished=[at(10)])
    lease.flush(timeout=30)
    after = lw.get("flights")["flights"].budget[0.01]
    assert (after.watermark, after.records, after.behind) == (budget.watermark, 1001, budget.behind + 1)
    assert main(["status", "--address", server.address, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["computations"]
    assert record["budget"]["0.01"]["behind"] == after.behind
    assert main(["status", "--address", server.address]) == 0
    shown = capsys.readouterr().out
    assert "BUDGET 1 %" in shown
    assert "% behind" in shown
