"""The command: what its arguments mean, and how answers look."""

import argparse
import json
import sys

import pytest

from lowwater import Completeness, Ranges, RangeState, RangeView, Watermark, WatermarkView
from lowwater._core.text import describe_key, describe_range, duration, lag
from lowwater.cli import main, render
from lowwater.cli.arguments import parse_duration, parse_key, parse_time, parser

NOW = 1_357_740_000_000_000  # 2013-01-09 14:00 UTC
HOUR = 3_600_000_000

HOLDER = RangeView(
    b"\x40", b"\x80", Watermark(NOW - HOUR), RangeState.OWNED, "exec-7", "host-3", 9, NOW - HOUR, NOW - 2_000_000
)
VIEWS = [
    WatermarkView(
        "enriched",
        registered=True,
        incarnation=1,
        epoch=3,
        low=Watermark(NOW - HOUR),
        shares=((990_000, Watermark(NOW - 60_000_000)), (500_000, Watermark(NOW - HOUR))),
        since_micros=NOW - HOUR,
        holder=HOLDER,
        ranges=64,
        inputs=("flights",),
    ),
    WatermarkView("flights", registered=True, incarnation=1, low=Watermark.FINISHED, ranges=1),
    WatermarkView("weather", registered=True, incarnation=1, low=Watermark.UNKNOWN, ranges=1),
    WatermarkView("typo"),
]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2013-01-09T14:00Z", NOW),
        ("2013-01-09T14:00:00.000001Z", NOW + 1),
        ("2013-01-09 15:00+01:00", NOW),
        ("20130109T1400Z", NOW),
        ("finished", Watermark.FINISHED.micros),
    ],
)
def test_times(text: str, micros: int) -> None:
    assert parse_time(text) == Watermark(micros)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2013-01-09T14:00", "write 2013-01-09T14:00Z for UTC"),
        ("2013-01-09", "write 2013-01-09T00:00Z for UTC"),
        ("yesterday", "2013-01-09T14:00Z"),
    ],
)
def test_times_that_are_none_say_how_to_write_them(text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("5 min", 300), ("1.5h", 5400), ("2d", 172_800), ("50ms", 0.05)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "5 years", "-5s"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="90s"):
        parse_duration(text)


def test_keys_are_text_or_hexadecimal_both_ways() -> None:
    for key in (b"\x40\x00", b"N14228", b"\xff" * 8, b"0x41"):
        assert parse_key(describe_key(key)) == key
    with pytest.raises(argparse.ArgumentTypeError, match="hexadecimal"):
        parse_key("0x4")


def test_ranges_show_both_ends_alike() -> None:
    assert describe_range(b"", b"\x80") == "[.., 0x80)"
    assert describe_range(b"A", b"\x80") == "[0x41, 0x80)"
    assert describe_range(b"", b"N") == "[.., N)"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.9994, "999 ms"),
        (1, "1 s"),
        (59.7, "1 min"),
        (3_600, "1 h"),
        (3_660, "1 h 1 min"),
        (90_061, "1 d 1 h"),
        (-60, "-1 min"),
    ],
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_lag_is_for_what_has_a_time() -> None:
    assert lag(Watermark(NOW - HOUR), NOW) == "1 h"
    assert lag(Watermark.UNKNOWN, NOW) == lag(Watermark.FINISHED, NOW) == "-"


def test_status_is_a_table() -> None:
    assert render.status_table(VIEWS, NOW).splitlines() == [
        "COMPUTATION  LOW WATERMARK         LAG  99 %   50 %  RANGES  HELD BY",
        "enriched     2013-01-09T13:00:00Z  1 h  1 min  =     64      [0x40, 0x80), owned by exec-7 on host-3",
        "flights      finished              -                 1",
        "weather      unknown               -                 1",
        "typo         not registered        -                 0",
    ]
    assert "no computation is registered" in render.status_table([], NOW)


def test_watch_is_a_line_a_change() -> None:
    assert render.line(VIEWS[0], NOW) == (
        "2013-01-09T14:00:00Z  enriched  2013-01-09T13:00:00Z  lag 1 h  99 % 2013-01-09T13:59:00Z  "
        "held by [0x40, 0x80), owned by exec-7 on host-3"
    )
    assert render.line(VIEWS[1], NOW) == "2013-01-09T14:00:00Z  flights  finished"


def test_ranges_are_a_table_that_says_what_it_leaves_out() -> None:
    never = RangeView(b"\x80", b"", Watermark.UNKNOWN, RangeState.NEVER_CLAIMED, "", "", 0, 0, 0)
    assert render.ranges_table(Ranges((HOLDER, never), 5), NOW).splitlines() == [
        "START  END   WATERMARK             LAG  STATE          WORKER  HOST    LAST REPORT",
        "@      0x80  2013-01-09T13:00:00Z  1 h  owned          exec-7  host-3  2 s ago",
        "0x80   ..    unknown               -    never claimed                  never",
        "and 3 more; --limit shows them",
    ]


def test_json_has_texts_for_people_and_numbers_for_programs() -> None:
    record = json.loads(render.to_json(render.view_record(VIEWS[0], NOW)))
    assert record == {
        "computation": "enriched",
        "registered": True,
        "low": "2013-01-09T13:00:00Z",
        "low_micros": NOW - HOUR,
        "lag_seconds": 3600.0,
        "heuristic": {"0.99": "2013-01-09T13:59:00Z", "0.5": "2013-01-09T13:00:00Z"},
        "incarnation": 1,
        "epoch": 3,
        "since": "2013-01-09T13:00:00Z",
        "oldest_operation": None,
        "ranges": 64,
        "inputs": ["flights"],
        "holder": {
            "start": "40",
            "end": "80",
            "watermark": "2013-01-09T13:00:00Z",
            "watermark_micros": NOW - HOUR,
            "state": "owned",
            "worker": "exec-7",
            "host": "host-3",
            "sequencer": 9,
            "since": "2013-01-09T13:00:00Z",
            "last_report": "2013-01-09T13:59:58Z",
        },
    }
    for view in VIEWS[1:]:
        record = render.view_record(view, NOW)
        assert (record["low_micros"], record["lag_seconds"]) == (None, None)
    found = render.completeness_record(Completeness(False, VIEWS[0], (HOLDER,), 1), Watermark(NOW), NOW)
    assert (found["complete"], found["until_micros"], found["holding"], len(found["holders"])) == (False, NOW, 1, 1)


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "lowwater complete hourly --until 2013-01-09T14:00Z && publish-report" in out
    for command in ("serve", "status", "watch", "why", "wait", "complete", "ranges", "reset", "retire"):
        assert f"\n    {command} " in out


def test_every_command_takes_the_same_server_arguments() -> None:
    for arguments in (["status"], ["watch"], ["why", "x"], ["ranges", "x"], ["reset", "x"]):
        args = parser().parse_args([*arguments, "--address", "there:1", "--namespace", "n", "--answer-within", "1m"])
        assert (args.address, args.namespace, args.answer_within) == ("there:1", "n", 60.0)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="no command"),
        pytest.param(["complete", "x"], id="no time"),
        pytest.param(["complete", "x", "--until", "2013-01-09T14:00"], id="naive time"),
        pytest.param(["retire", "x"], id="no range"),
    ],
)
def test_wrong_arguments_are_errors(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_serve_belongs_to_the_other_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--help"])
    assert caught.value.code == 0
    assert "--data" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "lowwater_authority", None)
    monkeypatch.delitem(sys.modules, "lowwater_authority.server")
    assert main(["serve"]) == 2
    assert "pip install lowwater-authority" in capsys.readouterr().err


def test_the_outcomes_without_an_authority(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = ["--address", "localhost:1", "--answer-within", "50ms"]
    assert main(["complete", "x", "--until", "finished", *nobody]) == 3
    assert main(["wait", "x", "--until", "finished", "--timeout", "50ms", *nobody]) == 3
    assert main(["status", *nobody]) == 2
    assert "localhost:1" in capsys.readouterr().err


def test_reset_asks_before_it_does(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert main(["reset", "x", "--address", "localhost:1"]) == 2
    assert "--yes" in capsys.readouterr().err
