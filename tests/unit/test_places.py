"""Where a process listens that is not told where: without access rules only its own machine may call."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lowwater import errors
from lowwater.core.file_settings import FileSettings
from lowwater_authority.commands.serve_arguments import parser
from lowwater_authority.serve import CannotServe, choose_places


@pytest.mark.parametrize(
    ("flags", "listen", "http"),
    [
        ([], "127.0.0.1:7420", "127.0.0.1:7421"),
        (["--access", "access.toml"], "0.0.0.0:7420", "0.0.0.0:7421"),
        (["--listen", "0.0.0.0:7420"], "0.0.0.0:7420", "0.0.0.0:7421"),
        (["--listen", "[::]:1"], "[::]:1", "[::]:2"),
        (["--listen", "a:0"], "a:0", "a:0"),
        (["--listen", "a:65535", "--http", "a:1"], "a:65535", "a:1"),
        (["--http", "0.0.0.0:1"], "127.0.0.1:7420", "0.0.0.0:1"),
        (["--http", "off"], "127.0.0.1:7420", "off"),
        (["--store", "redis://redis", "--advertise", "127.0.0.1:7420"], "127.0.0.1:7420", "127.0.0.1:7421"),
        (["--store", "redis://redis", "--advertise", "a:1", "--access", "x"], "0.0.0.0:7420", "0.0.0.0:7421"),
        (["--store", "redis://redis", "--advertise", "a:1", "--listen", "a:1"], "a:1", "a:2"),
    ],
)
def test_only_this_machine_may_call_unless_somebody_says_otherwise(flags: list[str], listen: str, http: str) -> None:
    args = parser().parse_args(flags)
    choose_places(args)
    assert (args.listen, args.http) == (listen, http)


def test_a_shard_that_others_could_not_reach_does_not_start() -> None:
    args = parser().parse_args(["--store", "redis://redis", "--advertise", "lowwater-0:7420"])
    with pytest.raises(CannotServe, match=r"lowwater-0:7420 is for other machines.*--access FILE.*--listen 0\.0\.0\.0"):
        choose_places(args)


def test_the_last_port_leaves_none_for_the_metrics() -> None:
    args = parser().parse_args(["--listen", "a:65535"])
    with pytest.raises(CannotServe, match=r"^--listen a:65535 leaves no port for the metrics: pass --http$"):
        choose_places(args)


def test_a_token_counts_as_soon_as_its_file_has_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(FileNotFoundError):
        FileSettings("localhost", token_file=str(file)).read()
    for unusable in ("two\nlines", "\ufefftwo"):
        file.write_text(unusable, encoding="utf-8")
        with pytest.raises(errors.InvalidArgument, match=f"^{file} ") as refused:
            FileSettings("localhost", token_file=str(file)).read()
        assert refused.value.metadata["file"] == str(file)
        assert "two" not in repr((refused.value, refused.value.__context__))
    file.write_text("first\n")
    settings = FileSettings("localhost", token_file=str(file)).read()
    assert settings.metadata == (("authorization", "Bearer first"),)
    assert b"first" not in pickle.dumps(settings)
    file.write_text("second\n")
    assert settings.metadata == (("authorization", "Bearer second"),)
    for unusable in ("", "two\nlines", "\xff"):
        file.write_text(unusable, encoding="latin-1")
        assert settings.metadata == (("authorization", "Bearer second"),), "the last token read, not that of the start"
    file.unlink()
    assert settings.metadata == (("authorization", "Bearer second"),)
    assert not {"first", "second"} & set(repr(settings).replace("'", " ").split())
    file.write_text("third\n")
    assert settings.metadata == (("authorization", "Bearer third"),)
