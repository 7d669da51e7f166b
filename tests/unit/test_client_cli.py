"""The command: what its arguments mean, and how answers look, also those about shards."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lowwater import Completeness, Promise, Ranges, RangeState, RangeView, Remarks, Watermark, WatermarkView, errors
from lowwater.cli import main, render
from lowwater.cli.arguments import parse_duration, parse_key, parse_time
from lowwater.cli.commands import COMMANDS
from lowwater.cli.history import history_record, history_table
from lowwater.cli.live import State, draw, seen
from lowwater.cli.shards import shards_table
from lowwater.core.causes import cause_of
from lowwater.core.text import describe_holder, describe_key
from lowwater.core.why import explain, find_culprits
from lowwater.core.words import holder_words, severity
from lowwater.views import Completion, History, Shards, ShardView
from tests import blame
from tests.kit.times import HOUR

NOW = 1_357_740_000_000_000  # 2013-01-09 14:00 UTC
DAY_9 = NOW - 14 * HOUR
INF = float("inf")

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


def test_keys_are_text_or_hexadecimal_both_ways() -> None:
    for key in (b"\x40\x00", b"N14228", b"\xff" * 8, b"0x41"):
        assert parse_key(describe_key(key)) == key
    with pytest.raises(argparse.ArgumentTypeError, match="hexadecimal"):
        parse_key("0x4")


def test_status_is_a_table() -> None:
    assert render.status_table(VIEWS, NOW, {}).splitlines() == [
        "COMPUTATION  STATE           LOW WATERMARK         LAG  99 % LATELY SEEN  50 % LATELY SEEN  RANGES  HELD BY",
        "enriched     waiting         2013-01-09T13:00:00Z  1 h  1 min             =                 64      [0x40, 0x80), owned by exec-7 on host-3",
        "flights      finished        finished              -                                        1",
        "weather      moved on        unknown               -                                        1",
        "typo         not registered  not registered        -                                        0",
    ]


def test_the_worst_comes_first_and_what_is_finished_last() -> None:
    silent = replace(HOLDER, last_report_micros=NOW - 60_000_000)
    views = [
        *VIEWS[:3],
        replace(VIEWS[0], computation="late", low=Watermark(NOW - 2 * HOUR)),
        replace(VIEWS[0], computation="silent", low=Watermark(NOW - 60_000_000), holder=silent),
        WatermarkView(
            "unclaimed",
            registered=True,
            holder=RangeView(b"", b"", Watermark.UNKNOWN, RangeState.NEVER_CLAIMED, "", "", 0, 0, 0),
        ),
    ]
    views.sort(key=lambda view: severity(view, NOW))
    assert [view.computation for view in views] == ["unclaimed", "silent", "weather", "late", "enriched", "flights"]


def test_a_status_in_colours_is_the_same_text() -> None:
    silent = replace(VIEWS[0], holder=replace(HOLDER, last_report_micros=NOW - 60_000_000))
    moving = replace(VIEWS[0], since_micros=NOW, holder=replace(HOLDER, since_micros=NOW))
    views = [silent, VIEWS[2], moving, VIEWS[1]]
    _, *lines = render.status_table(views, NOW, {}, coloured=True).splitlines()
    assert [line[: len("\x1b[31m")] for line in lines] == ["\x1b[31m", "\x1b[33m", "enric", "\x1b[2mf"]
    plain = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
    assert plain == render.status_table(views, NOW, {}).splitlines()[1:]


EVIL = replace(HOLDER, worker="exec\x1b]0;pwned\x07\x1b[2J", host="h\n2013-01-09T14:00:00Z  flights  FORGED\0\u202e")


def test_what_a_worker_calls_itself_reaches_no_terminal_as_it_is() -> None:
    """Escape sequences would be obeyed, and a line end would make a line of its own."""
    view = replace(VIEWS[0], holder=EVIL)
    why = explain("enriched", {"enriched": view, "flights": VIEWS[1]}, NOW, Ranges((EVIL,), 1))
    for text in (
        render.status_table([view], NOW, {}),
        render.line(view, NOW, view),
        render.ranges_table(Ranges((EVIL,), 1), NOW),
        holder_words(EVIL, NOW),
        describe_holder(view),
        str(why),
    ):
        assert all(line.isprintable() for line in text.split("\n")), text
        assert not any(line.startswith("2013-01-09T14:00:00Z  flights") for line in text.splitlines())
        assert "exec\\x1b]0;pwned\\x07\\x1b[2J" in text


def test_an_error_is_one_printable_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def quoting(_lw: object, _args: object) -> int:
        raise errors.OwnedRanges("exec\x1b[2J\nFORGED own part of that interval")

    monkeypatch.setitem(COMMANDS, "why", quoting)
    assert main(["why", "enriched", "--address", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == "lowwater why: exec\\x1b[2J\\nFORGED own part of that interval\n"


def test_watch_is_a_line_a_change() -> None:
    assert render.line(VIEWS[0], NOW, VIEWS[0]) == (
        "2013-01-09T14:00:00Z  enriched  2013-01-09T13:00:00Z  lag 1 h  99 % lately seen 2013-01-09T13:59:00Z  "
        "held by [0x40, 0x80), owned by exec-7 on host-3"
    )
    assert render.line(VIEWS[1], NOW, VIEWS[1]) == "2013-01-09T14:00:00Z  flights  finished"


PROMISED = [
    replace(
        VIEWS[0],
        promise=Promise(timedelta(minutes=15), "ana", "billing", "https://wiki/e", "https://logs/?w={worker}&h={host}"),
    ),
    replace(VIEWS[0], computation="in-time", promise=Promise(timedelta(hours=2))),
    replace(VIEWS[1], promise=Promise(timedelta(hours=2), team="reports")),
    VIEWS[2],
]


def test_status_says_what_is_late_by_its_promise_and_who_answers_for_it() -> None:
    shown = [re.split(r"  +", line) for line in render.status_table(PROMISED, NOW, {}).splitlines()]
    assert [line[4] for line in shown[:3]] == ["PROMISE", "15 min, late by 45 min", "2 h"]
    assert shown[3][3:6] == ["-", "2 h", "1"], "what is finished is not late"
    assert [line[-1] for line in shown] == ["ANSWERS FOR IT", "ana, billing", shown[2][-1], "reports", "1"]
    assert "owned by exec-7" in shown[2][-1], "nobody said who"


@pytest.mark.parametrize("case", blame.CASES, ids=[case["name"] for case in blame.CASES])
def test_status_and_watch_blame_whom_why_blames(case: dict[str, Any]) -> None:
    """One function decides: a worker that only waits for another computation is named nowhere."""
    views = blame.views(case)
    guilty = find_culprits(views, views, blame.NOW)
    root = case["way"][-1]
    view_ = views[case["ask"]]
    live = draw(seen(State(), [view_], blame.NOW, guilty), 200, 5)[2].text
    shown = {
        "status": render.status_table([view_], blame.NOW, guilty),
        "watch": render.line(view_, blame.NOW, guilty[view_.computation]),
        "the live view": live,
    }
    assert render.view_record(view_, blame.NOW, guilty[view_.computation])["guilty"] == root
    for what, text in shown.items():
        blamed = {name for name in views if f"{name}-1 on node-4" in text}
        assert blamed <= {root}, f"{what} names {blamed} for what {root} holds"
        assert root in text, what
        assert root == case["ask"] or f"{root} all keys" in text or f"{root}, " in text, what
    in_trouble = cause_of(view_, blame.NOW).trouble
    assert root == case["ask"] or in_trouble or f"waits for {root}" in shown["status"]


def test_ranges_are_a_table_that_says_what_it_leaves_out() -> None:
    never = RangeView(b"\x80", b"", Watermark.UNKNOWN, RangeState.NEVER_CLAIMED, "", "", 0, 0, 0)
    assert render.ranges_table(Ranges((HOLDER, never), 5), NOW).splitlines() == [
        "START  END   WATERMARK             LAG  STATE          WORKER  HOST    LAST REPORT",
        "@      0x80  2013-01-09T13:00:00Z  1 h  owned          exec-7  host-3  2 s ago",
        "0x80   ..    unknown               -    never claimed                  never",
        "and 3 more; --limit shows them",
    ]
    restarted = replace(HOLDER, last_report_micros=0)
    assert render.ranges_table(Ranges((restarted,), 1), NOW).endswith("host-3  not since the authority restarted")


SILENT_FOR = 75_000_000
ENDS = [
    (Remarks(ended=True), 0, "stopped", "which ended in good order at 13:58:45 UTC", "\x1b[2m"),
    (
        Remarks(ended=True, failure="[STATE_STORE]\n no."),
        0,
        "failed",
        "which failed 1 min 15 s ago: [STATE_STORE]\\n no",
        "\x1b[31m",
    ),
    (
        Remarks(),
        NOW - SILENT_FOR,
        "not begun",
        "which claimed it 1 min 15 s ago and has reported nothing yet",
        "\x1b[33m",
    ),
]


@pytest.mark.parametrize(("remarks", "claimed", "state", "words", "colour"), ENDS, ids=[end[2] for end in ENDS])
def test_over_failed_and_not_begun_are_told_everywhere(
    remarks: Remarks, claimed: int, state: str, words: str, colour: str
) -> None:
    owner = replace(HOLDER, last_report_micros=NOW - SILENT_FOR, remarks=remarks, claimed_micros=claimed)
    view = replace(VIEWS[0], holder=owner)
    table = render.status_table([view], NOW, {}, coloured=True).splitlines()[1]
    assert table.startswith(f"{colour}enriched     {state}  ")
    assert f"owned by exec-7 on host-3, {words}" in table
    assert f"owned by exec-7 on host-3, {words}" in render.line(view, NOW, view), "so does `watch --plain`"
    assert f"exec-7 on host-3, {words}" in draw(seen(State(), [view], NOW, {}), 200, 5)[2].text
    assert f"owned, {state}  " in render.ranges_table(Ranges((owner,), 1), NOW)
    record = render.view_record(view, NOW)
    assert (record["state"], record["holder"]["ended"]) == (state, remarks.ended)
    assert record["holder"]["claimed"] == ("2013-01-09T13:58:45Z" if claimed else None)


def test_json_has_texts_for_people_and_numbers_for_programs() -> None:
    record = json.loads(render.to_json(render.view_record(VIEWS[0], NOW)))
    holder = record.pop("holder")
    assert (record["low"], record["low_micros"], record["lag_seconds"]) == ("2013-01-09T13:00:00Z", NOW - HOUR, 3600.0)
    assert record["heuristic"] == {"0.99": "2013-01-09T13:59:00Z", "0.5": "2013-01-09T13:00:00Z"}
    assert (record["state"], record["since"], record["oldest_operation"]) == ("waiting", "2013-01-09T13:00:00Z", None)
    assert (record["ranges"], record["inputs"], record["guilty"], record["promise"]) == (64, ["flights"], None, None)
    assert (holder["start"], holder["end"], holder["watermark_micros"]) == ("40", "80", NOW - HOUR)
    assert (holder["state"], holder["worker"], holder["host"], holder["sequencer"]) == ("owned", "exec-7", "host-3", 9)
    assert (holder["last_report"], holder["ended"]) == ("2013-01-09T13:59:58Z", False)
    for view in VIEWS[1:]:
        record = render.view_record(view, NOW)
        assert (record["low_micros"], record["lag_seconds"]) == (None, None)
    answer = render.completeness_record(Completeness(False, VIEWS[0], (HOLDER,), 1), Watermark(NOW), NOW, None)
    assert (answer["complete"], answer["until_micros"], answer["holding"], len(answer["holders"])) == (False, NOW, 1, 1)


def completion(after: float, through: float, seconds: float, incarnation: int = 1) -> Completion:
    """Steps between two hours of 2013-01-09, complete some seconds after the last of them; infinite: no such end."""
    start = Watermark.UNKNOWN if after == -INF else Watermark(DAY_9 + int(after * HOUR))
    end = Watermark.FINISHED if through == INF else Watermark(DAY_9 + int(through * HOUR))
    base = NOW if end.finished else end.micros
    return Completion(incarnation, start, end, base + int(seconds * 1e6))


def hours(*completions: Completion, more: int = 0) -> History:
    return History("hourly", timedelta(hours=1), completions, len(completions) + more)


def test_a_history_shows_the_late_ones() -> None:
    history = hours(completion(9, 10, 35), completion(10, 13, 40), completion(13, 14, 38))
    assert history_table(history, 1).splitlines() == [
        "hourly, in steps of 1 h, UTC",
        "STEPS                      COMPLETE AT           AFTER END",
        "2013-01-09 09:00 to 10:00  2013-01-09T10:00:35Z  35 s         #",
        "2013-01-09 10:00 to 13:00  2013-01-09T13:00:40Z  40 s to 2 h  ############",
        "2013-01-09 13:00 to 14:00  2013-01-09T14:00:38Z  38 s         #",
    ]


def test_a_history_of_several_incarnations_marks_those_that_ended() -> None:
    history = hours(
        completion(-INF, 9, 3600),
        completion(9, INF, 0),
        completion(-INF, 22, 0, incarnation=2),
        completion(22, 25, 1800, incarnation=2),
        completion(25, 26, -300, incarnation=2),
        more=29,
    )
    assert history_table(history, 2).splitlines() == [
        "hourly, in steps of 1 h, UTC",
        "INCARNATION  STEPS                                 COMPLETE AT           AFTER END",
        "1, ended     up to 2013-01-09 09:00                2013-01-09T10:00:00Z  1 h                   #####",
        "1, ended     2013-01-09 09:00 to the end           2013-01-09T14:00:00Z",
        "2            up to 2013-01-09 22:00                2013-01-09T22:00:00Z  0 ms",
        "2            2013-01-09 22:00 to 2013-01-10 01:00  2013-01-10T01:30:00Z  30 min to 2 h 30 min  ############",
        "2            2013-01-10 01:00 to 02:00             2013-01-10T01:55:00Z  -5 min",
        "and 29 before them; --last shows more",
    ]
    assert "3, ended" in history_table(hours(completion(1, 2, 0, incarnation=3)), 4)


def test_a_history_in_json_is_one_object() -> None:
    entry = json.loads(render.to_json(history_record(hours(completion(-INF, 13, 0.5), more=1), 1)))
    [step] = entry.pop("completions")
    assert entry == {"computation": "hourly", "incarnation": 1, "step_seconds": 3600.0, "step_micros": HOUR, "total": 2}
    assert (step["incarnation"], step["after"], step["after_micros"]) == (1, "unknown", None)
    assert (step["through"], step["through_micros"]) == ("2013-01-09T13:00:00Z", NOW - HOUR)
    assert (step["time_micros"], step["behind_seconds"]) == (NOW - HOUR + 500_000, 0.5)


@pytest.mark.parametrize(("command", "package"), [("serve", "authority"), ("region", "regions"), ("global", "regions")])
def test_a_command_of_another_package_names_that_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, package: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"lowwater {command}" in capsys.readouterr().out
    for module in [name for name in sys.modules if name.startswith(f"lowwater_{package}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, f"lowwater_{package}", None)
    assert main([command]) == 2
    assert f"needs lowwater-{package}: 'pip install dist/packages/*.whl'" in capsys.readouterr().err


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
        "no shard serves hourly, daily just now",
    ]


@pytest.mark.parametrize("text", ["nan", "-5s", "9" * 20, "9" * 400, "1e9"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="duration"):
        parse_duration(text)
