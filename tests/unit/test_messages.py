"""What a user reads after a mistake: the name that was meant, what differs, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lowwater import errors
from lowwater.core import checks
from lowwater.core.text import did_you_mean
from lowwater_authority.core.times import DAY
from lowwater_authority.core.topology import Spec, Topology

CHECKED = Spec("checked", ("reading",), (990_000,), "", DAY)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"inputs": ("readings", "b")},
            "inputs reading, and not readings, b: register the same; `lowwater set-inputs checked readings b` changes the inputs.",
        ),
        (
            {"inputs": ()},
            "inputs reading, and not none: register the same; to change that, drop it (`lowwater drop checked`) and register it anew.",
        ),
        (
            {"inputs": ("b",), "heuristics": (900_000,)},
            "inputs reading, and not b; heuristics 0.99, and not 0.9: register the same; `lowwater set-inputs checked b` changes "
            "the inputs; to change the rest, drop it (`lowwater drop checked`) and register it anew.",
        ),
    ],
)
def test_a_conflict_names_what_differs_and_what_changes_it(
    asked: dict[str, tuple[int | str, ...]], message: str
) -> None:
    with pytest.raises(errors.RegistrationConflict) as refused:
        Topology().register(CHECKED).register(replace(CHECKED, **asked))  # type: ignore[arg-type]
    assert str(refused.value) == f"checked is registered with {message}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checks.names("inputs", "orders"), "inputs='orders' is refused: pass a list: inputs=[\"orders\"]"),
        (lambda: checks.names("inputs", 3), "inputs=3 is refused: pass a list or another iterable"),
    ],
)
def test_one_name_in_place_of_a_list_is_refused_with_the_list(call: Callable[[], object], message: str) -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        call()
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("name", "names", "question"),
    [
        ("reading", ["readings", "orders"], "; did you mean readings?"),
        ("prd/ledger", ["prod/ledger"], "; did you mean prod/ledger?"),
        ("senser", ["sensor", "sense", "t"], "; did you mean sense or sensor?"),
        ("x", ["hourly"], ""),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_similar_ones(name: str, names: list[str], question: str) -> None:
    assert did_you_mean(name, names) == question
    dropped = errors.UnknownComputation("gone.", metadata={"computation": name})
    assert str(checks.offering(dropped, names)) == ("gone" + question.replace("; ", ": ") if question else "gone.")
