"""The authority that attach() starts beside the driver: it serves, keeps what it should, and ends with its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lowwater
from lowwater_spark.attach import embedded
from tests.kit.eventually import eventually
from tests.kit.program import is_running
from tests.kit.times import at
from tests.process.browsing import ask

DRIVER = """
import sys
from pathlib import Path
from lowwater_spark.attach import embedded
found = embedded.acquire(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
print(found.process.pid, found.address, found.data, flush=True)
sys.stdin.read()
"""
"""A program that only starts one."""


def publish(address: str) -> None:
    with lowwater.connect(address) as lw:
        lw.register("c", heuristics=())
        lease = lw.worker("c").claim()
        lease.advance(None, oldest=None, frontier=at(9))
        lease.flush(20)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_it_ends_with_its_driver_and_leaves_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdin=-1, stdout=-1, text=True) as driver:
        assert driver.stdout is not None
        pid, address, folder = driver.stdout.readline().split()
        publish(address)
        assert Path(folder, "journal.sqlite").exists()
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait(30)
        eventually(lambda: not is_running(int(pid)), "the authority has ended")
        eventually(lambda: not Path(folder).exists(), "its folder is gone")


def test_a_folder_of_ones_own_is_refused_while_it_is_used_and_read_again_afterwards(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdin=-1, stdout=-1, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        publish(driver.stdout.readline().split()[1])
        with pytest.raises(RuntimeError, match="did not start over") as caught:
            embedded.acquire(tmp_path)
        assert "lowwater serve: " in str(caught.value), "what the authority said of it"
        driver.stdin.close()
        assert driver.wait(30) == 0
    # The sessions of a process share the authority until the last has gone.
    one, two = embedded.acquire(tmp_path), embedded.acquire(tmp_path)
    assert one is two
    embedded.release(one)
    assert not two.ended
    assert children(two.process.pid) == [], "the process of its page starts when the page is opened"
    assert ask(two.page_url, "").status == 200
    assert len(children(two.process.pid)) == 1
    with lowwater.connect(two.address) as lw:
        assert lw.get("c")["c"].low == lowwater.Watermark.of(at(9))
    embedded.release(two)
    assert (two.ended, two.process.returncode) == (True, 0)


def test_without_the_authority_installed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lowwater_authority", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install dist/packages/\*.whl"):
        embedded.acquire(None)
