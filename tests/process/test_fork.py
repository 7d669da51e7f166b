"""A process forks while its client is in use: both go on, each with a connection of its own."""

from __future__ import annotations

import re
import urllib.request

from tests.process.serving import Serving
from tests.process.test_client_end_to_end import run

PARENT = """
import os, signal, sys, threading, traceback
import lowwater

def fork(child):
    # Run a function in a forked child; returns its id.
    pid = os.fork()
    if not pid:
        code = 1
        signal.alarm(30)  # one that hangs ends by the alarm, which shows
        try:
            child()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid

def joined(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

class Parent:
    # A client with open watch and report streams.
    def __init__(self, address):
        self.lw = lw = lowwater.connect(address)
        lw.register("parent")
        self.lease = lw.worker("parent").claim()
        self.reader = lw.inputs("parent")
        self.at = 0
        self.goes_on()

    def goes_on(self):
        # Advances under the claim it has had all along, and hears of it.
        self.at += 1
        self.lease.advance(None, oldest=None, frontier=self.at)
        self.lease.flush(20)
        assert self.lw.wait("parent", self.at, timeout=20).low.micros == self.at
        assert self.reader.read().low.micros == self.at
        assert not self.lease.lost
        assert self.lw.statistics().reporter.refused == 0

def use(lw, name):
    # What a child does with a client.
    lw.register(name)
    with lw.worker(name) as worker:
        lease = worker.claim()
        lease.advance(None, oldest=None, frontier=7)
        lease.flush(20)
    return lw.wait(name, 7, timeout=20).low.micros

"""


def reports(server: Serving) -> tuple[int, int]:
    """Report messages that the authority acknowledged, and those of them that it refused or that ended a stream."""
    with urllib.request.urlopen(server.metrics) as page:
        text = page.read().decode()
    total = re.search(r"^lowwater_reports_total (\S+)$", text, re.MULTILINE)
    refused = re.findall(r"^lowwater_refused\w+\{.*\} (\S+)$", text, re.MULTILINE)
    assert total
    return int(float(total[1])), sum(int(float(count)) for count in refused)


def test_a_child_reads_claims_and_reports_and_the_parent_goes_on_undisturbed(server: Serving) -> None:
    program = """
        parent = Parent(sys.argv[1])
        def child():
            assert parent.lw.get("parent")["parent"].low.micros >= parent.at
            assert parent.reader.read().low.micros >= parent.at
            assert use(parent.lw, "child") == 7
            done = parent.lw.statistics().reporter
            assert (done.streams, done.reports) == (1, done.acknowledged)
            print(done.acknowledged)
            try:
                parent.lease.advance(None, oldest=None, frontier=100)
            except lowwater.Closed as error:
                assert "forked" in str(error)
        for _ in range(3):
            pid = fork(child)
            parent.goes_on()
            assert joined(pid) == 0
            parent.goes_on()
        print(parent.lw.statistics().reporter.acknowledged)
        parent.lw.close()
    """
    own = [int(line) for line in run(program_of(program), server.address).split()]
    assert len(own) == 4
    # Each process reported for itself alone: nothing came twice, and no stream pushed out another's.
    assert reports(server) == (sum(own), 0)


def program_of(body: str) -> str:
    """The program of a parent."""
    lines = body.splitlines()
    return PARENT + "\n".join(line.removeprefix(" " * 8) for line in lines)


def test_twenty_forks_while_other_threads_call_without_a_pause(server: Serving) -> None:
    program = """
        parent = Parent(sys.argv[1])
        parent.lw.register("busy")
        stop = threading.Event()
        failed = []
        def busily(work):
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failed.append(error)
        lease, advanced = parent.lw.worker("busy").claim(), []
        def report():
            advanced.append(len(advanced))
            lease.advance(None, oldest=None, frontier=advanced[-1])
            lease.flush(20)
        threads = [threading.Thread(target=busily, args=(work,)) for work in (report, lambda: parent.lw.get("busy"))]
        for thread in threads:
            thread.start()
        for number in range(20):
            assert joined(fork(lambda: use(parent.lw, f"child-{number}"))) == 0, number
            parent.goes_on()
        # The whole way out of the interpreter: threads are joined, atexit and destructors run.
        pid = os.fork()
        if not pid:
            sys.exit(3)
        assert joined(pid) == 3
        parent.goes_on()
        stop.set()
        for thread in threads:
            thread.join(20)
        assert not failed, failed
        assert parent.lw.get("busy")["busy"].low.micros == advanced[-1]
        parent.lw.close()
        print("done")
    """
    assert run(program_of(program), server.address) == "done\n"
