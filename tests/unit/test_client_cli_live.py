"""The live view of ``lowwater watch``: what it shows, fits and marks, and what keys do."""

from dataclasses import replace

import pytest

from lowwater import RangeState, RangeView, Watermark, WatermarkView
from lowwater.cli.live import Line, State, Style, draw, press, seen, shown
from tests.kit.times import MINUTE

NOW = 1_357_740_000_000_000  # 2013-01-09 14:00 UTC


def view(
    name: str, minutes: float | Watermark, *, silent: float = 0.0, stood: float = 0.1, **more: object
) -> WatermarkView:
    """Return a view of a computation so many minutes ago; its worker spoke so many minutes ago."""
    low = minutes if isinstance(minutes, Watermark) else Watermark(NOW - int(minutes * MINUTE))
    since = NOW - int(stood * MINUTE)
    owner = RangeView(b"\x40", b"\x80", low, RangeState.OWNED, "exec-7", "host-3", 9, since, NOW - int(silent * MINUTE))
    options = {"holder": None if low.finished else owner, "since_micros": since, "ranges": 64} | more
    return WatermarkView(name, registered=True, incarnation=1, low=low, **options)  # type: ignore[arg-type]


VIEWS = [
    view("daily", 5, stood=3),
    view("enriched", 58, silent=38, stood=38),
    view("flights", Watermark.FINISHED),
    view("hourly", 1),
    view("new", Watermark.UNKNOWN),
]


def state(*views: WatermarkView) -> State:
    return seen(State(), views or VIEWS, NOW)


def keys(start: State, *pressed: str) -> State:
    for key in pressed:
        start = press(start, key)
    return start


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_the_worst_is_on_top_with_who_holds_it() -> None:
    lines = draw(state(), 100, 12)
    assert texts(lines) == [
        "lowwater at 14:00:00 UTC: 5 computations, by lag",
        "COMPUTATION  LOW WATERMARK  LAG     STOOD   HELD BY",
        "new          unknown        -       6 s     [0x40, 0x80) exec-7 on host-3",
        "enriched     13:02 UTC      58 min  38 min  [0x40, 0x80) exec-7 on host-3, silent for 38 min",
        "daily        13:55 UTC      5 min   3 min   [0x40, 0x80) exec-7 on host-3",
        "hourly       13:59 UTC      1 min   6 s     [0x40, 0x80) exec-7 on host-3",
        "flights      finished       -",
        *[""] * 4,
        "q quit  arrows select  Enter why  / filter  s sort",
    ]
    styles = {line.text.split()[0]: line.style for line in lines[2:7]}
    assert styles == {
        "new": Style.STILL,
        "enriched": Style.TROUBLE,
        "daily": Style.STILL,
        "hourly": Style.PLAIN,
        "flights": Style.FAINT,
    }


def test_a_terminal_gets_nothing_that_it_obeys() -> None:
    """A NUL is refused by curses, and what begins with an escape moves its cursor."""
    evil = view("enriched", 60)
    assert evil.holder is not None
    evil = replace(evil, holder=replace(evil.holder, worker="exec\0\x1b[2J", host="h\nx"))
    lines = texts(draw(replace(state(evil), why=("enriched", "by exec\0\x1b[2J")), 120, 12))
    assert all(line.isprintable() for line in lines)
    assert any("exec\\x00\\x1b[2J on h\\nx" in line for line in lines)


@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 3, 5, 24])
def test_it_fits_every_size(width: int, height: int) -> None:
    many = [view(f"computation-with-a-rather-long-name-{n:03}", n) for n in range(300)]
    for shape in (state(*many), replace(state(*many), away="gone", why=("x", "word " * 200), typing=True), State()):
        lines = draw(shape, width, height)
        assert len(lines) == height
        assert max(map(len, texts(lines))) <= width


def test_the_selected_line_is_always_in_sight() -> None:
    many = state(*(view(f"c{n:03}", 300 - n) for n in range(300)))
    for pressed in (["down"] * 40, ["down"] * 40 + ["up"] * 39, ["pagedown"] * 50, ["j", "j", "k"]):
        after = keys(many, *pressed)
        [line] = [line for line in draw(after, 80, 10) if line.selected]
        assert line.text.startswith(after.selected)
    assert keys(many, *["pagedown"] * 50).selected == "c299"
    assert keys(many, "down", "up", "up").selected == "c000"


def test_keys_filter() -> None:
    typed = keys(state(), "/", "L", "y", "x", "backspace")
    assert typed.typing
    assert draw(typed, 80, 10)[-1].text == "/Ly_"
    assert [row.computation for row in shown(typed)] == ["daily", "hourly"]
    assert draw(typed, 80, 10)[0].text == 'lowwater at 14:00:00 UTC: 2 of 5 computations, with "Ly" in the name, by lag'
    assert not keys(typed, "enter").typing
    assert keys(typed, "enter", "q").done
    assert not keys(typed, "q").done, "it goes to the filter"
    assert keys(typed, "escape").search == keys(typed, "enter", "escape").search == ""
    assert "no computation matches the filter" in texts(draw(keys(typed, "z"), 80, 10))
    assert keys(typed, "z", "enter", "enter").why is None, "there is nothing to ask about"
    assert keys(typed, "z", "enter", "down").selected == ""
    assert keys(typed, "resize").search == "Ly"


def test_enter_asks_why() -> None:
    waiting = keys(state(), "down", "down", "enter")
    assert waiting.why == ("enriched", "asking ...")
    answered = replace(
        waiting, why=("enriched", "enriched is at 13:02 UTC, 58 min behind: held by exec-7.\nand so on " * 3)
    )
    lines = texts(draw(answered, 60, 16))
    assert "why enriched (Esc closes)" in lines
    assert any(line.startswith("enriched is at 13:02 UTC, 58 min behind") for line in lines)
    assert keys(answered, "escape").why is None
    assert keys(state(), "enter").why == ("new", "asking ..."), "without a selection the worst"


SLICED = state(
    view("flights", 1), view("hourly", 5), *(view(f"hourly~{n}", 5 + n) for n in range(12)), view("daily~0", 9)
)


def test_what_is_cut_has_one_line_until_its_slices_are_asked_for() -> None:
    lines = texts(draw(SLICED, 100, 20))
    assert lines[0] == "lowwater at 14:00:00 UTC: 3 computations, by lag"
    assert [line.split("  ")[0] for line in lines[2:5]] == ["daily~0", "hourly (12 slices)", "flights"], (
        "one that stands alone was asked for by its name"
    )
    assert lines[-1].endswith("x slices")
    with_slices = keys(SLICED, "x")
    assert [row.computation for row in shown(with_slices)][:3] == ["hourly~11", "hourly~10", "hourly~9"]
    assert len(shown(with_slices)) == 15
    assert shown(keys(with_slices, "x")) == shown(SLICED)
