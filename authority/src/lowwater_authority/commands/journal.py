"""``lowwater journal``: copies a journal to another store, and lists the logs of a journal.

An argument names a journal by its place:

    /var/lib/lowwater            the folder of lowwater serve --data
    redis://redis:6379/0#orders  the deployment "orders" of a store; "default" without #NAME
    env:LOWWATER_STORE#orders    the same, with the URL in an environment variable: a URL with a
                                 password must be there
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from lowwater import errors
from lowwater.cli.arguments import CommandParser, add_command
from lowwater.cli.failures import fail
from lowwater.cli.render import table
from lowwater.core.text import counted
from lowwater_authority.commands.serve_arguments import refuse_password
from lowwater_authority.engine.graph_log import needs_newest, whole
from lowwater_authority.journal import GRAPH, Journal
from lowwater_authority.journal.copy import (
    Copy,
    CopyRefused,
    LogFacts,
    Progress,
    TargetNotEmpty,
    is_unfinished,
    speaking_of,
    survey,
)
from lowwater_authority.stores.folder import Folder
from lowwater_authority.stores.store import Store, store_at

PROGRESS_SECONDS: Final = 1.0
"""Seconds between two lines of progress."""

_PLACES: Final = """\
A journal is named by
  /var/lib/lowwater              the folder of lowwater serve --data
  redis://redis:6379#orders      URL#NAME as for lowwater serve --store URL
                                 --deployment NAME (default: default)
  env:LOWWATER_STORE#orders      the same with the URL in an environment
                                 variable; one with a password only so
"""

_COPY: Final = f"""\
{_PLACES}
Nobody may serve either of them meanwhile, and TARGET must be empty. Clients
that know SOURCE know TARGET for the same deployment; of the two, serve only
TARGET from then on. A copy that was cut off is continued by the same command.

Exit codes: 0 copied, 2 error.
"""

_SHOW: Final = f"""\
{_PLACES}
Each byte is read and checked. An embedded journal must not be served
meanwhile; its logs have one epoch, and each opening begins another.

Exit codes: 0 all is well, 2 error.
"""


def parser() -> CommandParser:
    """Return the arguments of ``lowwater journal``."""
    top = CommandParser(prog="lowwater journal", description="Copy a journal to another store, or list what is in one.")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    copy = add_command(commands, "copy", "copy a journal into an empty store: to move it, or as a backup", _COPY)
    copy.add_argument("source", metavar="SOURCE", help="the journal to copy")
    copy.add_argument("target", metavar="TARGET", help="where to, empty or an unfinished copy")
    copy.add_argument(
        "--forget-dropped",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help='forget the dropped computations of a namespace ("" for names without one), so that others can be dropped; as often as you like '
        "(docs/operate/operations.md tells what that loses)",
    )
    show = add_command(commands, "show", "list the logs of a journal, after a check of all of it", _SHOW)
    show.add_argument("source", metavar="SOURCE", help="the journal")
    for command in (copy, show):
        command.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parser().parse_args(argv)
    run = {"copy": _copy, "show": _show}[args.command]
    try:
        print(asyncio.run(run(args)))  # noqa: T201 - the answer to a command
    except CopyRefused as error:
        refusal = errors.LowwaterError(str(error), reason="COPY_REFUSED")
        return fail(f"journal {args.command}", refusal, as_json=args.json)
    except KeyboardInterrupt:
        return 130
    return 0


async def _copy(args: argparse.Namespace) -> str:
    source, target = parse_place(args.source), parse_place(args.target)
    if str(source) == str(target):
        raise CopyRefused(f"SOURCE and TARGET are both {source}")
    async with _opened(await _present(source), served=False) as old:
        with speaking_of(str(source)):
            facts = await survey(old, fence=True)
        with speaking_of(str(target)):
            token = "" if await target.exists() else old.server_token
        async with _opened(target, served=False, server_token=token) as new:
            names, progress = (str(source), str(target)), _progress(time.monotonic)
            graph = partial(whole, forget=args.forget_dropped)
            copy = Copy(old, facts, new, whole=graph, newest=needs_newest, names=names, progress=progress)
            try:
                await copy.run()
            except TargetNotEmpty as error:
                raise CopyRefused(f"{error}. Name an empty place; or, to remove it, {target.removal()}") from error
        token = old.server_token
    logs, records, size = len(facts), sum(log.records for log in facts), sum(log.bytes for log in facts)
    if args.json:
        counts = {"logs": logs, "records": records, "bytes": size}
        return json.dumps({"source": str(source), "target": str(target), "server_token": token, **counts})
    return (
        f"copied {counted(logs, 'log')}, {counted(records, 'record')} behind their snapshots, {_size(size)} from {source} to {target}, "
        f"all compared; deployment {token}. "
        f"Serve only one of them from now on"
    )


async def _show(args: argparse.Namespace) -> str:
    source = parse_place(args.source)
    async with _opened(await _present(source), served=True) as journal:
        with speaking_of(str(source)):
            facts = await survey(journal, fence=False)
            # The records may be undamaged and still not make up a graph.
            whole(await journal.load(GRAPH, durable=False))
        token = journal.server_token
    unfinished = is_unfinished(facts)
    if args.json:
        logs = [_record(log) for log in facts]
        return json.dumps({"source": str(source), "server_token": token, "unfinished": unfinished, "logs": logs})
    rows = [("LOG", "LAST", "SNAPSHOT", "RECORDS", "BYTES", "EPOCH", "OWNER"), *map(_row, facts)]
    note = "\nAn unfinished copy: there is no graph. Repeat lowwater journal copy, or remove it" if unfinished else ""
    return f"deployment {token} in {source}\n{table(rows)}{note}"


async def _present(source: Store) -> Store:
    """Return the store. Raises CopyRefused when it holds no journal: opening would make one."""
    with speaking_of(str(source)):
        if not await source.exists():
            raise CopyRefused(f"there is no journal in {source}: look at the name, see lowwater journal show --help")
    return source


@asynccontextmanager
async def _opened(store: Store, *, served: bool, server_token: str = "") -> AsyncIterator[Journal]:
    """Open the journal of a store, and close it again.

    Unless ``served``, raises CopyRefused while shards serve it.
    """
    with speaking_of(str(store)):
        if not served and (servers := await store.served_by()):
            raise CopyRefused(f"{store} is being served by {servers}")
        journal = store.journal(server_token=server_token)
        try:
            await journal.open()
        except BaseException:
            await journal.close()
            raise
    try:
        yield journal
    finally:
        with speaking_of(str(store)):
            await journal.close()


def _record(facts: LogFacts) -> dict[str, Any]:
    return {
        "log": facts.log,
        "last": facts.last,
        "snapshot": facts.snapshot,
        "records": facts.records,
        "bytes": facts.bytes,
        "epoch": facts.owner.epoch,
        "address": facts.owner.address,
    }


def _row(facts: LogFacts) -> tuple[str, ...]:
    graph = facts.log == GRAPH
    numbers = map(str, (facts.last, facts.snapshot, facts.records, facts.bytes))
    owner = ("all", "") if graph else (str(facts.owner.epoch), facts.owner.address or "-")
    return ("(the graph)" if graph else facts.log, *numbers, *owner)


def _progress(monotonic: Callable[[], float]) -> Callable[[Progress], None]:
    """Return a function that prints a line of progress from time to time."""
    printed_at = monotonic()

    def progress(so_far: Progress) -> None:
        nonlocal printed_at
        if monotonic() - printed_at >= PROGRESS_SECONDS:
            printed_at = monotonic()
            sizes = f"{_size(so_far.bytes)} of {_size(so_far.all_bytes)}"
            _say(f"lowwater journal copy: {so_far.logs} of {so_far.all_logs} logs, {sizes}")

    return progress


def _size(count: int) -> str:
    """Return a number of bytes for people.

    >>> _size(1_260_000), _size(312)
    ('1.3 MB', '0.3 kB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the answer to a command


def parse_place(text: str) -> Store:
    """Return the store that an argument names. Raises CopyRefused, which quotes no URL.

    >>> print(parse_place("redis://redis/0#orders"))
    redis://redis:6379/0#orders
    >>> print(parse_place("/var/lib/lowwater"))
    /var/lib/lowwater
    """
    fix = "put it into an environment variable, and name that: env:VARIABLE#NAME"
    try:
        refuse_password(text, "the URL of a store", fix)
    except ValueError as error:
        raise CopyRefused(str(error)) from None
    url, _, name = text.partition("#")
    if url.startswith("env:"):
        variable = url.removeprefix("env:")
        url = os.environ.get(variable, "")
        if not url:
            msg = f"env:{variable} names an environment variable, which is not set: put the URL of the store there"
            raise CopyRefused(msg)
    elif "://" not in text:
        return _folder(Path(text))
    try:
        return store_at(url, name or "default")
    except ValueError as error:
        raise CopyRefused(str(error)) from error


def _folder(path: Path) -> Folder:
    if path.is_file():
        raise CopyRefused(f"{path} is a file: name its folder, as for lowwater serve --data")
    return Folder(path)
