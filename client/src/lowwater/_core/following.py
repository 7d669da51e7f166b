"""What those do who follow watermarks: wait for a time, look for changes, or fold several computations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lowwater import errors
from lowwater._core import checks
from lowwater._core.attempts import words_of
from lowwater._core.fold import Reading, fold_inputs
from lowwater._core.text import duration
from lowwater._core.watching import Subscription, WatchState
from lowwater._core.why import Why
from lowwater.views import Inputs, WatermarkView
from lowwater.watermark import EventTime, Watermark

__all__ = ["Changes", "Folding", "FoldChanges", "Waiting", "check_followed", "closed_reader"]


_LATELY = 5.0
"""Seconds without a word from the authority until a question to it is not worth its time; a healthy one is heard every second or so."""


class Waiting:
    """One wait for a computation to come to a time, within one life of it. Raises InvalidArgument for a bad timeout.

    ``registered``: one that is not registered is an error, instead of one that may be at any time.
    """

    def __init__(self, name: str, until: EventTime, timeout: float | None, *, registered: bool = False) -> None:
        self.name = name
        self._target = Watermark.of(until)
        if timeout is not None:
            checks.seconds("timeout", timeout)
        self._timeout = timeout
        self._registered = checks.flag("registered", registered)
        self._life = 0

    def reached(self, known: WatchState, subscription: Subscription) -> bool:
        """Whether it is there.

        Raises IncarnationChanged when it was reset or dropped meanwhile; UnknownComputation when it is not registered and has to be; and as long as
        nothing was heard, why that is not allowed.
        """
        # What was heard late may be of a life that ended since; the newest stands right behind it.
        if not subscription.confirmed:
            _check_allowed(known, [self.name])
            return False
        if known.holding([self.name]):
            return False
        view = known.ratchet.get(self.name)
        if view.registered:
            self._life = self._life or view.incarnation
        elif self._life:
            msg = (
                f"{self.name} was dropped while it was waited for: its life {self._life} ended, and nobody reports for it any more. Wait "
                "anew when it is registered again."
            )
            metadata = {"computation": self.name, "waited_for": str(self._life), "incarnation": "0"}
            raise errors.IncarnationChanged(msg, metadata=metadata)
        elif self._registered:
            msg = f"there is no computation {self.name!r}; check the spelling and the namespace"
            raise errors.UnknownComputation(msg, metadata={"computation": self.name})
        if view.registered and view.incarnation != self._life:
            msg = f"{self.name} was reset while it was waited for: life {self._life} ended, {view.incarnation} began. Wait anew."
            metadata = {
                "computation": self.name,
                "waited_for": str(self._life),
                "incarnation": str(view.incarnation),
            }
            raise errors.IncarnationChanged(msg, metadata=metadata)
        return view.registered and view.low >= self._target

    def answers(self, known: WatchState) -> bool:
        """Whether the authority was heard a moment ago, so that it will say soon who holds it."""
        return known.stale_for([self.name]) <= _LATELY and self.name not in known.unserved

    def too_late(self, known: WatchState, why: Why | None) -> errors.Timeout:
        """Return the error of not being there in time; it says who holds it, unless nobody could tell."""
        view = known.ratchet.get(self.name)
        stale = known.stale_for([self.name])
        if stale == float("inf"):
            failed = "" if known.last_error is None else f": {words_of(known.last_error)}"
            where, fix = (
                f"the authority was never heard of{failed}",
                "Check the address, or start `lowwater serve` there.",
            )
        else:
            stands = why.sentence.rstrip(".") if why is not None else f"it is {view.low}"
            where = stands if view.registered else "it is not registered"
            where += f"; the authority was last heard {duration(stale)} ago"
            fix = f"Ask why({self.name!r})." if view.registered else "Start what registers it, or check the spelling."
        if self.name in known.unserved:
            where += "; no shard serves it just now"
        end = "" if where.endswith((".", "?")) else "."
        msg = f"{self.name} did not reach {self._target} within {self._timeout:g} s: {where}{end} {fix}"
        metadata = {
            "computation": self.name,
            "until": str(self._target),
            "low": str(view.low),
            "stale_for": f"{stale:g}",
            "fix": fix,
        } | ({} if why is None else {"guilty": why.guilty.computation})
        return errors.Timeout(msg, metadata=metadata)


class Changes:
    """One iteration over the changes of some computations, or of all.

    Conflated: what is noted is that a computation changed, and its newest value is looked up when it is shown. O(names) a change.
    One of which there is no fresh news, since no shard serves it, is shown when there is; the others do not wait for it.
    """

    def __init__(self, followed: Sequence[str]) -> None:
        self._followed = frozenset(followed)
        self._version = 0
        self._changed: dict[str, None] = {}
        self._unheard: Collection[str] = ()

    def come(self, known: WatchState, subscription: Subscription) -> bool:
        """Whether there is anything to show. Raises, as long as nothing was heard, why that is not allowed."""
        if not subscription.confirmed and not self._version:
            _check_allowed(known, self._followed)
        if subscription.unheard is None or known.holding(subscription.names):
            return False
        self._unheard = subscription.unheard
        for view in known.ratchet.changed_since(self._version) if known.ratchet.version > self._version else ():
            if not self._followed or view.computation in self._followed:
                self._changed.setdefault(view.computation)
        self._version = known.ratchet.version
        return any(name not in self._unheard for name in self._changed)

    def take(self, known: WatchState) -> WatermarkView:
        """Return the newest of the computation that has waited longest, after :meth:`come`."""
        name = next(name for name in self._changed if name not in self._unheard)
        del self._changed[name]
        return known.ratchet.get(name)


class Folding:
    """The minimum over some computations, as (name asked for -> full name), as far as a reader may know it."""

    def __init__(self, names: Mapping[str, str], reading: Reading | None) -> None:
        self._names = dict(names)
        self._reading = reading

    @property
    def followed(self) -> tuple[str, ...]:
        """The full names."""
        return tuple(self._names.values())

    @staticmethod
    def come(known: WatchState, subscription: Subscription) -> bool:
        """Whether a first read has something to return: something is known, and nothing newer is about to come."""
        return subscription.confirmed and not known.holding(subscription.names)

    def fold(self, known: WatchState, subscription: Subscription) -> Inputs:
        """Return the minimum as it is known now."""
        # What somebody else in this process heard before this reader may be of a life that has ended since.
        confirmed = subscription.confirmed
        views = {
            asked: known.ratchet.get(name) if confirmed else WatermarkView(name) for asked, name in self._names.items()
        }
        stale_for = known.stale_for(self.followed) if confirmed else float("inf")
        return fold_inputs(tuple(self._names), views, self._reading, stale_for)


class FoldChanges:
    """One iteration over the changes of a fold. Conflated."""

    def __init__(self, folding: Folding) -> None:
        self.newest: Inputs | None = None
        """The fold to show, after :meth:`come`."""
        self._folding = folding
        self._looked_at: tuple[WatchState, int] | None = None

    def come(self, known: WatchState, subscription: Subscription) -> bool:
        """Whether there is a fold to show that shows something else than the last one did."""
        if self._looked_at == (known, known.ratchet.version) or not Folding.come(known, subscription):
            return False
        self._looked_at = known, known.ratchet.version
        new = self._folding.fold(known, subscription)
        if _same(self.newest, new):
            return False
        self.newest = new
        return True


def _check_allowed(known: WatchState, names: Collection[str]) -> None:
    """Raise what the authority refuses the caller for, if it does."""
    denied = known.denied(names)
    if denied is not None:
        raise denied


def check_followed(names: Sequence[str]) -> None:
    """Raise InvalidArgument unless at least one computation is named."""
    if not names:
        msg = "name at least one computation"
        raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": 'inputs("flights")'})


def closed_reader() -> errors.Closed:
    """Return the error of using a reader after its end."""
    return errors.Closed("the reader is closed; lw.inputs(...) makes a new one")


def _same(old: Inputs | None, new: Inputs) -> bool:
    """Whether two folds show the same, but for their age."""
    return old is not None and (old.low, old.heuristic, old.held_by, old.incarnations) == (
        new.low,
        new.heuristic,
        new.held_by,
        new.incarnations,
    )
