"""What was seen of published watermarks never goes down in this process, and nothing is mixed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import ServerTokenMismatch, StaleEpoch, Watermark, WatermarkView
from lowwater._core.ratchet import Ratchet

views = st.builds(
    lambda incarnation, epoch, low, ahead: WatermarkView(
        "a",
        registered=True,
        incarnation=incarnation,
        epoch=epoch,
        low=Watermark(low),
        shares=((990_000, Watermark(low + ahead)),),
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(0, 3),
)


@given(st.lists(views))
def test_values_order_by_incarnation_then_value_and_epochs_never_go_down(answers: list[WatermarkView]) -> None:
    ratchet = Ratchet()
    shown = ratchet.get("a")
    for answer in answers:
        version = ratchet.version
        if shown.registered and answer.epoch < shown.epoch:
            with pytest.raises(StaleEpoch):
                ratchet.admit(answer)
            assert ratchet.get("a") == shown
            continue
        changed = ratchet.admit(answer)
        now = ratchet.get("a")
        assert changed == (now != shown)
        assert changed == (ratchet.version > version)
        assert (now.incarnation, now.low) >= (shown.incarnation, shown.low)
        if now.incarnation == shown.incarnation:
            assert now.heuristic[0.99] >= shown.heuristic[0.99]
            assert now.low == max(shown.low, answer.low) if answer.incarnation == now.incarnation else True
        assert now.heuristic[0.99] >= now.low
        shown = now


def test_a_new_incarnation_starts_below_the_old_one() -> None:
    ratchet = Ratchet()
    ratchet.admit(WatermarkView("a", registered=True, incarnation=1, epoch=1, low=Watermark(9)))
    assert ratchet.admit(WatermarkView("a", registered=True, incarnation=2, epoch=1))
    assert ratchet.get("a").low.unknown


def test_what_was_promised_is_not_forgotten() -> None:
    ratchet = Ratchet()
    ratchet.admit(WatermarkView("a", registered=True, incarnation=1, epoch=2, low=Watermark(9)))
    assert not ratchet.admit(WatermarkView("a", registered=False, epoch=1))
    assert ratchet.get("a").low == Watermark(9)


def test_the_first_deployment_is_the_only_one() -> None:
    ratchet = Ratchet()
    ratchet.check_token("one")
    ratchet.check_token("one")
    with pytest.raises(ServerTokenMismatch) as caught:
        ratchet.check_token("two")
    assert caught.value.metadata == {"expected": "one", "server_token": "two"}


def test_a_deployment_asked_for_is_the_only_one() -> None:
    with pytest.raises(ServerTokenMismatch):
        Ratchet("one").check_token("two")


def test_lower_values_are_counted_and_not_shown() -> None:
    ratchet = Ratchet()
    ratchet.admit(WatermarkView("a", registered=True, incarnation=1, epoch=1, low=Watermark(9), since_micros=7))
    ratchet.admit(WatermarkView("a", registered=True, incarnation=1, epoch=2, low=Watermark(3), since_micros=8))
    assert (ratchet.get("a").low, ratchet.get("a").since_micros, ratchet.get("a").epoch) == (Watermark(9), 7, 2)
    assert ratchet.held_back == 1


def test_only_what_changed_is_told() -> None:
    ratchet = Ratchet()
    a, b = WatermarkView("a", registered=True, incarnation=1), WatermarkView("b", registered=True, incarnation=1)
    ratchet.admit(a)
    version = ratchet.version
    assert not ratchet.admit(a)
    ratchet.admit(b)
    assert ratchet.changed_since(0) == [a, b]
    assert ratchet.changed_since(version) == [b]


def test_a_new_incarnation_hides_the_old_one_however_late_that_is_told() -> None:
    ratchet = Ratchet()
    old = WatermarkView(
        "c", registered=True, incarnation=1, epoch=3, low=Watermark(5), shares=((990_000, Watermark(6)),)
    )
    ratchet.admit(old)
    assert ratchet.begin("c", 2)
    assert ratchet.begin("unheard", 4)
    assert not ratchet.admit(old)
    assert not ratchet.begin("c", 2)
    view = ratchet.get("c")
    assert (view.registered, view.incarnation, view.epoch, view.low) == (True, 2, 3, Watermark.UNKNOWN)
    assert view.shares == ((990_000, Watermark.UNKNOWN),)
    assert ratchet.get("unheard").incarnation == 4
