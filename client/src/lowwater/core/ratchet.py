"""The newest watermarks that one process has seen, and its refusal to show lower ones later."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from dataclasses import replace

from lowwater.errors import ServerTokenMismatch, StaleEpoch
from lowwater.views import LatenessBudget, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["Ratchet"]


class _Entry:
    """One computation's newest view, and its age."""

    __slots__ = ("confirmed_at", "version", "view")

    def __init__(self, view: WatermarkView, version: int) -> None:
        self.view: WatermarkView = view
        self.version: int = version
        """Version of the ratchet at the view's last change."""
        self.confirmed_at: float = float("-inf")
        """Time of the view's last confirmation, by a stream that has stopped sending it."""


class Ratchet:
    """The newest watermarks by name, ordered by (incarnation, value).

    The authority promises that published values never go down within an incarnation, as long as its
    store keeps what it acknowledged. The ratchet keeps that promise within this process even when
    the store does not. All operations are O(shares).
    """

    __slots__ = ("_entries", "held_back", "server_token", "version")

    def __init__(self, server_token: str = "") -> None:
        self.server_token: str = server_token
        self.version: int = 0
        """Version that grows with every change of a view."""
        self.held_back: int = 0
        """Number of values that were lower than one seen before, and so were not shown."""
        self._entries: dict[str, _Entry] = {}

    def check_token(self, server_token: str) -> None:
        """Accept the configured or first deployment only. Raises ServerTokenMismatch."""
        if not self.server_token:
            self.server_token = server_token
        elif server_token != self.server_token:
            msg = (
                f"this client belongs to the deployment {self.server_token}, but {server_token or 'a server without a token'} "
                "answered. Check the address; if the deployment was set up again, with an empty journal, restart this process."
            )
            raise ServerTokenMismatch(msg, metadata={"expected": self.server_token, "server_token": server_token})

    def admit(self, view: WatermarkView) -> bool:
        """Store the news of a view; returns False when it has none. Raises StaleEpoch."""
        if view.computation not in self._entries:
            return self._store(view)
        newest = self._entries[view.computation].view
        if not view.registered:
            # A value once published stays: an authority that forgot the registration takes back no
            # promise. Only a drop ends its incarnation.
            if view.incarnation < newest.incarnation:
                return False
            return self._store(replace(view, epoch=max(view.epoch, newest.epoch)))
        if view.epoch < newest.epoch:
            msg = (
                f"a server answered for {view.computation} with the ownership number {view.epoch}, but {newest.epoch} was seen "
                "already: that server was replaced and has not noticed it yet. Its answer was not used."
            )
            metadata = {"computation": view.computation, "epoch": str(view.epoch), "seen": str(newest.epoch)}
            raise StaleEpoch(msg, metadata=metadata)
        if view.incarnation < newest.incarnation or (view.incarnation == newest.incarnation and not newest.registered):
            self.held_back += 1
            return False
        if view.incarnation == newest.incarnation:
            view = self._raised(newest, view)
        return self._store(view)

    def begin(self, name: str, incarnation: int) -> bool:
        """Begin a new incarnation, with all values unknown; returns False for an old one."""
        previous = self.get(name)
        if incarnation <= previous.incarnation:
            return False
        shares = tuple((share, Watermark.UNKNOWN) for share, _ in previous.shares)
        return self._store(
            WatermarkView(
                name,
                registered=True,
                incarnation=incarnation,
                epoch=previous.epoch,
                shares=shares,
                budgets=tuple(
                    LatenessBudget(budget.share, Watermark.UNKNOWN, 0, 0, 0, 0.0) for budget in previous.budgets
                ),
                ranges=previous.ranges,
                inputs=previous.inputs,
                promise=previous.promise,
            )
        )

    def _raised(self, newest: WatermarkView, view: WatermarkView) -> WatermarkView:
        """Return a view without any value below one seen in the same incarnation."""
        if view.low < newest.low:
            self.held_back += 1
            view = replace(view, low=newest.low, since_micros=newest.since_micros)
        shares = dict(newest.shares)
        if any(watermark < shares.get(share, Watermark.UNKNOWN) for share, watermark in view.shares):
            self.held_back += 1
            raised = ((share, max(watermark, shares.get(share, watermark))) for share, watermark in view.shares)
            view = replace(view, shares=tuple(raised))
        budgets = newest.budget
        if any(one.watermark < budgets[one.share].watermark for one in view.budgets if one.share in budgets):
            self.held_back += 1
            # The whole older budget is used, so that its counts belong to its watermark.
            raised_budgets = (
                budgets[one.share] if one.share in budgets and one.watermark < budgets[one.share].watermark else one
                for one in view.budgets
            )
            view = replace(view, budgets=tuple(raised_budgets))
        return view

    def _store(self, view: WatermarkView) -> bool:
        entry = self._entries.get(view.computation)
        if entry is not None and entry.view == view:
            return False
        self.version += 1
        if entry is None:
            self._entries[view.computation] = _Entry(view, self.version)
        else:
            entry.view, entry.version = view, self.version
        return True

    @property
    def names(self) -> KeysView[str]:
        """Names of all computations with a view."""
        return self._entries.keys()

    def note_confirmed(self, name: str, at: float) -> None:
        """Note the last confirmation of a view whose stream will not send it again."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.confirmed_at = at

    def confirmed_at(self, name: str) -> float:
        """Return that time; minus infinity for none."""
        entry = self._entries.get(name)
        return float("-inf") if entry is None else entry.confirmed_at

    def forget(self, name: str) -> None:
        """Forget a name that was never registered: it has no value that could go down.

        The authority bounds the number of all others.
        """
        entry = self._entries.get(name)
        if entry is not None and not entry.view.registered and not entry.view.incarnation:
            del self._entries[name]

    def get(self, name: str) -> WatermarkView:
        """Return the view of a computation; "not registered" when there is none."""
        entry = self._entries.get(name)
        return WatermarkView(name) if entry is None else entry.view

    def version_of(self, names: Iterable[str]) -> int:
        """Return the version at the last change of any of the names; 0 for none. O(names)."""
        return max((self._entries[name].version for name in names if name in self._entries), default=0)

    def changed_since(self, version: int) -> list[WatermarkView]:
        """Return the views that changed after a version. O(all names)."""
        return [entry.view for entry in self._entries.values() if entry.version > version]
