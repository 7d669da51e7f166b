"""Tells a target of each complete interval, in order: by a marker file or a webhook.

The steps for one interval: it closes; the target takes it; the cursor moves; a line is printed. The
cursor is written durably after the target has taken the interval and before the next one begins. So
no interval is left out. If the publisher is killed between the target and the cursor, the interval
is told twice: the marker has the same content again, and the webhook the same id.
"""

from __future__ import annotations

import argparse
import fcntl
import hmac
import http.client
import json
import os
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from lowwater import errors
from lowwater._sync.client import Client
from lowwater.cli.failures import fail, say
from lowwater.cli.render import times, to_json
from lowwater.core.checks import other_incarnation
from lowwater.core.durable import sync_folder, write_durably
from lowwater.core.intervals import Closings, Interval, first_start
from lowwater.core.settings import is_loopback
from lowwater.core.text import duration
from lowwater.watermark import Watermark

__all__ = ["Cursor", "Marker", "Target", "Webhook", "event_of", "publish", "target_of"]

_MICROSECOND: Final = timedelta(microseconds=1)

_FIRST: Final = 0.2
"""Upper bound of the first pause after a failure, in seconds. The bound doubles each time."""

_LONGEST: Final = 60.0
"""Upper bound of the pauses, in seconds."""

_ANSWER: Final = 30.0
"""Time-out of a webhook, in seconds."""

SIGNATURE: Final = "X-Lowwater-Signature"
"""Header with the HMAC-SHA256 of the body, as ``sha256=HEX``, where there is a key."""

_ANEW: Final = "name another --cursor, with a --from at the first interval of the new incarnation to tell"

_FINER: Final = (("H", 86_400), ("M", 3_600), ("S", 60))
"""Letters that a path needs besides the day, unless intervals are multiples of these seconds."""


class NotTaken(Exception):
    """A target did not take an interval; another attempt may help."""


class Target(Protocol):
    """Something that is told of intervals."""

    def take(self, event: dict[str, Any], interval: Interval) -> str:
        """Take an interval, for the first time or again; what is written is durable at the return.

        Returns the name of the receiver, for people. Raises NotTaken.
        """
        ...


class Marker:
    """Writes a file for each interval, such as ``_SUCCESS`` in the folder of its partition.

    The file is never there in part.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._durable: frozenset[Path] = frozenset()
        """Folders of the last file; all of them are durable."""

    def path(self, interval: Interval) -> Path:
        """Return the path of the file of an interval."""
        return Path(interval.start.datetime().strftime(self._pattern))

    def take(self, event: dict[str, Any], interval: Interval) -> str:
        """See Target."""
        path = self.path(interval)
        try:
            self._durable = make_folders(path.parent, self._durable)
            write_durably(path, f"{to_json(event)}\n")
        except OSError as error:
            raise NotTaken(f"{path} cannot be written: {error.strerror or error}") from None
        return str(path)


class Webhook:
    """Posts each interval to a URL, as a CloudEvent; an answer of 2xx means that it was taken."""

    def __init__(self, url: str, token: str, key: str) -> None:
        self._url = url
        self._token = token
        self._key = key
        """Key of the signature (HMAC-SHA256) in each POST; empty: POSTs are not signed."""
        parts = urlsplit(url)
        self._host = f"{parts.scheme}://{parts.netloc}"
        """URL for messages, without the path, which may be a secret."""
        # A redirected POST becomes a GET, and the answer to a GET proves nothing.
        self._opener = urllib.request.build_opener(_NoRedirects)

    def take(self, event: dict[str, Any], interval: Interval) -> str:
        """See Target."""
        headers = {"Content-Type": "application/cloudevents+json", "User-Agent": "lowwater-publish"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = to_json(event).encode()
        if self._key:
            headers[SIGNATURE] = f"sha256={hmac.digest(self._key.encode(), body, 'sha256').hex()}"
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=_ANSWER) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            error.close()
            status = error.code
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise NotTaken(f"{self._host} does not answer: {reason}") from None
        except http.client.HTTPException as error:
            # The error quotes bytes of the other side, so only its type is shown.
            raise NotTaken(f"{self._host} answers with something that is no HTTP ({type(error).__name__})") from None
        if not 200 <= status < 300:
            raise NotTaken(f"{self._host} answers with {status}, and not with 2xx")
        return self._host


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        """Follow no redirect."""


def target_of(text: str, every: timedelta, start: Watermark, token: str, key: str = "") -> Target:
    """Return the target that ``--to`` names.

    Warns if the network can read what goes to a webhook. Raises InvalidArgument.
    """
    if text.startswith(("http://", "https://")):
        if not (token.isascii() and token.isprintable()):
            raise _refused("token", "pass text of printable ASCII, without line breaks", "LOWWATER_PUBLISH_TOKEN")
        parts = urlsplit(_url(text))
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            words = "the network can read the token, and read and change each interval: use https"
            say("publish", f"http://{parts.netloc} is not encrypted; {words}")
        return Webhook(text, token, key)
    if not text.startswith("file:"):
        raise _refused(
            "to", "pass file:/PATH with %Y, %m, %d, %H in it, or https://..., here or in LOWWATER_PUBLISH_TO"
        )
    pattern = text.removeprefix("file:")
    pattern = pattern.removeprefix("//") if pattern.startswith("///") else pattern
    if not pattern.startswith("/"):
        raise _refused("to", "pass an absolute path after file:")
    _check_pattern(pattern, every, start)
    return Marker(pattern)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if not parts.hostname or port == 0 or not text.isascii() or not text.isprintable() or " " in text:
        raise _refused("to", "pass a URL with a host, like https://host/path")
    if "@" in parts.netloc:
        fix = "take it out, and pass a token in LOWWATER_PUBLISH_TOKEN"
        raise _refused("to", f"a password on the command line is shown to everybody by the list of processes; {fix}")
    return text


def _check_pattern(pattern: str, every: timedelta, start: Watermark) -> None:
    """Refuse a pattern by which two intervals would have one file.

    The start of the interval, in UTC, replaces the letters.
    """
    letters = {match[1] for match in re.finditer("%(.?)", pattern)} - {"%"}
    if unknown := sorted(letters - set("YmdjHMS")):
        fix = "use %Y, %m, %d, %j, %H, %M and %S, and %% for a percent sign"
        raise _refused("to", f"%{unknown[0]} is not allowed in a path; {fix}")
    if start.micros % 1_000_000 or every % timedelta(seconds=1):
        fix = "pass whole seconds, and such a --from"
        raise _refused("every", f"markers are for intervals that begin at whole seconds; {fix}")
    finer = [letter for letter, size in _FINER if every % timedelta(seconds=size)]
    needed = ["Y", *(["j"] if "j" in letters else ["m", "d"]), *finer]
    if missing := [f"%{letter}" for letter in needed if letter not in letters]:
        raise _refused("to", f"two intervals would have one file; put {' and '.join(missing)} into the path")


def _refused(field: str, problem: str, name: str = "") -> errors.InvalidArgument:
    """Return the error of an option or of the variable ``name``; the problem ends with the fix."""
    fix = problem.rpartition("; ")[2]
    return errors.InvalidArgument(f"{name or f'--{field}'}: {problem}", metadata={"field": field, "fix": fix})


@dataclass(frozen=True, slots=True)
class Cursor:
    """Progress of a publisher, as the file ``--cursor`` has it."""

    server_token: str
    computation: str
    incarnation: int
    every_micros: int
    from_micros: int
    """Start of the first interval."""
    next_micros: int
    """Start of the next interval; all before it were told."""
    format: int = 1

    @staticmethod
    def read(path: Path) -> Cursor | None:
        """Return the cursor of a file; None without a file. Raises InvalidArgument."""
        try:
            record = json.loads(path.read_text("utf-8"))
            if {key: type(value) for key, value in record.items()} == _SHAPE and record["format"] == 1:
                return Cursor(**record)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused("cursor", f"{path} cannot be read: {error.strerror}; name another file") from None
        except (ValueError, AttributeError):
            pass
        fix = "name another file, with a --from at the end of the last interval that was told"
        raise _refused("cursor", f"{path} is no cursor of this release; {fix}")

    def write(self, path: Path) -> None:
        """Replace the file by this cursor, durably. Raises InvalidArgument."""
        try:
            write_durably(path, f"{to_json(asdict(self))}\n")
        except OSError as error:
            fix = "make room, or name a file that this user may write"
            raise _refused("cursor", f"{path} cannot be written: {error.strerror}; {fix}") from None

    def check(self, current: Cursor) -> None:
        """Refuse a run whose computation, intervals, deployment or incarnation are others."""
        for words, stored, now in (
            (f"for {self.computation}", self.computation, current.computation),
            (f"--every {duration(self.every_micros / 1e6)}", self.every_micros, current.every_micros),
            (f"--from {Watermark(self.from_micros)}", self.from_micros, current.from_micros),
        ):
            if stored != now:
                raise _refused("cursor", f"this cursor was begun {words}; pass the same, or name another file")
        if self.server_token != current.server_token:
            msg = (
                f"the cursor belongs to the deployment {self.server_token}, and {current.server_token} answers; {_ANEW}"
            )
            raise errors.ServerTokenMismatch(msg, metadata={"fix": _ANEW})
        if self.incarnation != current.incarnation:
            raise self.ended(current.incarnation)

    def ended(self, incarnation: int) -> errors.IncarnationChanged:
        """Return the error for a computation that is in another incarnation; 0: it was dropped."""
        became = f"in incarnation {incarnation}" if incarnation else "dropped"
        msg = f"{self.computation} is {became}, and the cursor belongs to incarnation {self.incarnation}, whose intervals are computed anew; {_ANEW}"
        return other_incarnation(self.computation, self.incarnation, incarnation, msg, fix=_ANEW)


_SHAPE: Final = {field.name: {"str": str, "int": int}[str(field.type)] for field in fields(Cursor)}


def make_folders(folder: Path, durable: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """Make a folder and its missing parents durably; returns all of them. Raises OSError.

    ``durable`` are folders to skip. Others that exist are made durable too: if the process that
    made one was killed right after that, a crash of the machine could still lose it.
    """
    folders = frozenset([folder, *folder.parents])
    for path in sorted(folders - durable - {Path(folder.anchor)}, key=lambda path: len(path.parts)):
        if path.is_dir():
            with suppress(OSError):  # such as the folder of another user
                sync_folder(path.parent)
        else:
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)
    return folders


def event_of(interval: Interval, server_token: str) -> dict[str, Any]:
    """Return the CloudEvent of an interval: always the same for the same incarnation."""
    name = f"{server_token}/{interval.computation}/{interval.incarnation}/{interval.start}/{interval.end}"
    return {
        "specversion": "1.0",
        "type": "lowwater.interval.complete",
        "source": f"/lowwater/{server_token}",
        "id": name,
        "subject": interval.computation,
        "datacontenttype": "application/json",
        "data": {
            "computation": interval.computation,
            "incarnation": interval.incarnation,
            **times("from", interval.start),
            **times("to", interval.end),
        },
    }


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Hold the lock of a cursor, so that a second publisher cannot use it."""
    try:
        make_folders(path.absolute().parent)
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _refused(
            "cursor", f"{path} cannot be locked: {error.strerror}; name a file that this user may write"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fix = "stop that one, or name another file"
            raise _refused("cursor", f"another publisher uses {path}; {fix}") from None
        yield
    finally:
        os.close(lock)


def publish(lw: Client, args: argparse.Namespace) -> int:
    """Tell a target of each interval that closes."""
    every, until = timedelta(seconds=args.every), args.until
    start = Watermark.of(first_start(args.start, every, "--from"))
    if start.finished:
        raise _refused("from", "pass the event time at which the first interval begins")
    if not timedelta(seconds=1) <= every <= timedelta(days=366):
        raise _refused("every", "pass a length of 1s to 366d")
    if not until.finished and (until <= start or (until.micros - start.micros) % (every // _MICROSECOND)):
        raise _refused("until", f"pass the end of an interval, a multiple of {duration(args.every)} after --from")
    to = args.to or os.environ.get("LOWWATER_PUBLISH_TO", "")
    target = target_of(
        to, every, start, os.environ.get("LOWWATER_PUBLISH_TOKEN", ""), os.environ.get("LOWWATER_PUBLISH_KEY", "")
    )
    with _alone(args.cursor):
        (view,) = lw.get(args.name).values()
        if not view.registered:
            raise errors.UnknownComputation(view.computation, metadata={"computation": view.computation})
        Closings(view.computation, every, start).closed(
            view
        )  # refuses an estimated computation before the cursor is written
        cursor = Cursor(
            lw.server_token, view.computation, view.incarnation, every // _MICROSECOND, start.micros, start.micros
        )
        if (stored := Cursor.read(args.cursor)) is None:
            cursor.write(args.cursor)
        else:
            stored.check(cursor)
            cursor = stored
        publisher = _Publisher(cursor, args.cursor, target, once=args.once, as_json=args.json)
        at = Watermark(cursor.next_micros)
        if at >= until:
            return 0
        if args.once:
            closings = Closings(view.computation, every, at, incarnation=cursor.incarnation, until=until)
            if closings.asks(view):
                closings.tell(lw.history(view.computation, limit=1))
            return publisher.run(iter(lambda: closings.closed(view), None))
        try:
            intervals = lw.intervals(
                view.computation, every, at, incarnation=cursor.incarnation, until=until, progress=True
            )
            return publisher.run(intervals)
        except errors.IncarnationChanged as error:
            raise cursor.ended(int(error.metadata["incarnation"])) from None


class _Publisher:
    """Tells one target of the intervals of one cursor."""

    def __init__(self, cursor: Cursor, path: Path, target: Target, *, once: bool, as_json: bool) -> None:
        self._cursor = cursor
        self._path = path
        self._target = target
        self._once = once
        self._as_json = as_json

    def run(self, intervals: Iterable[Interval]) -> int:
        """Tell the target of each interval; returns the exit code.

        With ``once`` an interval that the target does not take at once is left for the next run.
        """
        for interval in intervals:
            event = event_of(interval, self._cursor.server_token)
            try:
                who = self._give(event, interval)
            except NotTaken as error:
                refused = errors.LowwaterError(
                    f"{error}; the next run tells it of {interval.start} again", reason="NOT_TAKEN"
                )
                return fail("publish", refused, as_json=self._as_json, code=1)
            self._cursor = replace(self._cursor, next_micros=interval.end.micros)
            self._cursor.write(self._path)
            data = event["data"]
            sentence = f"{data['from']} to {data['to']} is complete in {data['computation']}: told {who}"
            print(to_json({**data, "id": event["id"], "target": who}) if self._as_json else sentence, flush=True)
        return 0

    def _give(self, event: dict[str, Any], interval: Interval) -> str:
        pause, reason = _FIRST, ""
        while True:
            try:
                return self._target.take(event, interval)
            except NotTaken as error:
                if self._once:
                    raise
                if str(error) != reason:
                    reason = str(error)
                    say("publish", f"{reason}; it is told of {interval.start} again until it takes that")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST)
