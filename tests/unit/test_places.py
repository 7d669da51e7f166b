"""Where a process listens that is not told where: without access rules only its own machine may call."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lowwater_authority.commands.serve_arguments import limits_given, parser
from lowwater_authority.regions.serve import parser as global_parser
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


def test_a_global_authority_takes_the_limits_that_count_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal names --limit, so both processes have it. One without computations refuses their limits."""
    args = global_parser().parse_args(["--limit", "streams=7", "--limit", "calls_per_second=9"])
    limits = limits_given(args.limit)
    assert (limits.streams, limits.calls_per_second, limits.message_bytes) == (7, 9.0, None)
    with pytest.raises(SystemExit):
        global_parser().parse_args(["--limit", "computations=7"])
    assert "computations is unknown; write one of streams, calls_per_second, message_bytes" in capsys.readouterr().err


def test_a_shard_that_others_could_not_reach_does_not_start() -> None:
    args = parser().parse_args(["--store", "redis://redis", "--advertise", "lowwater-0:7420"])
    with pytest.raises(
        CannotServe, match=r"lowwater-0:7420 is for other machines.*--access FILE.*--listen 0\.0\.0\.0:7420"
    ):
        choose_places(args)


def test_the_global_authority_does_the_same_at_its_own_ports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    args = global_parser().parse_args([])
    choose_places(args)
    assert (args.listen, args.http) == ("127.0.0.1:7430", "127.0.0.1:7431")
    [told] = [vars(record)["lowwater"] for record in caplog.records]
    assert told == {"event": "local_only", "address": "127.0.0.1:7430"}
    args = global_parser().parse_args(["--access", str(Path("access.toml"))])
    choose_places(args)
    assert args.listen == "0.0.0.0:7430"
