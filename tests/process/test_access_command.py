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
        captured = capsys.readouterr()
        return code, captured.out, captured.err

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
    code, out, _ = access("token")
    words = dict(line.split() for line in out.splitlines())
    assert (code, len(words["token"])) == (0, 43)
    assert words["token_sha256"] == digest(words["token"])
    assert access("hash", given=f"{words['token']}\n") == (0, f"{words['token_sha256']}\n", "")
    assert access("token")[1] != out


@pytest.mark.parametrize("given", ["", "\n", "two words \n", " padded", "two\nlines", "smörgås", "\x07"])
def test_what_is_no_token_is_not_hashed(access: Command, given: str) -> None:
    code, out, error = access("hash", given=given)
    assert (code, out) == (2, "")
    assert "standard input" in error
    assert not given.strip() or given.strip() not in error


def test_a_token_that_could_be_guessed_is_not_hashed(access: Command) -> None:
    assert access("hash", given="a" * 32)[0] == 0
    code, out, error = access("hash", given="a" * 31)
    assert (code, out) == (2, "")
    assert "less than 32 characters" in error


@pytest.mark.parametrize(("name", "code", "may"), [("hourly", 0, "may"), ("minute", 1, "may not")])
def test_what_somebody_may_do_is_the_exit_code(access: Command, file: str, name: str, code: int, may: str) -> None:
    action = f"report flights/{name}"
    assert access("check", file, "--as", "etl", "--may", *action.split()) == (code, f"etl {may} {action}\n", "")


def test_a_file_is_explained(access: Command, file: str) -> None:
    code, out, _ = access("check", file)
    assert code == 0
    for part in (
        f"etl, known by 1 token ({digest('t')[:8]}); opens the status page",
        "flights",
        "hour*",
        "(without)",
        "ranges 1,000,000",
    ):
        assert part in out
    assert "idle" not in access("check", file, "--as", "etl")[1]
    assert not any(principal.digests[0] in out for principal in Access.load(Path(file)).principals)
