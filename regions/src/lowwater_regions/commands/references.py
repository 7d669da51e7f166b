"""``lowwater references``: the view of operators, and their decisions."""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from lowwater import Watermark, errors
from lowwater.cli.arguments import CommandParser, add_answer_within, add_command, add_tls_files
from lowwater.cli.failures import agreed, fail
from lowwater.cli.render import table, times, to_json
from lowwater.core.attempts import error_of_call
from lowwater.core.channels import open_channel
from lowwater.core.file_settings import FileSettings
from lowwater.core.text import duration
from lowwater.v1 import regions_pb2 as pb
from lowwater.v1 import regions_pb2_grpc
from lowwater_authority.files.secret import GLOBAL_TOKEN, token_settings
from lowwater_regions.config import BadConfig, read_config, registration

DEFAULT_GLOBAL: Final = "localhost:7430"

_LIST: Final = """\
examples:
  lowwater references list
  lowwater references list --json --global global:7430

A region that is SUSPECT has been silent for too long. Nothing moves by that.
"""

_SHOW: Final = """\
example:
  lowwater references show hourly:clicks

Three answers to "complete of what?": accepted is up to where all that any region
has accepted is included; published leaves out what was written off; what one
region has is among its replicas.
"""

_ADOPT: Final = """\
examples:
  lowwater references adopt hourly:clicks --to us
  lowwater references adopt hourly:clicks --to us --write-off --yes

For an owner that is lost; one that is heard of is moved instead. The next owner
gets a greater number, which fences the last one where the sink compares it. See
to it yourself where a sink cannot fence. What is published holds until you say
`arrived` or `write-off`.
"""

_MOVE: Final = """\
example:
  lowwater references move hourly:clicks --to us

It loses nothing: the owner stops behind a batch, the other has everything, the
owner lets go, the other takes over. `show` says how far it is.
"""

_CANCEL: Final = """\
example:
  lowwater references cancel-move hourly:clicks
"""

_WRITE_OFF: Final = """\
examples:
  lowwater references write-off hourly:clicks
  lowwater references write-off hourly:clicks --lost eu --yes

Nobody knows how many rows that is. What is published says so from then on. When
the lost region is back, keep its tail aside; or reset the computation, let it read
the tail, and say `arrived`.
"""

_ARRIVED: Final = """\
example:
  lowwater references arrived hourly:clicks

Say it when the lost region is back, and its mirror has come to the end of what
it had accepted. Rows that were written off count again only behind a reset of the
computation: say it when they were read.
"""

_AUTOMATIC: Final = """\
examples:
  lowwater references automatic hourly:clicks --on
  lowwater references automatic hourly:clicks --off

Only where every sink compares the number in the write. Even then it is done only
when the next region knows R and positions, and there was no adoption lately.
"""

_POLICY: Final = """\
examples:
  lowwater references policy hourly:clicks replicated
  lowwater references policy hourly:clicks local
"""

_FORGET: Final = """\
example:
  lowwater references forget hourly:clicks
"""

_REGISTER: Final = """\
example:
  lowwater references register region.toml

For a global authority with access rules: there the token of one region makes no
reference that other regions may own. Repeating it is harmless.
"""

_RECOVER: Final = """\
examples:
  lowwater references recover --regions eu,us
  lowwater references recover --regions us --fenced eu --old-token 6f2c...

After a loss of the global store, or when it was put back to an older copy. All
regions enrol anew, and numbers go on above the greatest. A region that is absent
may have a greater one: first see to it that none of its numbers counts at any
sink, then name it with --fenced. --old-token is what `show` of a region's agent
(its --listen) has as "store", when this store is a new one.
"""


def parser() -> CommandParser:
    """Return the arguments of ``lowwater references``."""
    top = CommandParser(
        prog="lowwater references", description="Which region makes what: ask the global authority, and decide."
    )
    commands = top.add_subparsers(dest="command", metavar="ACTION", required=True)

    def action(name: str, what: str, epilog: str, *, named: bool = True, asks: bool = False) -> CommandParser:
        command = add_command(commands, name, what, epilog)
        if named:
            command.add_argument("reference", metavar="REFERENCE", help="its name, COMPUTATION:INPUT+INPUT")
        if asks:
            command.add_argument("--yes", action="store_true", help="do not ask")
        command.add_argument("--json", action="store_true", help="answer in JSON, for programs")
        server = command.add_argument_group("the global authority")
        server.add_argument(
            "--global",
            dest="address",
            metavar="HOST:PORT",
            default=os.environ.get("LOWWATER_GLOBAL", DEFAULT_GLOBAL),
            help=f"where it listens (default: LOWWATER_GLOBAL or {DEFAULT_GLOBAL})",
        )
        add_answer_within(server)
        add_tls_files(server, variables=False)
        return command

    action("list", "all references: who owns them, and how far they are published", _LIST, named=False)
    action("show", "one reference, with all that is known and was decided", _SHOW)
    adopt = action("adopt", "give a reference to another region, because its owner is lost", _ADOPT, asks=True)
    adopt.add_argument("--to", required=True, metavar="REGION", help="the next owner")
    adopt.add_argument("--write-off", action="store_true", help="and give up what only the lost region has")
    move = action("move", "begin to move a reference to another region; nothing is lost", _MOVE)
    move.add_argument("--to", required=True, metavar="REGION", help="the next owner")
    action("cancel-move", "take a move back, before the owner has let go", _CANCEL)
    write_off = action("write-off", "give up the rows that only a lost region has", _WRITE_OFF, asks=True)
    arrived = action("arrived", "say that the rows of a lost region are all here", _ARRIVED)
    for command in (write_off, arrived):
        command.add_argument("--lost", default="", metavar="REGION", help="which lost region (default: all)")
    automatic = action("automatic", "say whether it may be adopted without an operator", _AUTOMATIC)
    which = automatic.add_mutually_exclusive_group(required=True)
    which.add_argument("--on", dest="on", action="store_true", help="it may")
    which.add_argument("--off", dest="on", action="store_false", help="it may not")
    policy = action("policy", "say whether min(L, R) is published, or L", _POLICY)
    policy.add_argument("policy", choices=("replicated", "local"), help="replicated: what survives a loss; local: L")
    action("forget", "take a reference out, of which nobody makes anything any more", _FORGET, asks=True)
    register = action("register", "make the references of a region's file known", _REGISTER, named=False)
    register.add_argument("file", type=Path, metavar="FILE", help="as `lowwater region --config` takes it")
    recover = action("recover", "begin anew after a loss of the global store", _RECOVER, named=False, asks=True)
    recover.add_argument("--regions", required=True, metavar="REGION,...", help="those that will enrol")
    recover.add_argument(
        "--fenced", default="", metavar="REGION,...", help="absent ones, whose numbers count at no sink any more"
    )
    recover.add_argument(
        "--old-token", default="", metavar="TOKEN", help="of the store that was lost (default: this one's)"
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parser().parse_args(argv)
    try:
        warning = _WARNINGS.get(args.command)
        if warning is not None and not args.yes and not agreed(warning, args):
            return 1
        print(_run(args))  # noqa: T201 - the answer to a command
    except (errors.LowwaterError, BadConfig, OSError) as error:
        return fail(f"references {args.command}", error, as_json=args.json)
    return 0


def _run(args: argparse.Namespace) -> str:
    with _Global(args) as center:
        if args.command in ("list", "show"):
            return _tell(args, center.list(args.reference if args.command == "show" else ""))
        if args.command == "register":
            for config in read_config(args.file, None):
                center.register(registration(config))
            return _tell(args, center.list(""))
        if args.command == "recover":
            token = center.recover(
                pb.RecoverRequest(recovers=args.old_token, regions=_names(args.regions), fenced=_names(args.fenced))
            )
            text = f"the store is {token} now; it serves when {args.regions} have enrolled"
            return to_json({"store_token": token}) if args.json else text
        if args.command == "adopt" and args.write_off:
            return _tell(args, adopt_and_write_off(center, args))
        return _tell(
            args,
            center.decide(_DECISIONS[args.command](args), args, getattr(args, "to", getattr(args, "lost", ""))),
        )


def adopt_and_write_off(center: _Global, args: argparse.Namespace) -> pb.ListReferencesResponse:
    """Adopt, and give up the rows that only the last owner has.

    Rows of regions that were lost earlier stay on hold. A repeat finishes what the first try began.
    """
    answer = center.list(args.reference)
    [before] = answer.references
    if before.owner == args.to and len(before.holds_for) == 1:
        lost = before.holds_for[0]
    else:
        lost = before.owner
        answer = center.decide(pb.DECISION_ADOPT, args, args.to)
    holds = list(answer.references[0].holds_for)
    if lost in holds and (lost or len(holds) == 1):
        answer = center.decide(pb.DECISION_WRITE_OFF, args, lost)
    return answer


_WARNINGS: Final = {
    "adopt": "The last owner is fenced only where sinks compare the number.",
    "write-off": "The rows are given up for good; nobody knows how many.",
    "forget": "The reference is taken out for all regions.",
    "recover": "All regions enrol anew, and get new numbers.",
}

_DECISIONS: Final[dict[str, Any]] = {
    "adopt": lambda _: pb.DECISION_ADOPT,
    "move": lambda _: pb.DECISION_MOVE,
    "cancel-move": lambda _: pb.DECISION_CANCEL_MOVE,
    "write-off": lambda _: pb.DECISION_WRITE_OFF,
    "arrived": lambda _: pb.DECISION_ARRIVED,
    "automatic": lambda args: pb.DECISION_ALLOW_AUTOMATIC if args.on else pb.DECISION_FORBID_AUTOMATIC,
    "policy": lambda args: pb.DECISION_REPLICATED if args.policy == "replicated" else pb.DECISION_LOCAL,
    "forget": lambda _: pb.DECISION_FORGET,
}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


class _Global:
    """A connection to the global authority, for the time of one command."""

    def __init__(self, args: argparse.Namespace) -> None:
        ca, certificate, key = (str(path or "") for path in (args.ca, args.cert, args.key))
        settings = FileSettings(
            args.address, ca=ca, certificate=certificate, key=key, **token_settings(GLOBAL_TOKEN, os.environ)
        ).read()
        [self._address] = settings.addresses
        self._channel = open_channel(settings, self._address)
        self._stub = regions_pb2_grpc.RegionServiceStub(self._channel)
        self._with = {"timeout": args.answer_within, "metadata": settings.metadata}

    def __enter__(self) -> _Global:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def _ask(self, method: Any, request: Any) -> Any:
        try:
            return method(request, **self._with)
        except grpc.RpcError as failure:
            error = error_of_call(failure, self._address)
            if isinstance(error, errors.Unavailable) and "grpc_status" in error.metadata:
                msg = f"no global authority answers at {self._address}: is `lowwater global` running there? Name another with --global"
                raise errors.Unavailable(msg, metadata=error.metadata) from None
            raise error from None

    def list(self, reference: str) -> pb.ListReferencesResponse:
        answer: pb.ListReferencesResponse
        answer = self._ask(self._stub.ListReferences, pb.ListReferencesRequest(reference=reference))
        return answer

    def decide(
        self, decision: pb.Decision.ValueType, args: argparse.Namespace, region: str
    ) -> pb.ListReferencesResponse:
        before = self.list(args.reference)
        request = pb.DecideRequest(
            reference=args.reference,
            decision=decision,
            region=region,
            who=getpass.getuser(),
            store_token=before.store_token,
            number=before.references[0].number,
            decision_number=before.references[0].decision_number,
        )
        answer: pb.ListReferencesResponse = self._ask(self._stub.Decide, request)
        return answer

    def register(self, request: pb.RegisterReferenceRequest) -> None:
        self._ask(self._stub.RegisterReference, request)

    def recover(self, request: pb.RecoverRequest) -> str:
        request.store_token = self.list("").store_token
        answer: pb.RecoverResponse = self._ask(self._stub.Recover, request)
        return answer.store_token


def _tell(args: argparse.Namespace, answer: pb.ListReferencesResponse) -> str:
    if args.json:
        record = {
            "store_token": answer.store_token,
            "state": answer.state,
            "references": [_record(view) for view in answer.references],
        }
        return to_json(record)
    lines = [] if answer.state == "serving" else [f"the global authority is {answer.state}: {answer.reason}"]
    if args.command == "show":
        return "\n".join([*lines, *map(_shown, answer.references)])
    rows = [("REFERENCE", "OWNER", "NUMBER", "PUBLISHED", "L", "R", "")]
    for view in answer.references:
        low, replicated, published = map(Watermark, (view.low_micros, view.replicated_micros, view.published_micros))
        rows.append(
            (
                view.name,
                view.owner or "(nobody)",
                f"{view.number}",
                str(published),
                str(low),
                str(replicated),
                _remarks(view),
            )
        )
    none = "there are no references: a `lowwater region` registers those of its file"
    return "\n".join([*lines, table(rows) if answer.references else none])


def _remarks(view: pb.ReferenceView) -> str:
    remarks = [f"damaged: {view.damaged}"] if view.damaged else []
    if view.suspect and not view.damaged:
        remarks.append(f"SUSPECT, silent for {duration(view.silent_millis / 1000)}")
    if view.moving_to:
        remarks.append(f"moving to {view.moving_to}: {view.move_step}")
    if view.holds_for:
        remarks.append(f"holds for {', '.join(region or 'a lost region' for region in view.holds_for)}")
    if view.written_off:
        remarks.append("written off")
    return "; ".join(remarks)


def _shown(view: pb.ReferenceView) -> str:
    lines = [
        (view.name, _remarks(view)),
        ("complete of", view.complete_of),
        ("published", f"{Watermark(view.published_micros)}, incarnation {view.incarnation}, {view.policy}"),
        ("accepted", str(Watermark(view.accepted_micros))),
        ("owner", f"{view.owner or '(nobody)'}, by number {view.number}, one of {', '.join(view.regions)}"),
        ("L, R", f"{Watermark(view.low_micros)}, {Watermark(view.replicated_micros)}"),
        ("last batch", f"{view.batch} {view.digest}" if view.batch >= 0 else "not told"),
        ("automatic", "yes" if view.automatic else "no"),
    ]
    lines += [
        ("reads on at", f"{place.cluster} {place.topic}/{place.partition} {place.offset}") for place in view.positions
    ]
    lines += [
        (
            "sink",
            f"{sink.name}: {'fences' if sink.fences else 'cannot fence'}, has number {sink.fenced}{sink.cut and f', readers cut at {sink.cut}'}",
        )
        for sink in view.sinks
    ]
    lines += [
        (
            "replica",
            f"{replica.region}: R {Watermark(replica.replicated_micros)}, outputs {Watermark(replica.output_micros)}",
        )
        for replica in view.replicas
    ]
    lines += [("decided", decision) for decision in view.decisions]
    return table(lines)


_PLAIN: Final = (
    *("name", "computation", "policy", "owner", "number", "incarnation", "written_off", "complete_of", "suspect"),
    *("automatic", "moving_to", "move_step", "batch", "digest", "damaged"),
)
"""Fields of a reference that JSON has as the message has them."""


def _record(view: pb.ReferenceView) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(view, name) for name in _PLAIN}
    record |= {name: list(getattr(view, name)) for name in ("inputs", "regions", "holds_for", "decisions")}
    for name in ("published", "accepted", "low", "replicated"):
        record |= times(name, Watermark(getattr(view, f"{name}_micros")))
    record["silent_seconds"] = view.silent_millis / 1000
    record["positions"] = [[place.cluster, place.topic, place.partition, place.offset] for place in view.positions]
    record["sinks"] = [
        {"name": sink.name, "fences": sink.fences, "fenced": sink.fenced, "cut": sink.cut} for sink in view.sinks
    ]
    return record
