"""``lowwater access``: makes tokens, hashes them, and explains what a file of access rules allows.

The command asks no server.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lowwater.cli.arguments import CommandParser, add_command
from lowwater.cli.render import table
from lowwater.core.checks import is_name
from lowwater.core.text import counted
from lowwater_authority.access.policy import DEFAULT_LIMITS, Access, Action, Principal
from lowwater_authority.core.names import name_parts
from lowwater_authority.files.table import BadFile, date_text
from lowwater_server.tokens import LEAST_TOKEN, digest, fingerprint, is_token

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOKEN_BYTES: Final = 32

_TOKEN: Final = """\
The first line is for whoever calls, as LOWWATER_TOKEN; keep it where secrets
are kept. The second is for token_sha256 in the access file, and is no secret.
"""

_HASH: Final = """\
examples:
  lowwater access hash < token.txt
  printf %s "$LOWWATER_TOKEN" | lowwater access hash

A line break at the end is not part of the token.
"""

_CHECK: Final = """\
examples:
  lowwater access check access.toml
  lowwater access check access.toml --as etl
  lowwater access check access.toml --as etl --may report flights/enriched

Exit codes: 0 the file is good, and allows what --may asks; 1 it does not
allow it; 2 the file is bad, or has no such principal.
"""


def parser() -> CommandParser:
    """Return the arguments of ``lowwater access``."""
    top = CommandParser(
        prog="lowwater access", description="Make tokens, and explain what a file of access rules allows."
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add_command(commands, "token", "make a random token, and print it and its hash", _TOKEN)
    add_command(commands, "hash", "read a token from standard input, and print its hash", _HASH)
    check = add_command(commands, "check", "read an access file as the server does, and explain it", _CHECK)
    check.add_argument("file", type=Path, metavar="FILE", help="the file of lowwater serve --access")
    check.add_argument("--as", dest="principal", metavar="PRINCIPAL", help="only this principal")
    check.add_argument(
        "--may",
        nargs=2,
        metavar=("ACTION", "COMPUTATION"),
        help=f"whether it may do this: {', '.join(action.value for action in Action)}, and a full name",
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parser().parse_args(argv)
    try:
        return {"token": _token, "hash": _hash, "check": _check}[args.command](args)
    except (BadFile, _Refused) as error:
        print(f"lowwater access {args.command}: {error}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return 2


class _Refused(Exception):
    """The arguments make no sense for this file; the message says what to change."""


def _token(args: argparse.Namespace) -> int:
    del args
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    _say(f"token         {token}\ntoken_sha256  {digest(token)}")
    return 0


def _hash(args: argparse.Namespace) -> int:
    del args
    token = sys.stdin.read().rstrip("\r\n")
    if not token:
        raise _Refused("standard input is empty: give it a token, such as lowwater access hash < token.txt")
    if not is_token(token):
        raise _Refused("standard input is no token: a token is one line of printable ASCII without spaces around it")
    if len(token) < LEAST_TOKEN:
        msg = f"the token has less than {LEAST_TOKEN} characters, and could be guessed from its hash: make one with `lowwater access token`"
        raise _Refused(msg)
    _say(digest(token))
    return 0


def _check(args: argparse.Namespace) -> int:
    access = Access.load(args.file)
    if args.may is not None:
        return _may(access, args)
    shown = access.principals if args.principal is None else [_named(access, args)]
    _say("\n\n".join([*map(_described, shown), *([_limits(access)] if args.principal is None else [])]))
    return 0


def _may(access: Access, args: argparse.Namespace) -> int:
    if args.principal is None:
        raise _Refused("--may needs --as PRINCIPAL: who?")
    action, name = args.may
    actions = [action.value for action in Action]
    if action not in actions:
        raise _Refused(f"--may: {action!r} is no action; name one of {', '.join(actions)}")
    if not is_name(name):
        raise _Refused(f"--may: {name!r} is no computation; write [namespace/]name")
    principal = _named(access, args)
    namespace, plain = name_parts(name)
    over = principal.ends is not None and principal.ends <= time.time()
    allowed = principal.may(Action(action), namespace, plain) and not over
    why = f": its last token expired at {date_text(principal.ends or 0)}" if over else ""
    _say(f"{principal.name} {'may' if allowed else 'may not'} {action} {name}{why}")
    return 0 if allowed else 1


def _named(access: Access, args: argparse.Namespace) -> Principal:
    principal = access.named(args.principal)
    if principal is None:
        names = ", ".join(principal.name for principal in access.principals)
        raise _Refused(f"--as: {args.file} has no principal {args.principal!r}; it has {names}")
    return principal


def _described(principal: Principal) -> str:
    tokens = ", ".join(_token_shown(token_digest, principal) for token_digest in principal.digests)
    known_by = [f"{counted(len(principal.digests), 'token')} ({tokens})"] if tokens else []
    known_by += [f"the certificate {name}" for name in principal.certificates]
    speaks = (
        f", speaks for {counted(len(principal.regions), 'region')} {', '.join(principal.regions)}"
        if principal.regions
        else ""
    )
    also = [what for what, has in (("the status page", principal.page), ("/metrics", principal.metrics)) if has]
    rows = [("NAMESPACE", *(action.value.upper() for action in Action))]
    rows += [
        (_space(rule.namespace), *(", ".join(rule.names[action]) or "-" for action in Action))
        for rule in principal.allow
    ]
    opens = f"; opens {' and '.join(also)}" if also else ""
    rules = table(rows) if principal.allow else "may do nothing with computations"
    return f"{principal.name}, known by {', '.join(known_by)}{opens}{speaks}\n{rules}"


def _token_shown(token_digest: str, principal: Principal) -> str:
    """Return the name of a token in the audit, and the date when it expires."""
    expires = principal.expires.get(token_digest)
    return fingerprint(token_digest) + ("" if expires is None else f" until {date_text(expires)}")


def _space(namespace: str) -> str:
    return {"": "(without)", "*": "(all)"}.get(namespace, namespace)


def _limits(access: Access) -> str:
    limits = access.limits.over(DEFAULT_LIMITS)
    values = [f"{name} {value:,}" for name, value in asdict(limits).items() if value is not None]
    return f"limits of each principal: {', '.join(values)}"


def _say(text: str) -> None:
    print(text)  # noqa: T201 - the answer to a command
