"""The client on a computation that is cut into slices, against a real ``lowwater serve``."""

from __future__ import annotations

import json

import pytest

import lowwater
from lowwater import Slice
from lowwater.cli import main
from tests.kit.eventually import eventually
from tests.process.serving import Serving

KEYS = [b"\x40", b"\x80", b"\xc0"]


@pytest.fixture
def cut(lw: lowwater.Client) -> lowwater.Client:
    lw.register("flights")
    lw.register("hourly", inputs=["flights"], slices=KEYS)
    return lw


def test_a_slice_is_cut_in_two_by_the_client_and_by_the_command(
    cut: lowwater.Client, server: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = cut.worker("hourly")
    leases = {part.name: worker.claim(part.start, part.end) for part in cut.slices("hourly")}
    assert cut.split_slice("hourly~1", b"\x60") == Slice("hourly~4", b"\x60", b"\x80")
    eventually(lambda: not cut.topology().computations["hourly~4"].slice_source)
    assert main(["slices", "split", "hourly~4", "--at", "0x70", "--address", server.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"slice": "hourly~4", "new": "hourly~5", "start": "70", "end": "80"}
    eventually(lambda: not cut.topology().computations["hourly~5"].slice_source)
    assert main(["slices", "list", "hourly", "--address", server.address]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["SLICE", "FIRST", "KEY", "FIRST", "KEY", "AFTER"],
        ["hourly~0", "-", "0x40"],
        ["hourly~1", "0x40", "0x60"],
        ["hourly~4", "0x60", "0x70"],
        ["hourly~5", "0x70", "0x80"],
        ["hourly~2", "0x80", "0xc0"],
        ["hourly~3", "0xc0", "-"],
    ]
    # Who had all of the slice has lost it; the keys are claimed by the name of the whole.
    with pytest.raises(lowwater.StaleSequencer):
        leases["hourly~1"].release()
    assert [worker.claim(part.start, part.end).computation for part in cut.slices("hourly")][1:4] == [
        "hourly~1",
        "hourly~4",
        "hourly~5",
    ]
    assert cut.register("hourly", inputs=["flights"], slices=KEYS).slices == tuple(KEYS), "it is the same registration"
    for name, key, field in (("hourly~1", b"\x40", "at"), ("hourly~9", b"\x41", "slice"), ("hourly", b"\x41", "name")):
        with pytest.raises(lowwater.InvalidArgument) as refused:
            cut.split_slice(name, key)
        assert refused.value.metadata["field"] == field
