"""How a command ends that has no answer: its exit code, and the error in words for people or as JSON for programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any, Final

from lowwater import errors
from lowwater.cli.render import to_json
from lowwater.core.text import on_one_line

__all__ = ["AWAY", "error_record", "exit_code", "fail", "near", "say", "unknown"]

AWAY: Final = (
    errors.JournalFailed,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StaleEpoch,
    errors.Timeout,
    errors.Unavailable,
)
"""Answers that are none: asking later may help."""

_MOST_NEAR: Final = 3
"""Names that are offered for one that does not exist."""

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
"""What a field of the client is on the command line, where the two differ."""

_FIXES: Final = {
    "INCARNATION_CHANGED": "wait anew",
    "JOURNAL_FAILED": "ask again later; the authority's log says what its store refused",
    "OVERLOADED": "ask again later",
    "OWNED_RANGES": "stop the workers or have them release it first, or pass --force",
    "PERMISSION_DENIED": "have whoever keeps the access file allow it",
    "SERVER_TOKEN_MISMATCH": "check --address and --server-token",
    "SHUTTING_DOWN": "ask again later",
    "STALE_EPOCH": "ask again later, or another shard",
    "STILL_READ": "drop first what reads it, or give that other inputs with `lowwater set-inputs`",
    "TIMEOUT": "ask again later; --answer-within gives an answer more time",
    "UNAUTHENTICATED": "pass a token in LOWWATER_TOKEN or LOWWATER_TOKEN_FILE, or a certificate with --cert and --key",
    "UNAVAILABLE": "start `lowwater serve`, or name where it listens with --address or LOWWATER_ADDRESS",
    "UNKNOWN_COMPUTATION": "check the spelling and the namespace; `lowwater status` lists what there is",
}
"""What to do on the command line, by the reason of an error that does not say it itself."""

_SPOKEN: Final = (
    (re.compile(r"Ask why\('([^']*)'\)\."), r"`lowwater why \1` says more."),
    (re.compile(r"with set_inputs"), "with `lowwater set-inputs`"),
    (re.compile(r"as shards\(\) has it, or None to take the pin back"), "as `lowwater shards` has it, or --off"),
    (re.compile(r"\(LOWWATER_TOKEN, or connect\(token=\.\.\.\)\)"), "in LOWWATER_TOKEN or LOWWATER_TOKEN_FILE"),
)
"""What is said to programs, and how it is said to who types commands."""


def exit_code(error: Exception) -> int:
    """Return 3 for an error after which nobody could tell, else 2."""
    return 3 if isinstance(error, AWAY) else 2


def fail(command: str, error: Exception, *, as_json: bool, code: int | None = None) -> int:
    """Say why a command has no answer: as one JSON object on standard output, else as a line on standard error. Returns its exit code."""
    code = exit_code(error) if code is None else code
    if as_json:
        print(to_json(error_record(error, code)))
    else:
        say(command, _words(error))
    return code


def say(command: str, words: str) -> None:
    """Say something to people.

    The authority's words may quote a worker's name, which is whatever the worker called itself.
    """
    print(f"lowwater {command}: {on_one_line(words)}", file=sys.stderr)


def error_record(error: Exception, code: int) -> dict[str, Any]:
    """Return an error for JSON."""
    if not isinstance(error, errors.LowwaterError):
        # A file that cannot be read, or an argument that makes no sense.
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
    """Return what an error says, of an argument by its name on the command line."""
    if isinstance(error, errors.InvalidArgument) and (option := _OPTIONS.get(error.metadata.get("field", ""))):
        _, _, refused = str(error).partition("=")
        if refused:
            return f"{option}: {_spoken(refused)}"
    return _spoken(str(error))


def _spoken(text: str) -> str:
    for said, typed in _SPOKEN:
        text = said.sub(typed, text)
    return text


def unknown(name: str, names: Iterable[str]) -> errors.UnknownComputation:
    """Return the error for a name that is none of those registered; it names those that are near."""
    offered = near(name, tuple(names))
    fix = f"did you mean {' or '.join(offered)}?" if offered else _FIXES["UNKNOWN_COMPUTATION"]
    metadata = {"computation": name, "near": ", ".join(offered), "fix": fix}
    return errors.UnknownComputation(f"there is no computation {name!r}: {fix}", metadata=metadata)


def near(name: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the names that one may have been meant for, the nearest first; the namespace may be what is wrong with it.

    >>> near("flihgts", ["hourly", "flights"]), near("ledger", ["prod/ledger", "hourly"]), near("x", ["hourly"])
    (('flights',), ('prod/ledger',), ())
    """
    spelt: dict[str, dict[str, None]] = {}
    for each in names:
        for part in (each, each.rpartition("/")[2]):
            spelt.setdefault(part.lower(), {})[each] = None
    found: dict[str, None] = {}
    for part in (name, name.rpartition("/")[2]):
        for close in get_close_matches(part.lower(), spelt, _MOST_NEAR):
            found.update(spelt[close])
    return tuple(found)[:_MOST_NEAR]
