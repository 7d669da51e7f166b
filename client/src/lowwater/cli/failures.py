"""The end of a command that has no answer: its exit code, and the error in words or as JSON."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from typing import Any, Final

from lowwater import errors
from lowwater.cli.render import to_json
from lowwater.core.checks import unknown_computation
from lowwater.core.text import on_one_line

__all__ = ["AWAY", "agreed", "answer", "error_record", "exit_code", "fail", "say", "unknown"]

AWAY: Final = (
    errors.JournalFailed,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StaleEpoch,
    errors.Timeout,
    errors.Unavailable,
)
"""Errors after which the answer is unknown; another attempt may help."""

_OPTIONS: Final = {
    "address": "--address or LOWWATER_ADDRESS",
    "limit": "--limit or --last",
    "name": "NAME",
    "names": "NAME",
    "namespace": "--namespace",
    "server_token": "--server-token",
    "timeout": "--answer-within",
    "token": "LOWWATER_TOKEN or LOWWATER_TOKEN_FILE",
}
"""Option of the command line for each field of the client whose name differs."""

_FIXES: Final = {
    "INCARNATION_CHANGED": "start the command again",
    "JOURNAL_FAILED": "ask again later; the authority's log says what its store refused",
    "OVERLOADED": "ask again later",
    "OWNED_RANGES": "stop the workers or let them release their key ranges first, or pass --force",
    "PERMISSION_DENIED": "ask whoever keeps the access file to allow it",
    "SERVER_TOKEN_MISMATCH": "check --address and --server-token",
    "SHUTTING_DOWN": "ask again later",
    "STALE_EPOCH": "ask again later, or ask another shard",
    "STILL_READ": "drop its readers first, or give them other inputs with `lowwater set-inputs`",
    "TIMEOUT": "ask again later; --answer-within gives an answer more time",
    "UNAUTHENTICATED": "pass a token in LOWWATER_TOKEN or LOWWATER_TOKEN_FILE, or a certificate with --cert and --key",
    "UNAVAILABLE": "start `lowwater serve`, or pass its address with --address or LOWWATER_ADDRESS",
    "UNKNOWN_COMPUTATION": "check the spelling and the namespace; `lowwater status` lists all names, and wait and watch take --even-unregistered",
}
"""Fix on the command line, by the reason of an error that names none itself."""

_SPOKEN: Final = (
    (re.compile(r"Ask why\('([^']*)'\)\."), r"`lowwater why \1` says more."),
    (re.compile(r"with set_inputs"), "with `lowwater set-inputs`"),
    (re.compile(r"as shards\(\) has it, or None to take the pin back"), "as `lowwater shards` has it, or --off"),
    (re.compile(r"\(LOWWATER_TOKEN, or connect\(token=\.\.\.\)\)"), "in LOWWATER_TOKEN or LOWWATER_TOKEN_FILE"),
)
"""Phrases of the client's errors that name its methods, and the command for each."""


def exit_code(error: Exception) -> int:
    """Return 3 for an error after which the answer is unknown, else 2."""
    return 3 if isinstance(error, AWAY) else 2


def fail(command: str, error: Exception, *, as_json: bool, code: int | None = None) -> int:
    """Print an error, and return the exit code.

    JSON goes to standard output, words to standard error.
    """
    code = exit_code(error) if code is None else code
    if as_json:
        print(to_json(error_record(error, code)))
    else:
        say(command, _words(error))
    return code


def agreed(question: str, args: argparse.Namespace) -> bool:
    """Ask a person whether to go on. Raises InvalidArgument where nobody can answer."""
    if args.json or not sys.stdin.isatty():
        raise errors.InvalidArgument(f"{question} Pass --yes to do it.", metadata={"fix": "pass --yes"})
    try:
        return input(f"{question} Go on? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False


def answer(args: argparse.Namespace, record: Any, text: object) -> int:
    """Print an answer, as JSON if that was asked for; returns the exit code 0."""
    print(to_json(record) if args.json else text, flush=True)
    return 0


def say(command: str, words: str) -> None:
    """Print a message for people.

    It stays on one line whatever it quotes: workers choose their own names.
    """
    print(f"lowwater {command}: {on_one_line(words)}", file=sys.stderr)


def error_record(error: Exception, code: int) -> dict[str, Any]:
    """Return an error for JSON."""
    if not isinstance(error, errors.LowwaterError):
        # The error of an unreadable file or an invalid argument.
        error = errors.InvalidArgument(str(error))
    return {
        "error": {
            "reason": error.reason,
            "message": _words(error),
            "fix": _spoken(error.metadata["fix"]) if "fix" in error.metadata else _FIXES.get(error.reason),
            "exit_code": code,
            "metadata": {key: value for key, value in error.metadata.items() if key != "fix"},
        }
    }


def _words(error: Exception) -> str:
    """Return the message of an error, with options in place of the client's fields."""
    if isinstance(error, errors.InvalidArgument) and (option := _OPTIONS.get(error.metadata.get("field", ""))):
        _, _, refused = str(error).partition("=")
        if refused:
            return f"{option}: {_spoken(refused)}"
    return _spoken(str(error))


def _spoken(text: str) -> str:
    for pattern, typed in _SPOKEN:
        text = pattern.sub(typed, text)
    return text


def unknown(name: str, names: Iterable[str]) -> errors.UnknownComputation:
    """Return the error for a name that is not registered; it offers similar names."""
    return unknown_computation(name, tuple(names), _FIXES["UNKNOWN_COMPUTATION"])
