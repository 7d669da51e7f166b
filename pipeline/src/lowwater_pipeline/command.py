"""The command ``lowwater-pipeline``: each job of this distribution is one subcommand.

A part adds its command by a function in :data:`PARTS`. It takes the subparsers, and sets ``run``,
which takes the arguments and returns the exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from lowwater.cli.arguments import CommandParser
from lowwater.cli.streams import open_streams
from lowwater_pipeline import graph_command
from lowwater_pipeline.dedup import arguments as dedup

__all__ = ["PARTS", "main", "parser"]

PARTS: Final[tuple[Callable[[Any], None], ...]] = (dedup.add, graph_command.add)
"""Functions that add the commands, in the order of the help."""

_EPILOG: Final = """\
Each command tells with --help what it promises, and what it refuses.
"""


def parser() -> CommandParser:
    """Return the parser of the command."""
    parse = CommandParser(
        prog="lowwater-pipeline",
        description="What a robust pipeline needs around low watermarks.",
        epilog=_EPILOG,
    )
    commands = parse.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in PARTS:
        add(commands)
    return parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    open_streams()
    args = parser().parse_args(argv)
    code: int = args.run(args)
    return code
