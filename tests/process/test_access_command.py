"""``lowwater access``: tokens and hashes that a file takes, and what a file allows, by the exit code."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from lowwater.cli import main
from lowwater_authority.access.policy import Access
from tests.process.accessing import digest, rules_of

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def access(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    def run(*arguments: str, given: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        code = main(["access", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "access.toml"
    etl = rules_of(
        "etl", "t", [("flights", {"report": ["hour*"], "read": ["*"]}), ("", {"read": ["solo"]})], "page = true"
    )
    path.write_text(f"{etl}{rules_of('idle', 'u', [])}[limits]\nranges = 1000000\n")
    return str(path)


def test_a_token_and_its_hash_belong_together(access: Command) -> None:
    code, said, _ = access("token")
    words = dict(line.split() for line in said.splitlines())
    assert (code, len(words["token"])) == (0, 43)
    assert words["token_sha256"] == digest(words["token"])
    assert access("hash", given=f"{words['token']}\n") == (0, f"{words['token_sha256']}\n", "")
    assert access("token")[1] != said


@pytest.mark.parametrize("given", ["", "\n", "two words \n", " padded", "two\nlines", "smörgås", "\x07"])
def test_what_is_no_token_is_not_hashed(access: Command, given: str) -> None:
    code, said, told = access("hash", given=given)
    assert (code, said) == (2, "")
    assert "standard input" in told
    assert not given.strip() or given.strip() not in told


def test_a_token_that_could_be_guessed_is_not_hashed(access: Command) -> None:
    assert access("hash", given="a" * 32)[0] == 0
    code, said, told = access("hash", given="a" * 31)
    assert (code, said) == (2, "")
    assert "less than 32 characters" in told


@pytest.mark.parametrize(("name", "code", "may"), [("hourly", 0, "may"), ("minute", 1, "may not")])
def test_what_somebody_may_do_is_the_exit_code(access: Command, file: str, name: str, code: int, may: str) -> None:
    asked = f"report flights/{name}"
    assert access("check", file, "--as", "etl", "--may", *asked.split()) == (code, f"etl {may} {asked}\n", "")


def test_a_file_is_explained(access: Command, file: str) -> None:
    code, said, _ = access("check", file)
    assert code == 0
    for part in (
        f"etl, known by 1 token ({digest('t')[:8]}); opens the status page",
        "flights",
        "hour*",
        "(without)",
        "ranges 1,000,000",
    ):
        assert part in said
    assert "idle" not in access("check", file, "--as", "etl")[1]
    assert not any(each.digests[0] in said for each in Access.load(Path(file)).principals)
