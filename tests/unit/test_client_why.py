"""Who holds a computation: the walk upstream, and the sentences."""

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lowwater import Promise, Ranges, RangeState, RangeView, Timeout, Unavailable, Watermark, WatermarkView, Why
from lowwater._core.causes import Cause, cause_of
from lowwater._core.why import explain, find_culprits, find_guilty, find_way
from tests import blame
from tests.kit.times import HOUR, MINUTE

NOW = 1_357_740_000_000_000  # 2013-01-09 14:00


def held(low: int | Watermark, state: RangeState = RangeState.OWNED, *, silent: int = 1, since: int = 60) -> RangeView:
    """A key range at a time from NOW, whose worker spoke so many seconds ago."""
    never = state is RangeState.NEVER_CLAIMED
    return RangeView(
        start=b"\x40",
        end=b"\x80",
        watermark=low if isinstance(low, Watermark) else Watermark(NOW + low),
        state=state,
        worker="" if never else "exec-7",
        host="" if never else "host-3",
        sequencer=0 if never else 9,
        since_micros=NOW - since * 1_000_000,
        last_report_micros=0 if never or silent < 0 else NOW - silent * 1_000_000,
    )


def view(
    name: str,
    low: int | Watermark,
    *inputs: str,
    holder: RangeView | None = None,
    oldest: int = 0,
    estimated: bool = False,
) -> WatermarkView:
    """What is published of a computation; without a holder an ordinary one, alive."""
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


def told(
    name: str, views: list[WatermarkView], found: Ranges | None = None, unknown: Unavailable | Timeout | None = None
) -> Why:
    """The answer; without ``found`` the holder of the guilty one is all there is."""
    by_name = {each.computation: each for each in views}
    guilty = find_guilty(name, by_name, NOW)
    holder = by_name[guilty].holder if guilty is not None else None
    found = found or ranges(*([holder] if holder is not None else []))
    why = explain(name, by_name, NOW, found if guilty is not None else ranges(), unknown)
    assert guilty in {None, why.guilty.computation}
    assert all(hop.upstream == after.computation for hop, after in zip(why.hops, why.hops[1:], strict=False))
    assert why.guilty.upstream is None
    lines = str(why).splitlines()
    assert lines[0] == why.sentence
    assert lines[-len(why.hops) :] == [hop.sentence for hop in why]
    return why


def way(name: str, views: list[WatermarkView]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = find_way(name, {each.computation: each for each in views}, NOW)
    return found.names, found.others


SILENT = held(-58 * MINUTE, silent=38 * 60)


def test_the_root_cause_comes_first_in_one_sentence_and_then_the_way_to_it() -> None:
    pipeline = [
        view("hourly", -58 * MINUTE, "enriched", "weather"),
        view("weather", -MINUTE),
        view("enriched", -58 * MINUTE, "flights", holder=SILENT),
        view("flights", -MINUTE),
    ]
    assert str(told("hourly", pipeline, ranges(SILENT, held(0), total=2))).splitlines() == [
        "hourly is at 13:02 UTC, 58 min behind: held by enriched [0x40, 0x80) on exec-7 (host-3), silent for 38 min, and by 1 more of "
        "its key ranges.",
        "hourly stands at 2013-01-09T13:02:00Z, 58 min behind the clock; that is as far as its input enriched allows.",
        "enriched stands at 2013-01-09T13:02:00Z, 58 min behind the clock, 57 min behind its input flights, which stands at "
        "2013-01-09T13:59:00Z: held by [0x40, 0x80) at 2013-01-09T13:02:00Z, owned by exec-7 on host-3, silent for 38 min "
        "(1 of the 2 key ranges that hold it).",
    ]


def test_how_a_range_of_a_claim_without_any_news_is_told() -> None:
    why = told("flights", [view("flights", -HOUR, holder=held(-HOUR, since=0))])
    assert why.guilty.sentence.endswith("alive and has stood there for 0 ms.")


@pytest.mark.parametrize("stood", [0, 1, 60, 14_400])
def test_a_claim_is_a_sign_of_life_and_silence_counts_from_it(stood: int) -> None:
    """However long the range has stood: nobody is accused of the time of the owner before, nor excused because it never moved."""
    for silent, cause in [(1, Cause.WAITING if stood != 1 else Cause.MOVING), (16, Cause.SILENT)]:
        claimed = replace(held(-HOUR, silent=silent), since_micros=stood and NOW - stood * 1_000_000)
        why = told("flights", [view("flights", -HOUR, holder=claimed)])
        assert why.guilty.cause is cause
        assert ("alive" in why.sentence) == (cause is not Cause.SILENT)
        assert ("silent for 16 s" in why.sentence) == (cause is Cause.SILENT)
    new = replace(held(Watermark.UNKNOWN), since_micros=0)
    why = told("flights", [view("flights", Watermark.UNKNOWN, holder=new)])
    assert why.sentence.endswith("on exec-7 (host-3), alive, but it has not moved yet.")
    assert why.guilty.sentence.endswith("which is alive.")


def test_who_was_not_heard_of_since_a_restart_is_neither_in_trouble_nor_alive() -> None:
    restarted = held(-HOUR, silent=-1, since=720)
    why = told("flights", [view("flights", -HOUR, holder=restarted)])
    assert (why.guilty.cause, Cause.UNHEARD.trouble) == (Cause.UNHEARD, False)
    assert "min" not in str(why), "no duration"
    assert "alive" not in str(why)
    left = held(-HOUR, RangeState.UNOWNED, silent=-1)
    why = told("flights", [view("flights", -HOUR, holder=left)])
    assert why.guilty.sentence.endswith("which nobody owns since exec-7 on host-3 left it.")


def test_an_input_that_is_not_registered_is_where_the_walk_ends() -> None:
    why = told("hourly", [view("hourly", Watermark.UNKNOWN, "typo")])
    assert (
        why.sentence
        == "hourly is unknown: held by typo, which is not registered: start what writes it, or remove the input."
    )
    assert why.hops[0].sentence == "hourly is unknown; that is as far as its input typo allows."
    assert why.hops[1].sentence.startswith("typo is not registered")
    assert told("typo", []).sentence == why.hops[1].sentence


def test_a_stage_behind_a_finished_input_is_to_blame_itself() -> None:
    why = told("hourly", [view("hourly", -HOUR, "a"), view("a", Watermark.FINISHED)])
    assert "behind its input a, which is finished: held by" in why.guilty.sentence


def test_ranges_that_moved_on_meanwhile_are_no_error() -> None:
    for found in (ranges(), ranges(held(0))):
        why = told("flights", [view("flights", -HOUR)], found if len(found) else ranges(held(0), total=0))
        assert why.sentence == (
            "flights is at 13:00 UTC, 1 h behind: held by flights, whose workers have just moved on: the data is old."
        )
        assert why.guilty.sentence.endswith("its workers have just moved on.")


def test_who_is_late_and_moves_all_the_time_is_told_by_how_far_it_is_behind() -> None:
    """The key ranges are asked for a moment after the watermarks, so that one that moves has always moved on."""
    why = told("top", [view("top", -HOUR, "stage"), view("stage", -HOUR, "a"), view("a", 0)], ranges(held(0), total=0))
    assert why.sentence.endswith("held by stage, whose workers have just moved on, but it is 1 h behind its input.")


def test_a_range_that_its_owner_lowered_below_what_was_published_holds() -> None:
    """Rule 3: only what is published ratchets, so who went back is the one to name."""
    why = told("flights", [view("flights", -HOUR)], ranges(held(-2 * HOUR)))
    assert (why.guilty.cause, why.guilty.holders[0].watermark) == (Cause.WAITING, Watermark(NOW - 2 * HOUR))


def test_of_the_ranges_that_hold_those_that_nobody_works_on_are_named_first() -> None:
    dead = replace(held(-HOUR, silent=99), start=b"\x80", worker="exec-8")
    why = told("flights", [view("flights", -HOUR)], ranges(held(-HOUR), dead))
    assert why.guilty.cause is Cause.SILENT
    assert why.sentence.endswith(
        "held by flights [0x80, 0x80) on exec-8 (host-3), silent for 1 min 39 s, and by 1 more of its key ranges."
    )


# -- which way ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", blame.CASES, ids=[case["name"] for case in blame.CASES])
def test_the_right_one_is_blamed_with_the_expected_sentence(case: dict[str, Any]) -> None:
    views = blame.views(case)
    guilty = find_guilty(case["ask"], views, blame.NOW)
    holder = views[guilty].holder if guilty is not None else None
    # What is retired is not among the key ranges that hold.
    holding = [holder] if holder is not None and holder.state is not RangeState.RETIRED else []
    why = explain(case["ask"], views, blame.NOW, ranges(*holding))
    found = ([hop.computation for hop in why], list(why.others), why.sentence)
    assert found == (case["way"], case["others"], case["why"])
    assert [cause_of(each, blame.NOW).value for each in views.values()] == case["causes"], (
        "as `lowwater status` shows them"
    )
    culprits = find_culprits(views, views, blame.NOW)
    assert {name: each.computation for name, each in culprits.items()} == {
        name: find_way(name, views, blame.NOW).names[-1] for name in views
    }, "all at once is as each by itself"


def test_neighbours_do_not_change_who_is_blamed() -> None:
    """Each case with every other one beside it: no pipeline has a say in another's."""

    def own(case: dict[str, Any], number: int) -> dict[str, WatermarkView]:
        return {
            f"{number}/{name}": replace(
                each, computation=f"{number}/{name}", inputs=tuple(f"{number}/{input_}" for input_ in each.inputs)
            )
            for name, each in blame.views(case).items()
        }

    together = {name: each for number, case in enumerate(blame.CASES) for name, each in own(case, number).items()}
    asked = [f"{number}/{case['ask']}" for number, case in enumerate(blame.CASES)]
    found = find_culprits(asked, together, blame.NOW)
    assert [each.computation for each in found.values()] == [
        f"{number}/{case['way'][-1]}" for number, case in enumerate(blame.CASES)
    ]


def test_a_living_stage_a_little_behind_a_dead_one_is_not_the_root_cause() -> None:
    """One that rounds down to the hour always is."""
    pipeline = [
        view("daily", -HOUR, "hourly"),
        view("hourly", -HOUR, "enriched"),
        view("enriched", -58 * MINUTE, "flights", holder=SILENT),
        view("flights", 0),
    ]
    why = told("daily", pipeline)
    assert [hop.computation for hop in why] == ["daily", "hourly", "enriched"]
    assert why.sentence == (
        "daily is at 13:00 UTC, 1 h behind: held by enriched [0x40, 0x80) on exec-7 (host-3), silent for 38 min; hourly itself is "
        "2 min behind its input, and alive."
    )
    assert (why.hops[1].behind, why.hops[1].cause) == (120.0, Cause.WAITING)
    alive = [*pipeline[:2], view("enriched", -58 * MINUTE, "flights"), pipeline[3]]
    assert way("daily", alive) == (("daily", "hourly", "enriched"), ()), "nobody is in trouble, so it is who adds most"


def test_a_stage_with_a_reason_of_its_own_is_not_passed_for_trouble_upstream() -> None:
    """What rounds down is behind by an hour at most, and its worker is not at one operation for longer than a minute."""
    left = held(-MINUTE, RangeState.UNOWNED, silent=60)
    source = view("source", -MINUTE, holder=left)

    def blamed(behind: int, oldest: int = 0) -> str:
        stage = view("stage", -MINUTE - behind, "source", oldest=oldest)
        return told("stage", [stage, source]).guilty.computation

    assert [blamed(behind) for behind in (1, HOUR, HOUR + 1, 4 * HOUR)] == ["source", "source", "stage", "stage"]
    assert [blamed(MINUTE, NOW - seconds * 1_000_000) for seconds in (59, 61)] == ["source", "stage"]
    never = view("stage", Watermark.UNKNOWN, "source")
    assert told("stage", [never, source]).guilty.computation == "stage", "unknown is further than any step"
    ahead = [view("guess", 0, "source", estimated=True), source]
    assert way("guess", ahead) == (("guess",), ()), "an estimate does not wait"
    busy = told("stage", [view("stage", -4 * HOUR, "source", oldest=NOW - 4 * HOUR), source])
    assert busy.sentence.endswith("alive, but at one operation for 4 h.")


def test_a_diamond_has_one_root_cause() -> None:
    pipeline = [
        view("top", -HOUR, "left", "right"),
        view("left", -HOUR, "source"),
        view("right", -HOUR, "source"),
        view("source", -HOUR),
    ]
    why = told("top", pipeline)
    assert ([hop.computation for hop in why], why.others) == (["top", "left", "source"], ())
    assert why.hops[0].sentence.endswith("that is as far as its inputs left and right allow.")


def test_inputs_that_are_equally_low_are_all_named_one_in_trouble_first() -> None:
    pipeline = [
        view("top", -HOUR, "a", "b", "c"),
        view("a", -HOUR),
        view("b", -HOUR, holder=held(-HOUR, silent=99)),
        view("c", 0),
    ]
    why = told("top", pipeline)
    assert ([hop.computation for hop in why], why.others) == (["top", "b"], ("a",))
    assert why.sentence.endswith("silent for 1 min 39 s; and just as much by a [0x40, 0x80) on exec-7 (host-3).")
    many = [view("top", Watermark.UNKNOWN, *"abcdefg"), *(view(name, Watermark.UNKNOWN) for name in "bcdef")]
    why = told("top", many)
    assert ([hop.computation for hop in why], why.others) == (["top", "a"], ("g", "b", "c", "d", "e", "f"))
    assert "g (not registered), b [0x40, 0x80) on exec-7 (host-3), c" in why.sentence
    assert why.sentence.endswith("and 3 more.")


def test_who_would_stay_all_the_same_is_told_on_the_way() -> None:
    """What an input holds hides that a stage was never claimed; it has to be known before the input moves."""
    never = held(Watermark.UNKNOWN, RangeState.NEVER_CLAIMED)
    why = told(
        "hourly", [view("hourly", Watermark.UNKNOWN, "flights", holder=never), view("flights", Watermark.UNKNOWN)]
    )
    assert why.hops[0].cause is Cause.NEVER_CLAIMED
    assert why.hops[0].sentence.endswith(
        "as far as its input flights allows; it would stay there all the same, held by [0x40, 0x80) at unknown, which no worker ever "
        "claimed."
    )


def test_an_estimate_ahead_of_its_input_holds_by_itself() -> None:
    assert way("guess", [view("guess", 0, "flights", estimated=True), view("flights", -HOUR)]) == (("guess",), ())
    assert way("sure", [view("sure", 0, "flights"), view("flights", -HOUR)]) == (("sure", "flights"), ()), "read later"
    assert told("guess", [view("guess", -HOUR, estimated=True)]).sentence.startswith(
        "guess, which is only estimated, is at 13:00"
    )


def test_when_the_authority_cannot_tell_no_worker_is_blamed() -> None:
    pipeline = [view("flights", -HOUR, holder=held(-HOUR, silent=99))]
    why = told(
        "flights", pipeline, unknown=Unavailable("this shard cannot tell: its store has not answered within 5 s.")
    )
    assert why.guilty.cause is Cause.CANNOT_TELL
    assert why.sentence == (
        "flights is at 13:00 UTC, 1 h behind: held by flights, but nobody can tell just now which key ranges hold it: this shard cannot "
        "tell: its store has not answered within 5 s."
    )
    assert "Before, it was held by [0x40, 0x80)" in why.guilty.sentence
    assert told("flights", pipeline, unknown=Timeout("the authority did not answer in time")).sentence.endswith(
        "did not answer in time, so its store may hang."
    )


def test_a_graph_that_changed_while_it_was_read_ends_the_walk() -> None:
    """Two shards may answer by two versions of the graph, which together have a circle that neither has."""
    circle = [view("a", -HOUR, "b"), view("b", -HOUR, "a")]
    assert way("a", circle)[0][0] == "a"


class Counting(dict[str, WatermarkView]):
    """What is published, and how often somebody has looked something up in it."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> WatermarkView:
        self.looks += 1
        return super().__getitem__(key)


def test_long_chains_and_wide_ones_take_little() -> None:
    """1,000 computations one behind the other, or side by side: no recursion, and no cost beyond the edges, however many ends."""
    chain = [view(f"c{n}", -HOUR, f"c{n + 1}") for n in range(999)] + [view("c999", -HOUR)]
    assert len(told("c0", chain).hops) == 1000
    sources = [f"s{n}" for n in range(300)]
    layers = [sources, *([f"{layer}-{n}" for n in range(100)] for layer in range(3))]
    funnel = [view(name, -HOUR) for name in sources]
    for before, layer in itertools.pairwise(layers):
        funnel += [view(name, -HOUR, *before) for name in layer]
    views = Counting({each.computation: each for each in funnel})
    found = find_way("2-0", views, NOW)
    assert (found.names, found.others) == (("2-0", "1-0", "0-0", "s0"), tuple(sources[1:]))
    assert views.looks < 2 * 50_000, "50,000 inputs, by which 3,000,000 ways lead there"


# -- who answers for it -------------------------------------------------------------------------------------------


def test_who_answers_for_the_one_that_holds_comes_last_with_what_to_do() -> None:
    low = -58 * MINUTE
    asked, guilty = view("hourly", low, "enriched"), view("enriched", low, "flights", holder=SILENT)
    promised = Promise(None, "ana@example.org", "billing", "https://wiki/enriched", "https://logs/?w={worker}&h={host}")
    pipeline = [
        replace(asked, promise=Promise(owner="somebody else")),
        replace(guilty, promise=promised),
        view("flights", -MINUTE),
    ]
    by_name = {each.computation: each for each in pipeline}
    why = explain("hourly", by_name, NOW, ranges(replace(SILENT, worker="exec 7/?&", host="host-3")))
    assert why.promise == promised
    assert str(why).splitlines()[-1] == (
        "ana@example.org of the team billing answers for enriched; what to do: https://wiki/enriched; "
        "logs: https://logs/?w=exec%207%2F%3F%26&h=host-3"
    )
    without = explain(
        "hourly", {name: replace(each, promise=None) for name, each in by_name.items()}, NOW, ranges(SILENT)
    )
    assert (without.promise, without.answers) == (None, "")
    assert str(without).splitlines() == [without.sentence, *(hop.sentence for hop in without)]
    assert without.hops[:-1] == why.hops[:-1], "nobody else is blamed for a promise"


@pytest.mark.parametrize(
    ("promise", "said"),
    [
        (Promise(), ""),
        (Promise(timedelta(hours=1)), ""),
        (Promise(owner="ana"), "ana answers for enriched"),
        (Promise(team="billing"), "the team billing answers for enriched"),
        (Promise(runbook="https://wiki"), "what to do: https://wiki"),
        (Promise(logs="https://logs/all"), "logs: https://logs/all"),
        (Promise(logs="https://logs/{worker}"), ""),
    ],
)
def test_what_nobody_said_is_left_out(promise: Promise, said: str) -> None:
    """Of logs by worker, too, where no worker is known."""
    finished = replace(view("enriched", Watermark.FINISHED), promise=promise)
    assert explain("enriched", {"enriched": finished}, NOW, ranges()).answers == said
