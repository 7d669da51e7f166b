"""What a region's agent keeps and what it makes of it: the parts that need no process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowwater._pb.lowwater.v1 import regions_pb2 as pb
from lowwater_authority.regions.agent import _goes_on, relayed_name
from lowwater_authority.regions.config import BadConfig, StateFolder, read_config

GOOD = """
[[reference]]
computation = "hourly"
inputs = ["views", "clicks"]
regions = ["B", "A"]
home = "A"
replicated = "mirror"
"""


def view(number: int) -> pb.ReferenceView:
    return pb.ReferenceView(name="hourly:clicks", owner="A", number=number)


@pytest.mark.parametrize(
    ("record", "number", "goes_on"),
    [
        (None, 1, True),  # it was registered just now
        (None, 2, False),  # nobody knows what was before
        (("A", 3), 3, True),
        (("A", 3), 4, True),  # a recovery, or a release that was not claimed
        (("A", 3), 5, False),  # another owner, and the way back
        (("B", 3), 4, False),
        (("A", 3), 1030, False),
    ],
)
def test_an_own_computation_goes_on_only_if_nobody_else_can_have_owned_it(
    record: tuple[str, int] | None, number: int, goes_on: bool
) -> None:
    before = None if record is None else json.dumps({"owner": record[0], "number": record[1]})
    assert _goes_on(before, view(number), "A") is goes_on


def test_names_are_relayed_into_a_namespace_of_their_own() -> None:
    assert relayed_name("sales/hourly") == "global/sales.hourly"


def test_a_file_is_read_and_its_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    path = tmp_path / "region.toml"
    path.write_text(GOOD)
    [kept] = read_config(path, "A")
    assert (kept.name, kept.regions, kept.low, kept.policy) == (
        "hourly:clicks+views",
        ("A", "B"),
        "hourly",
        "replicated",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('home = "A"', ""), "home"),
        (('replicated = "mirror"', ""), "is replicated: say with replicated"),
        (('["B", "A"]', '["B", "C"]'), "may not be owned by A"),
        (("[[reference]]", "[[other]]"), "it lacks 'reference'"),
        (('home = "A"', 'home = "A"\nhoem = "A"'), "hoem"),
        (("[[reference]]", "[[reference"), "region.toml"),
    ],
)
def test_a_file_that_makes_no_sense_says_what_to_change(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "region.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(BadConfig, match=said):
        read_config(path, "A")


def test_a_folder_serves_one_agent_at_a_time_and_counts_its_runs(tmp_path: Path) -> None:
    first = StateFolder(tmp_path, 100)
    with pytest.raises(BadConfig, match="another agent uses"):
        StateFolder(tmp_path, 100)
    first.state.records["hourly:clicks"] = "{}"
    first.state.store = "token"
    first.save()
    first.close()
    second = StateFolder(tmp_path, 50)  # the clock went back
    assert second.state.run == first.state.run + 1
    assert (second.state.agent, second.state.store, second.state.records) == (
        first.state.agent,
        "token",
        {"hourly:clicks": "{}"},
    )
    second.close()
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(BadConfig, match="is damaged"):
        StateFolder(tmp_path, 100)
