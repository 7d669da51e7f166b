"""``lowwater demo``: an authority of its own, and a small living pipeline to ask about.

Three shops sell. Two send their orders at once; paris uploads its orders forty minutes later. The
stage ``checked`` drops bad orders, and ``revenue`` adds up the rest by ten seconds of event time. A
window is closed when nothing of it can come any more, so it waits for paris, and ``why`` says that.

The workers use the client as any Python program does, so they are an example, too. They take turns
on one thread and hand orders over in memory; yours are processes with a topic or a folder between.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

import lowwater
from lowwater import Remarks, Watermark
from lowwater.cli.arguments import CommandParser, parse_duration
from lowwater_authority.embedded import EmbeddedAuthority

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN: Final = 0.25
"""Seconds between two turns of the workers."""

FIRST_TURN: Final = 0.02
"""Seconds between two turns until the first watermark, for which somebody waits."""

WINDOW: Final = timedelta(seconds=10)
"""Length of the windows of ``revenue``, and time between two uploads of paris."""

LATE: Final = timedelta(minutes=40)
"""Time after which paris uploads an order."""

SECOND: Final = timedelta(seconds=1)

START: Final = 30.0
"""Longest time until the first watermark, seconds."""

FAILED: Final = 2
"""Exit code of a demo that could not begin."""


class Order(NamedTuple):
    """One record."""

    shop: str
    at: datetime
    """Event time: when it was sold."""
    cents: int


class Shop:
    """A source. It sells once a second, and sends its orders ``delay`` later, each ``every``."""

    def __init__(self, lw: lowwater.Client, name: str, delay: timedelta, every: timedelta = SECOND) -> None:
        self.orders: deque[Order] = deque()
        self._name, self._delay, self._every = name, delay, every
        self._next = floor(datetime.now(UTC) - LATE, WINDOW)
        lw.register(name)
        self._lease = lw.worker(name, name=f"{name}-till").claim()

    def turn(self) -> None:
        """Hand over what has arrived, and then promise that nothing older will come."""
        frontier = floor(datetime.now(UTC) - self._delay, self._every)
        while self._next < frontier:
            self.orders.append(Order(self._name, self._next, 100 * (self._next.second % 7)))
            self._next += SECOND
        waits = f"its orders until {frontier + self._every:%H:%M:%S} UTC, sent {self._delay} after the sale"
        self._lease.advance(None, oldest=None, frontier=frontier, waiting_for=waits)


class Checked:
    """A stage that keeps nothing: it drops orders of nothing, and passes the others on."""

    def __init__(self, lw: lowwater.Client, shops: Sequence[Shop], names: Sequence[str]) -> None:
        self.orders: deque[Order] = deque()
        self._shops = shops
        lw.register("checked", inputs=names)
        self._worker = lw.worker("checked", name="checker")
        self._lease = self._worker.claim()

    def turn(self) -> None:
        """Take the snapshot, then all that is there, then report."""
        seen = self._worker.inputs()
        orders = [order for shop in self._shops for order in everything(shop.orders)]
        self.orders.extend(order for order in orders if order.cents)
        self._lease.advance(seen, oldest=None, finished=len(orders))


class Revenue:
    """A stage with windows: it adds up ten seconds, and closes them when all orders are here."""

    def __init__(self, lw: lowwater.Client, checked: Checked) -> None:
        self.low = Watermark.UNKNOWN
        """Every window that ends by then is closed."""
        self.closed = 0
        """Number of windows that were closed."""
        self.late = 0
        """Number of orders that came after their window was closed. An exact watermark has none."""
        self._checked = checked
        self._open: Counter[datetime] = Counter()
        """Sum in cents of each open window, by its start."""
        lw.register("revenue", inputs=["checked"], history_step=WINDOW)
        self._worker = lw.worker("revenue", name="accountant")
        self._lease = self._worker.claim()

    def turn(self) -> None:
        """Do as ``Checked`` does, and close each window that the snapshot has passed."""
        seen = self._worker.inputs()
        orders = everything(self._checked.orders)
        for order in orders:
            self.late += Watermark.of(order.at) < self.low
            self._open[floor(order.at, WINDOW)] += order.cents
        if seen.low.unknown:
            return
        start = floor(seen.low.datetime(), WINDOW)
        for closed in [window for window in self._open if window < start]:
            del self._open[closed]  # here a job writes the sum
            self.closed += 1
        self.low = Watermark.of(start)
        # The next order may be of the window that the watermark is in.
        by_design = Remarks(holdback_micros=WINDOW // timedelta(microseconds=1))
        self._lease.advance(seen, oldest=start, finished=len(orders), remarks=by_design)


def everything(orders: deque[Order]) -> list[Order]:
    """Take all orders that are there now."""
    return [orders.popleft() for _ in range(len(orders))]


def floor(at: datetime, step: timedelta) -> datetime:
    """Return the last multiple of a step that is not after a time."""
    return at - (at - datetime.fromtimestamp(0, UTC)) % step


def parser() -> CommandParser:
    """Return the arguments of ``lowwater demo``."""
    parse = CommandParser(
        prog="lowwater demo",
        description="Run an authority and a small living pipeline on this machine, without Spark, and say what to type: "
        "who is late, and why. Nothing of it is left when it ends.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""\
examples:
  lowwater demo
  lowwater demo --port 7420                  other commands need no --address then
  lowwater demo --seconds 60

berlin, tokyo and paris sell; each promises how far its orders are complete.
checked reads all three, and revenue adds up what checked passes on:

  berlin --+
  tokyo  --+-- checked ---- revenue
  paris  --+   (paris sends forty minutes late, on purpose)

The workers are a plain Python program over the client, to be read:
authority/src/lowwater_authority/commands/demo.py. It is not `make demo` of a
checkout, which replays real flights through three Spark jobs.
""",
    )
    parse.add_argument(
        "--port", type=int, default=0, metavar="PORT", help="for gRPC, on 127.0.0.1 (default: a free one)"
    )
    parse.add_argument(
        "--seconds", type=parse_duration, metavar="T", help="end by itself after so long (default: by Ctrl-C)"
    )
    return parse


class Stop:
    """The end that SIGINT or SIGTERM asks for: between two turns of the workers.

    Before the first turn, and at the second signal, it comes at once, as KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.asked = False
        """True when the first signal has come while the workers took turns."""
        self.turning = False
        """True when the workers take turns, which end soon and in good order."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._ask) for number in numbers}

    def _ask(self, _number: int, _frame: object) -> None:
        if self.asked or not self.turning:
            raise KeyboardInterrupt
        self.asked = True

    def restore(self) -> None:
        """Install the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo until it is told to stop. Returns the exit code."""
    args = parser().parse_args(argv)
    stop = Stop()
    try:
        authority = EmbeddedAuthority(None, port=args.port, page=find_spec("lowwater_page") is not None)
        try:
            _say(_begun(authority))
            with lowwater.connect(authority.address) as lw:
                revenue = run(lw, authority, stop, args.seconds)
        finally:
            authority.stop()
    except (RuntimeError, lowwater.LowwaterError) as error:
        hint = "\nLeave --port out to get a free one." if args.port else ""
        print(f"lowwater demo: {error}{hint}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return FAILED
    except KeyboardInterrupt:
        return 0
    finally:
        stop.restore()
    _say(f"\nlowwater demo: closed {revenue.closed} windows of 10 s; {revenue.late} orders came too late for theirs")
    return 0


def run(lw: lowwater.Client, authority: EmbeddedAuthority, stop: Stop, seconds: float | None) -> Revenue:
    """Let the workers take turns until the end is asked for."""
    names = ("berlin", "tokyo", "paris")
    delays = ((2 * SECOND, SECOND), (3 * SECOND, SECOND), (LATE, WINDOW))
    shops = [Shop(lw, name, *delay) for name, delay in zip(names, delays, strict=True)]
    checked = Checked(lw, shops, names)
    revenue = Revenue(lw, checked)
    workers: list[Shop | Checked | Revenue] = [*shops, checked, revenue]
    told, end = False, None
    stop.turning = True
    while not stop.asked and (end is None or time.monotonic() < end):
        if authority.ended:
            raise RuntimeError("its authority has ended by itself")
        for worker in workers:
            worker.turn()
        if not told and not revenue.low.unknown:
            lw.wait("revenue", until=revenue.low, timeout=START)
            _say(_to_type(authority, revenue.low.datetime()))
            told, end = True, None if seconds is None else time.monotonic() + seconds
        time.sleep(TURN if told else FIRST_TURN)
    return revenue


def _begun(authority: EmbeddedAuthority) -> str:
    """Return what to look at, for people."""
    page = authority.page_url or "none: lowwater-page is not installed"
    return f"""\
lowwater demo: three shops send orders, and paris is forty minutes late. Ctrl-C ends it.

the status page: {page}"""


def _to_type(authority: EmbeddedAuthority, low: datetime) -> str:
    """Return what to type, for people."""
    address = f"--address {authority.address}"
    return f"""\
to type in another terminal:
  lowwater status {address}
  lowwater why revenue {address}
  lowwater wait revenue --until {low + 2 * WINDOW:%Y-%m-%dT%H:%M:%SZ} {address}"""


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the answer to a command
