"""Help, examples and completion of every command: what is shown works."""

import argparse
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lowwater.cli import main
from lowwater.cli.arguments import SHELLS, CommandParser, parser
from lowwater.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^  (?:\$ )?lowwater (.+)$", re.MULTILINE)
ASKING = sorted(COMMANDS)
DELEGATED = ("demo", "serve", "journal", "access", "global", "region", "references")


@pytest.fixture(scope="module", name="generate")
def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "scripts" / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", name="whole")
def _whole(generate: ModuleType) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = generate.whole()
    return parser


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def examples(text: str) -> list[list[str]]:
    commands = []
    for line in EXAMPLE.findall(text):
        words = shlex.split(re.split(r" {3,}|  +(?=[a-z]+ [a-z]+ )| && | > ", line)[0])
        commands.append(words)
    return commands


@pytest.mark.parametrize("command", [*ASKING, "completion", *DELEGATED])
def test_every_example_of_a_help_parses(
    command: str, capsys: pytest.CaptureFixture[str], generate: ModuleType, whole: argparse.ArgumentParser
) -> None:
    text = help_of(command, capsys)
    assert text.isascii(), "a terminal may show nothing else"
    commands = examples(text)
    if command not in {"journal", "access", "references"}:  # whose commands have theirs
        assert [words for words in commands if words[0] == command], f"no example of {command}"
    for words in commands:
        if words[0] in DELEGATED:
            generate.commands_of(whole)[words[0]].parse_args(words[1:])
        else:
            assert parser().parse_args(words).command == words[0]


@pytest.mark.parametrize(
    "line",
    [
        "status --jso",
        "serve --dat folder",
        "journal copy a b --js",
        "journal show a --j",
        "access check access.toml --a etl",
        "access check access.toml --as etl --ma read x",
    ],
)
def test_an_abbreviated_option_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    assert "unrecognized arguments: --" in capsys.readouterr().err


def test_every_command_is_parsed_in_the_same_way(generate: ModuleType, whole: argparse.ArgumentParser) -> None:
    assert {type(parser) for parser in generate.every(whole)} == {CommandParser}


def test_the_page_and_the_scripts_are_those_of_the_code(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("argparse lays help out differently in each release of Python; they are written with 3.11")
    monkeypatch.setenv("COLUMNS", "100")
    assert generate.PAGE.read_text("utf-8") == generate.page()
    for shell in SHELLS:
        assert (generate.SCRIPTS / f"completion.{shell}").read_text("utf-8") == generate.script(shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script_without_shtab(shell: str, generate: ModuleType) -> None:
    code = f"import sys; sys.modules['shtab'] = None; from lowwater.cli import main; main(['completion', '{shell}'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (generate.SCRIPTS / f"completion.{shell}").read_text("utf-8")


def completed(script: str, path: Path, *words: str) -> list[str]:
    """Return bash's completions of the last word; ``lowwater status --names`` is answered by a function."""
    path.write_text(script)
    line = f"""
source {path}
lowwater() {{ [ "$1 $2" = "status --names" ] && printf 'hourly\\nenriched\\n'; }}
COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
COMP_CWORD={len(words) - 1}
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
complete -p lowwater >&2
_shtab_lowwater lowwater "${{COMP_WORDS[$COMP_CWORD]}}" "${{COMP_WORDS[$COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "--norc", "-c", line], capture_output=True, text=True, check=False)
    assert "_shtab_lowwater lowwater" in done.stderr, done.stderr
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


def test_bash_completes_commands_options_and_names(tmp_path: Path, generate: ModuleType) -> None:
    script, path = generate.script("bash"), tmp_path / "lowwater.bash"
    assert completed(script, path, "lowwater", "wa") == ["watch", "wait"]
    assert "drain" in completed(script, path, "lowwater", "")
    assert completed(script, path, "lowwater", "why", "--js") == ["--json"]
    assert completed(script, path, "lowwater", "why", "h") == ["hourly"]
    assert completed(script, path, "lowwater", "serve", "--log") == ["--log-format"]
    assert completed(script, path, "lowwater", "serve", "--log-format", "") == ["text", "json"]
    assert completed(script, path, "lowwater", "completion", "") == ["bash", "zsh", "fish"]


def test_what_is_offered_as_a_name_is_never_run(tmp_path: Path, generate: ModuleType) -> None:
    """Bash expands the words that it completes from: a name that is none is left out."""
    script, path, mark = generate.script("bash"), tmp_path / "lowwater.bash", tmp_path / "run"
    evil = script.replace(
        "lowwater status --names --answer-within 1s", f"printf '%s\\n' 'hourly' '$(touch${{IFS}}{mark})' 'b`id`'"
    )
    assert evil != script
    assert completed(evil, path, "lowwater", "why", "") == ["hourly"]
    assert not mark.exists()
