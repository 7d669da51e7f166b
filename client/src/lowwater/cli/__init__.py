"""The command ``lowwater``, by which people and scripts ask the authority.

Exit codes: 0 done, 1 not yet, 2 error, 3 the authority is unreachable or silent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from typing import Final

from lowwater import errors
from lowwater.cli.arguments import parser
from lowwater.cli.commands import run
from lowwater.cli.failures import fail, say
from lowwater.cli.streams import open_streams

__all__ = ["main"]

_ELSEWHERE: Final = {
    "access": "lowwater_authority.commands.access",
    "demo": "lowwater_authority.commands.demo",
    "global": "lowwater_regions.commands.global_authority",
    "journal": "lowwater_authority.commands.journal",
    "references": "lowwater_regions.commands.references",
    "region": "lowwater_regions.commands.region",
    "serve": "lowwater_authority.commands.serve",
}
"""Commands of other distributions, and the modules whose ``main`` runs them."""

_READER_LEFT: Final = 141
"""Exit code if the reader of the output, such as head, has gone: that of SIGPIPE in a shell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return _READER_LEFT
    except OSError as error:
        _drop_output()
        say(arguments[0], f"the answer cannot be written: {error.strerror or error}")
        return 2


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in _ELSEWHERE:
        return _delegate(arguments[0], arguments[1:])
    args = parser().parse_args(arguments)
    if args.command == "completion":
        print(files("lowwater.cli").joinpath(f"completion.{args.shell}").read_text("utf-8"), end="")
        return 0
    try:
        return run(args)
    except (errors.LowwaterError, ValueError) as error:
        return fail(args.command, error, as_json=args.json)
    except KeyboardInterrupt:
        return 130


def _drop_output() -> None:
    """Send all further output to the null device: Python would flush at its end, and complain."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _delegate(command: str, arguments: list[str]) -> int:
    try:
        module = import_module(_ELSEWHERE[command])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("lowwater_authority", "lowwater_regions"):
            raise
        needed = package.replace("_", "-")
        print(
            f"lowwater {command}: this needs {needed}: 'pip install dist/packages/*.whl', with the folder that 'make dist' "
            "leaves in a checkout of lowwater",
            file=sys.stderr,
        )
        return 2
    run: Callable[[Sequence[str]], int] = module.main
    return run(arguments)
