"""Write the page of commands and the client's completion scripts from the arguments.

python -m scripts.generate_cli            write them
python -m scripts.generate_cli --check    exit 1 when one is out of date
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import shtab

from lowwater.cli.arguments import SHELLS, parser
from lowwater_authority.commands import access as access_command
from lowwater_authority.commands import demo, serve_arguments
from lowwater_authority.commands import journal as journal_command
from lowwater_page.process import parser as page_parser
from lowwater_pipeline.command import parser as pipeline_parser
from lowwater_regions import region
from lowwater_regions import serve as global_authority
from lowwater_regions.commands import references as references_command

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/reference/generated/commands.md"
SCRIPTS: Final = ROOT / "client" / "src" / "lowwater" / "cli"
MARK: Final = "<!-- What follows is made by scripts/generate_cli.py. -->\n"

_ASK: Final = "lowwater status --names --answer-within 1s 2>/dev/null"

_ONLY_NAMES: Final = "LC_ALL=C grep -E '^[A-Za-z0-9_./-]+$'"
"""Check of the words for bash. compgen -W runs commands in its words, and an older `lowwater`
prints whatever the server at its address answers."""

_PREAMBLE: Final = {
    "bash": f'_lowwater_names() {{ compgen -W "$({_ASK} | {_ONLY_NAMES})" -- "$1"; }}\n',
    "zsh": f'_lowwater_names() {{ local -a names; names=("${{(@f)$({_ASK})}}"); compadd -a names; }}\n',
}

_NAMES: Final = {"bash": "_lowwater_names", "zsh": "_lowwater_names", "fish": f"({_ASK})"}


def whole() -> argparse.ArgumentParser:
    """Return the parser of the command with the commands of the other distribution in it."""
    top = parser()
    commands = commands_of(top)
    commands["demo"] = demo.parser()
    commands["serve"] = serve_arguments.parser()
    commands["journal"] = journal_command.parser()
    commands["access"] = access_command.parser()
    commands["global"] = global_authority.parser()
    commands["region"] = region.parser()
    commands["references"] = references_command.parser()
    return top


def commands_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the parsers of the commands of a parser, by name."""
    subcommands: Any = next((action for action in _actions(parser) if isinstance(action.choices, dict)), None)
    return {} if subcommands is None else subcommands.choices


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions


def every(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of all of its commands."""
    yield parser
    for subparser in commands_of(parser).values():
        yield from every(subparser)


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    top = whole()
    for command in every(top):
        for action in _actions(command):
            if action.metavar in {"NAME", "INPUT"} and not action.option_strings:
                action.complete = _NAMES  # type: ignore[attr-defined]
            elif action.metavar in {"PEM", "FILE"}:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.dest in {"data", "source", "target"}:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    text = shtab.complete(top, shell=shell, preamble=_PREAMBLE.get(shell, ""))
    return f"{text.rstrip()}\n"


def page() -> str:
    """Return the --help of all commands, of the page and of the pipeline's jobs."""
    os.environ["COLUMNS"] = "100"
    parts = []
    for command in (*every(whole()), page_parser(), *every(pipeline_parser())):
        parts.append(f"## {command.prog}\n\n```text\n{command.format_help().rstrip()}\n```\n")
    return PAGE.read_text("utf-8").split(MARK)[0] + MARK + "\n" + "\n".join(parts)


def main() -> int:
    """Write, or compare; returns the exit code."""
    if sys.version_info[:2] != (3, 11):
        print(
            "the page of commands and the completion scripts are made with Python 3.11 alone: argparse lays out help otherwise in each release"
        )
        return 0
    files = {PAGE: page(), **{SCRIPTS / f"completion.{shell}": script(shell) for shell in SHELLS}}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale; run: make gen", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.write_text(files[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
