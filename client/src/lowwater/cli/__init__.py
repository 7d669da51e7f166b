"""The command ``lowwater``: what a person or a script asks of the authority.

Exit codes: 0 done, 1 not yet, 2 error, 3 nobody could tell (the authority is unreachable or silent).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.resources import files
from typing import Final

from lowwater import errors
from lowwater._core.text import on_one_line
from lowwater.cli.arguments import parser
from lowwater.cli.commands import COMMANDS, CannotTell, open_client

__all__ = ["main"]

_OF_THE_AUTHORITY: Final = {
    "access": "lowwater_authority.access_command",
    "journal": "lowwater_authority.journal_command",
    "serve": "lowwater_authority.serve_command",
}
"""Commands that another distribution has, and the modules whose ``main`` runs them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _OF_THE_AUTHORITY:
        return _delegate(arguments[0], arguments[1:])
    args = parser().parse_args(arguments)
    if args.command == "completion":
        print(files("lowwater.cli").joinpath(f"completion.{args.shell}").read_text("utf-8"), end="")
        return 0
    try:
        with open_client(args) as lw:
            return COMMANDS[args.command](lw, args)
    except CannotTell as error:
        print(_said(args.command, error), file=sys.stderr)
        return 3
    except (errors.LowwaterError, OSError, ValueError) as error:
        print(_said(args.command, error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _said(command: str, error: Exception) -> str:
    """Return an error as it is shown. The authority's may quote a worker's name, which is whatever the worker called itself."""
    return f"lowwater {command}: {on_one_line(str(error))}"


def _delegate(command: str, arguments: list[str]) -> int:
    try:
        module = import_module(_OF_THE_AUTHORITY[command])
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("lowwater_authority"):
            raise
        print(
            f"lowwater {command}: the server is a package of its own: pip install lowwater-authority", file=sys.stderr
        )
        return 2
    run: Callable[[Sequence[str]], int] = module.main
    return run(arguments)
