"""``python -m conformance client -- PROGRAM`` checks a client, ``python -m conformance authority --address HOST:PORT`` an authority."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence

import grpc

from conformance.authority_checks import CHECKS, Check, Peer, why
from conformance.client_scenarios import SCENARIOS, Scenario
from conformance.program import Broken, Program
from conformance.scripted import Deployment


def say(text: str) -> None:
    """Print a line for the person who runs it."""
    print(text, flush=True)


def check_client(command: Sequence[str], scenarios: Iterable[Scenario], tell: Callable[[str], None] = say) -> list[str]:
    """Run scenarios against a program; returns the names of those that it failed."""
    failed = []
    client: Program | None = None
    try:
        for scenario in scenarios:
            client = client or Program(command)
            with Deployment(scenario.shards) as world:
                problems = []
                try:
                    scenario.run(client, world)
                    client.do("close")
                except Broken as broken:
                    problems.append(str(broken))
                problems += world.broken
            if not problems:
                tell(f"pass {scenario.name}")
                continue
            failed.append(scenario.name)
            tell("\n     ".join([f"FAIL {scenario.name}: {scenario.expected}", *dict.fromkeys(problems)]))
            client.end()  # the next one begins anew
            client = None
    finally:
        if client is not None:
            client.end()
    return failed


def check_authority(channel: grpc.Channel, checks: Iterable[Check], tell: Callable[[str], None] = say) -> list[str]:
    """Run checks against an authority; returns the names of those that it failed."""
    failed = []
    for check in checks:
        peer = Peer(channel)
        try:
            check.run(peer)
        except (Broken, grpc.RpcError) as error:
            failed.append(check.name)
            problem = f"refused: {why(error)}" if isinstance(error, grpc.RpcError) else str(error)
            tell(f"FAIL {check.name}: {check.expected}\n     {problem}")
        else:
            tell(f"pass {check.name}")
        finally:
            peer.clean_up()
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if all passes, 1 if something fails."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    client = kinds.add_parser("client", help="check a client: a program that takes commands on its standard input")
    client.add_argument("program", nargs="*", help="the program and its arguments, behind --")
    authority = kinds.add_parser("authority", help="check an authority; what is registered for it is dropped again")
    authority.add_argument(
        "--address", default="localhost:7420", metavar="HOST:PORT", help="where it is (default: %(default)s)"
    )
    for kind in (client, authority):
        kind.add_argument("--only", action="append", metavar="NAME", help="only this one; may be given again")
        kind.add_argument("--list", action="store_true", help="say what there is, and what each expects")
    args = parser.parse_args(argv)
    available: Sequence[Scenario | Check] = SCENARIOS if args.kind == "client" else CHECKS
    if unknown := set(args.only or ()) - {case.name for case in available}:
        parser.error(f"--only {', '.join(sorted(unknown))}: there is no such name; --list has them all")
    chosen = [case for case in available if not args.only or case.name in args.only]
    if args.list:
        for case in chosen:
            say(f"{case.name}: {case.expected}")
        return 0
    if args.kind == "authority":
        with grpc.insecure_channel(args.address) as channel:
            failed = check_authority(channel, [case for case in chosen if isinstance(case, Check)])
    elif args.program:
        failed = check_client(args.program, [case for case in chosen if isinstance(case, Scenario)])
    else:
        parser.error("name the program to check, behind --")
    say(f"{len(chosen) - len(failed)} of {len(chosen)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
