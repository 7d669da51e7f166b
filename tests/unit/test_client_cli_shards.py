"""The commands about shards: what their arguments mean, and how answers look."""

import json

import pytest

from lowwater.cli import main, render
from lowwater.cli.arguments import parser
from lowwater.cli.shards import handing_over, shards_record, shards_table, taken_by_others
from lowwater.views import Shards, ShardView

ONE = ShardView("lowwater-0:7420", "a1", draining=False, silent_for=0.12, computations=("flights", "weather"))
TWO = ShardView("lowwater-1:7420", "b1", draining=False, silent_for=0.08, computations=("hourly",))
THREE = ShardView("lowwater-2:7420", "c1", draining=True, silent_for=0.2, computations=("daily",))
THERE = Shards(7, (ONE, TWO, THREE), {"hourly": "lowwater-1:7420"}, ())


def test_shards_are_a_table() -> None:
    assert shards_table(THERE).splitlines() == [
        "SHARD            STATE     SILENT  SERVES",
        "lowwater-0:7420  serving   120 ms  2       flights, weather",
        "lowwater-1:7420  serving   80 ms   1       hourly",
        "lowwater-2:7420  draining  200 ms  1       daily",
        "hourly is pinned to lowwater-1:7420",
    ]


def test_shards_say_what_is_out_of_order() -> None:
    done = ShardView("lowwater-2:7420", "c1", draining=True, silent_for=2, computations=())
    many = ShardView("here:1", "d1", draining=False, silent_for=0, computations=tuple(f"c{n}" for n in range(7)))
    shown = shards_table(Shards(8, (many, done), {"hourly": "lowwater-1:7420"}, ("hourly", "daily"))).splitlines()
    assert shown[1:] == [
        "here:1           serving  0 ms    7       c0, c1, c2, c3, c4 and 2 more",
        "lowwater-2:7420  drained  2 s     0",
        "hourly is pinned to lowwater-1:7420, which is away",
        "nobody serves hourly, daily just now",
    ]


def test_shards_in_json_are_one_object() -> None:
    record = json.loads(render.to_json(shards_record(Shards(7, (THREE,), {"a": "x:1"}, ("b",)))))
    assert record == {
        "version": 7,
        "shards": [
            {
                "address": "lowwater-2:7420",
                "id": "c1",
                "state": "draining",
                "silent_seconds": 0.2,
                "computations": ["daily"],
            }
        ],
        "pins": {"a": "x:1"},
        "unserved": ["b"],
    }


def test_progress_names_what_remains() -> None:
    assert handing_over("x:1", ("a", "b")) == "x:1 still serves 2: a, b"
    assert handing_over("x:1", ()) == "x:1 serves nothing any more"
    assert taken_by_others(THERE)
    assert not taken_by_others(Shards(7, (THREE,), {}, ()))


@pytest.mark.parametrize("command", ["shards", "drain", "pin"])
def test_help_shows_examples_that_fit(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    example = out[out.index("\nexample") :]
    assert f"lowwater {command} " in example.replace("\n", " \n")
    assert max(map(len, example.splitlines())) <= 80
    if command == "shards":
        for line in shards_table(THERE).splitlines():
            assert f"\n  {line}\n" in out
    if command == "drain":
        assert f"\n  {handing_over('lowwater-2:7420', ('daily', 'monthly'))}\n" in out


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["drain"], id="no shard"),
        pytest.param(["pin", "hourly"], id="nowhere"),
        pytest.param(["pin", "hourly", "x:1", "--off"], id="there and nowhere"),
        pytest.param(["drain", "x:1", "--timeout", "soon"], id="no duration"),
    ],
)
def test_wrong_arguments_are_errors(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_shard_is_not_the_address_that_is_asked() -> None:
    args = parser().parse_args(["drain", "c:3", "--address", "a:1,b:2", "--no-wait"])
    assert (args.shard, args.address, args.wait, args.cancel) == ("c:3", "a:1,b:2", False, False)
    args = parser().parse_args(["pin", "hourly", "--off"])
    assert (args.name, args.shard) == ("hourly", None)


def test_nobody_can_tell_without_a_shard(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = ["--address", "localhost:1,localhost:2", "--answer-within", "50ms"]
    for command in (["shards"], ["drain", "x:1"], ["pin", "hourly", "--off"]):
        assert main([*command, *nobody]) == 3
        assert "localhost:" in capsys.readouterr().err
