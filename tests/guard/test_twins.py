"""Each rule of the judgement switched off: what the zombie does then. Each of these must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lowwater_pipeline.guard import Claim, GuardError, NonceMismatch, NotRaised, Rewound, Row, StoreReplaced, row
from lowwater_pipeline.guard.claim import slots_between
from tests.guard import stores
from tests.guard.stores import CoreStore, claim
from tests.property.switches import off


def refused(call: Callable[[], object]) -> bool:
    """Whether a guard refuses a call."""
    try:
        call()
    except GuardError:
        return True
    return False


def let_pass(monkeypatch: pytest.MonkeyPatch, *kinds: type[GuardError]) -> None:
    """Switch off some reasons for which a write is refused."""
    judged = row.refused

    def lenient(found: Row | None, *arguments: object) -> GuardError | None:
        problem = judged(found, *arguments)  # type: ignore[arg-type]
        return None if isinstance(problem, kinds) else problem

    monkeypatch.setattr(row, "refused", lenient)


def equality(store: CoreStore) -> None:
    """A writer that has skipped its raise writes, and the zombie is not fenced by it."""
    zombie = store.raise_(claim(5))
    store.write(zombie, 0, "a", [1])
    hasty = store.unraised(claim(6))
    wrote = not refused(lambda: store.write(hasty, 1, "b", [2]))
    assert not (wrote and not refused(lambda: store.write(zombie, 2, "c", [3]))), "both write"


def nonce(store: CoreStore) -> None:
    """Two writers with one token, after the authority has lost its epoch."""
    zombie = store.raise_(claim(5, "before"))
    successor = store.unraised(claim(5, "after"))
    assert not (store.write(zombie, 0, "a", [1]) and not refused(lambda: store.write(successor, 1, "b", [2]))), (
        "both write"
    )


def digest(store: CoreStore) -> None:
    """A copied checkpoint has another batch of a number that is there."""
    writer = store.raise_(claim(5))
    store.write(writer, 0, "a", [1])
    assert refused(lambda: store.write(store.raise_(claim(6)), 0, "b", [2])), "the rows of b are lost, silently"


def order(store: CoreStore) -> None:
    """The store has lost its tail."""
    writer = store.raise_(claim(5))
    for batch in range(3):
        store.write(writer, batch, f"digest {batch}", [batch])
    store.forge("batch", 1)
    assert refused(lambda: store.write(writer, 3, "d", [3])), "there is a gap, and nobody knows"


def life(store: CoreStore) -> None:
    """A standby without the last raise has taken over."""
    zombie = store.raise_(claim(5))
    store.forge("life", "of before")
    assert refused(lambda: store.write(zombie, 0, "a", [1])), "the zombie's raise is the last one there, and it writes"


def slots(store: CoreStore) -> None:
    """[40, 80) was split, and the upper part has another owner."""
    zombie = store.raise_(claim(5), slots=8, bounds=[b"\x40", b"\x80"])
    store.raise_(claim(6), slots=8, bounds=[b"\x60", b"\x80"])
    assert refused(lambda: store.write(zombie, 0, "a", [1])), "the zombie writes into the part that was taken"


@pytest.mark.parametrize("rule", [equality, nonce, digest, order, life, slots])
def test_the_rule_holds(rule: Callable[[CoreStore], None]) -> None:
    rule(CoreStore())


@off("equality")
def test_without_equality(monkeypatch: pytest.MonkeyPatch) -> None:
    let_pass(monkeypatch, NotRaised)
    equality(CoreStore())


@off("nonce")
def test_without_the_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    let_pass(monkeypatch, NonceMismatch)
    nonce(CoreStore())


@off("digest")
def test_by_the_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    let_pass(monkeypatch, Rewound)
    digest(CoreStore())


@off("order")
def test_without_order(monkeypatch: pytest.MonkeyPatch) -> None:
    let_pass(monkeypatch, Rewound)
    order(CoreStore())


@off("life")
def test_without_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    let_pass(monkeypatch, StoreReplaced)
    life(CoreStore())


@off("slots")
def test_with_a_row_for_the_start_of_each_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = slots_between
    monkeypatch.setattr(stores, "slots_between", lambda bounds, count: whole(bounds, count)[:1])
    slots(CoreStore())


def configuration_is_changed(store: CoreStore, change: Callable[[Claim], object]) -> None:
    """The configuration of a computation goes from 1 to 2, while a writer that works by 1 goes on."""
    old = claim(5, configuration=1)
    writer = store.raise_(old)
    store.write(writer, 0, "a", [1])
    change(replace(claim(6), configuration=2))
    assert refused(lambda: store.write(writer, 1, "b", [2])), "the old configuration commits after the change"


def test_a_change_of_the_configuration_is_raised() -> None:
    store = CoreStore()
    configuration_is_changed(store, store.raise_)


@off("revoke and raise")
def test_a_change_of_the_configuration_without_a_raise() -> None:
    configuration_is_changed(CoreStore(), lambda new: None)
