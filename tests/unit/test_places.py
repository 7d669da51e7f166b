"""Where a process listens that is not told where: without access rules only its own machine may call."""

from __future__ import annotations

import pytest

from lowwater_authority.commands.serve_arguments import parser
from lowwater_authority.serve import CannotServe, choose_places


@pytest.mark.parametrize(
    ("flags", "listen", "http"),
    [
        ([], "127.0.0.1:7420", "127.0.0.1:7421"),
        (["--access", "access.toml"], "0.0.0.0:7420", "0.0.0.0:7421"),
        (["--listen", "0.0.0.0:7420"], "0.0.0.0:7420", "0.0.0.0:7421"),
        (["--listen", "[::]:1"], "[::]:1", "[::]:7421"),
        (["--http", "0.0.0.0:1"], "127.0.0.1:7420", "0.0.0.0:1"),
        (["--http", "off"], "127.0.0.1:7420", "off"),
        (["--store", "redis://redis", "--advertise", "127.0.0.1:7420"], "127.0.0.1:7420", "127.0.0.1:7421"),
        (["--store", "redis://redis", "--advertise", "a:1", "--access", "x"], "0.0.0.0:7420", "0.0.0.0:7421"),
        (["--store", "redis://redis", "--advertise", "a:1", "--listen", "a:1"], "a:1", "a:7421"),
    ],
)
def test_only_this_machine_may_call_unless_somebody_says_otherwise(flags: list[str], listen: str, http: str) -> None:
    args = parser().parse_args(flags)
    choose_places(args)
    assert (args.listen, args.http) == (listen, http)


def test_a_shard_that_others_could_not_reach_does_not_start() -> None:
    args = parser().parse_args(["--store", "redis://redis", "--advertise", "lowwater-0:7420"])
    with pytest.raises(
        CannotServe, match=r"lowwater-0:7420 is for other machines.*--access FILE.*--listen 0\.0\.0\.0:7420"
    ):
        choose_places(args)
