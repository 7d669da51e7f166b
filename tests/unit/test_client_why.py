"""Who holds a computation: the walk upstream, and the sentences."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from lowwater import Promise, Ranges, RangeState, RangeView, Timeout, Unavailable, Watermark, WatermarkView, Why
from lowwater.core.causes import Cause, cause_of
from lowwater.core.why import explain, find_culprits, find_guilty, find_way
from tests import blame
from tests.kit.times import HOUR, MINUTE

NOW = 1_357_740_000_000_000  # 2013-01-09 14:00


def held(low: int | Watermark, *, silent: int = 1) -> RangeView:
    return RangeView(
        start=b"\x40",
        end=b"\x80",
        watermark=low if isinstance(low, Watermark) else Watermark(NOW + low),
        state=RangeState.OWNED,
        worker="exec-7",
        host="host-3",
        sequencer=9,
        since_micros=NOW - 60_000_000,
        last_report_micros=NOW - silent * 1_000_000,
    )


def view(
    name: str,
    low: int | Watermark,
    *inputs: str,
    holder: RangeView | None = None,
    oldest: int = 0,
    estimated: bool = False,
) -> WatermarkView:
    at = low if isinstance(low, Watermark) else Watermark(NOW + low)
    return WatermarkView(
        name,
        registered=True,
        incarnation=1,
        low=at,
        inputs=inputs,
        oldest_operation_micros=oldest,
        holder=holder or (None if at.finished else held(at)),
        ranges=64,
        estimated=estimated,
    )


def ranges(*views: RangeView, total: int | None = None) -> Ranges:
    return Ranges(views, len(views) if total is None else total)


def explained(
    name: str, views: list[WatermarkView], ranges_: Ranges | None = None, unknown: Unavailable | Timeout | None = None
) -> Why:
    by_name = {view.computation: view for view in views}
    guilty = find_guilty(name, by_name, NOW)
    holder = by_name[guilty].holder if guilty is not None else None
    ranges_ = ranges_ or ranges(*([holder] if holder is not None else []))
    why = explain(name, by_name, NOW, ranges_ if guilty is not None else ranges(), unknown)
    assert guilty in {None, why.guilty.computation}
    assert all(hop.upstream == after.computation for hop, after in zip(why.hops, why.hops[1:], strict=False))
    assert why.guilty.upstream is None
    lines = str(why).splitlines()
    assert lines[0] == why.sentence
    assert lines[-len(why.hops) :] == [hop.sentence for hop in why]
    return why


def way(name: str, views: list[WatermarkView]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    path = find_way(name, {view.computation: view for view in views}, NOW)
    return path.names, path.others


SILENT = held(-58 * MINUTE, silent=38 * 60)


@pytest.mark.parametrize("stood", [0, 1, 60, 14_400])
def test_a_claim_is_a_sign_of_life_and_silence_counts_from_it(stood: int) -> None:
    """However long the range has stood: nobody is accused of the time of the owner before, nor excused because it never moved."""
    for silent, cause in [(1, Cause.WAITING if stood != 1 else Cause.MOVING), (16, Cause.SILENT)]:
        claimed = replace(held(-HOUR, silent=silent), since_micros=stood and NOW - stood * 1_000_000)
        why = explained("flights", [view("flights", -HOUR, holder=claimed)])
        assert why.guilty.cause is cause
        assert ("alive" in why.sentence) == (cause is not Cause.SILENT)
        assert ("silent for 16 s" in why.sentence) == (cause is Cause.SILENT)
    new = replace(held(Watermark.UNKNOWN), since_micros=0)
    why = explained("flights", [view("flights", Watermark.UNKNOWN, holder=new)])
    assert why.sentence.endswith("on exec-7 (host-3), alive, but it has not moved yet.")
    assert why.guilty.sentence.endswith("which is alive.")


@pytest.mark.parametrize("case", blame.CASES, ids=[case["name"] for case in blame.CASES])
def test_the_right_one_is_blamed_with_the_expected_sentence(case: dict[str, Any]) -> None:
    views = blame.views(case)
    guilty = find_guilty(case["ask"], views, blame.NOW)
    holder = views[guilty].holder if guilty is not None else None
    # What is retired is not among the key ranges that hold.
    holding = [holder] if holder is not None and holder.state is not RangeState.RETIRED else []
    why = explain(case["ask"], views, blame.NOW, ranges(*holding))
    answer = ([hop.computation for hop in why], list(why.others), why.sentence)
    assert answer == (case["way"], case["others"], case["why"])
    assert [cause_of(view, blame.NOW).value for view in views.values()] == case["causes"], "as `status` shows them"
    culprits = find_culprits(views, views, blame.NOW)
    assert {name: culprit.computation for name, culprit in culprits.items()} == {
        name: find_way(name, views, blame.NOW).names[-1] for name in views
    }, "all at once is as each by itself"


def test_when_the_authority_cannot_tell_no_worker_is_blamed() -> None:
    pipeline = [view("flights", -HOUR, holder=held(-HOUR, silent=99))]
    away = "this shard cannot tell: its store has not answered within 5 s."
    why = explained("flights", pipeline, unknown=Unavailable(away))
    assert why.guilty.cause is Cause.CANNOT_TELL
    prefix = (
        "flights is at 13:00 UTC, 1 h behind: held by flights, but nobody can tell just now which key ranges hold it: "
    )
    assert why.sentence == prefix + away
    assert "Before, it was held by [0x40, 0x80)" in why.guilty.sentence
    assert explained("flights", pipeline, unknown=Timeout("the authority did not answer in time")).sentence.endswith(
        "did not answer in time, so its store may hang."
    )


def test_a_graph_that_changed_while_it_was_read_ends_the_walk() -> None:
    circle = [view("a", -HOUR, "b"), view("b", -HOUR, "a")]
    assert way("a", circle)[0][0] == "a"


class Counting(dict[str, WatermarkView]):
    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> WatermarkView:
        self.looks += 1
        return super().__getitem__(key)


def test_long_chains_and_wide_ones_take_little() -> None:
    chain = [view(f"c{n}", -HOUR, f"c{n + 1}") for n in range(999)] + [view("c999", -HOUR)]
    assert len(explained("c0", chain).hops) == 1000
    sources = [f"s{n}" for n in range(300)]
    layers = [sources, *([f"{layer}-{n}" for n in range(100)] for layer in range(3))]
    funnel = [view(name, -HOUR) for name in sources]
    for before, layer in itertools.pairwise(layers):
        funnel += [view(name, -HOUR, *before) for name in layer]
    views = Counting({each.computation: each for each in funnel})
    path = find_way("2-0", views, NOW)
    assert (path.names, path.others) == (("2-0", "1-0", "0-0", "s0"), tuple(sources[1:]))
    assert views.looks < 2 * 50_000, "50,000 inputs, by which 3,000,000 ways lead there"


def test_who_answers_for_the_one_that_holds_comes_last_with_what_to_do() -> None:
    low = -58 * MINUTE
    hourly, guilty = view("hourly", low, "enriched"), view("enriched", low, "flights", holder=SILENT)
    promised = Promise(None, "ana@example.org", "billing", "https://wiki/enriched", "https://logs/?w={worker}&h={host}")
    pipeline = [
        replace(hourly, promise=Promise(owner="somebody else")),
        replace(guilty, promise=promised),
        view("flights", -MINUTE),
    ]
    by_name = {view_.computation: view_ for view_ in pipeline}
    why = explain("hourly", by_name, NOW, ranges(replace(SILENT, worker="exec 7/?&", host="host-3")))
    assert why.promise == promised
    assert str(why).splitlines()[-1] == (
        "ana@example.org of the team billing answers for enriched; what to do: https://wiki/enriched; "
        "logs: https://logs/?w=exec%207%2F%3F%26&h=host-3"
    )
    bare = explain("hourly", {name: replace(view, promise=None) for name, view in by_name.items()}, NOW, ranges(SILENT))
    assert (bare.promise, bare.answers) == (None, "")
    assert str(bare).splitlines() == [bare.sentence, *(hop.sentence for hop in bare)]
    assert bare.hops[:-1] == why.hops[:-1], "nobody else is blamed for a promise"


def test_neighbours_that_are_alike_are_told_as_one() -> None:
    low = Watermark(NOW - 2 * HOUR)
    keys = [bytes([number]) if number else b"" for number in range(4)]
    alike = [replace(held(low), start=start, end=end) for start, end in zip(keys, [*keys[1:], b""], strict=True)]
    why = explained("flights", [view("flights", -2 * HOUR)], ranges(*alike[::-1]))
    assert why.sentence.startswith("flights is at ")
    assert "held by flights all keys on exec-7 (host-3), alive" in why.sentence
    assert "more of its key ranges" not in why.sentence
    assert (why.guilty.holding, [(holder.start, holder.end) for holder in why.guilty.holders]) == (4, [(b"", b"")])
    other = replace(alike[1], worker="exec-8")
    why = explained("flights", [view("flights", -2 * HOUR)], ranges(alike[0], other, *alike[2:]))
    assert "held by flights [.., 0x01) on exec-7 (host-3), alive" in why.sentence
    assert "and by 3 more of its key ranges" in why.sentence
    assert "(4 of" not in str(why), "three stand for all"
