"""A stage on a computation that is cut into slices: it is refused when it starts."""

from __future__ import annotations

import pytest

import lowwater
from lowwater_spark.track.authority import REPLACED, Authority, Registration


def registration(name: str) -> Registration:
    return Registration(name, (), (), 2, "here", 0, 1, b"", adopt=False)


def test_a_stage_on_what_is_cut_is_refused_with_what_to_do(lw: lowwater.Client) -> None:
    lw.register("cut", slices=[b"\x40", b"\x80"])
    with pytest.raises(lowwater.RegistrationConflict, match="registered in 3 slices, and a stage commits") as refused:
        Authority(lw, registration("cut")).enter(lambda _: None, lambda: pytest.fail("nothing is claimed"), None)  # type: ignore[arg-type]
    assert "another name" in refused.value.metadata["fix"]
    assert isinstance(refused.value, REPLACED), "it ends the query"


def test_another_conflict_is_told_as_it_is(lw: lowwater.Client) -> None:
    lw.register("whole", inputs=["cut"])
    with pytest.raises(lowwater.RegistrationConflict, match="registered with inputs"):
        Authority(lw, registration("whole")).register()
