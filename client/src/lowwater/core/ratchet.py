"""What one process has seen of the published watermarks, and its refusal to see less again."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from dataclasses import replace

from lowwater.errors import ServerTokenMismatch, StaleEpoch
from lowwater.views import LatenessBudget, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["Ratchet"]


class _Seen:
    """What was seen of one computation."""

    __slots__ = ("heard_at", "version", "view")

    def __init__(self, view: WatermarkView, version: int) -> None:
        self.view: WatermarkView = view
        self.version: int = version
        """The ratchet's, when the view changed last."""
        self.heard_at: float = float("-inf")
        """When the view was confirmed last by a stream that does not tell of it any more."""


class Ratchet:
    """The newest watermarks by name, ordered by (incarnation, value).

    The authority promises that published values never go down within an incarnation, as long as its
    store keeps what it acknowledged. The ratchet holds the promise within this process even when
    the store does not. All operations are O(shares).
    """

    __slots__ = ("_seen", "held_back", "server_token", "version")

    def __init__(self, server_token: str = "") -> None:
        self.server_token: str = server_token
        self.version: int = 0
        """Grows with every change of any view."""
        self.held_back: int = 0
        """How often a value lower than one seen before came and was not shown."""
        self._seen: dict[str, _Seen] = {}

    def check_token(self, server_token: str) -> None:
        """Accept the first deployment seen, or the one asked for, and no other.

        Raises ServerTokenMismatch.
        """
        if not self.server_token:
            self.server_token = server_token
        elif server_token != self.server_token:
            msg = (
                f"this client belongs to the deployment {self.server_token}, but {server_token or 'a server without a token'} "
                "answered. Check the address; if the deployment was set up anew, with an empty journal, start this process anew."
            )
            raise ServerTokenMismatch(msg, metadata={"expected": self.server_token, "server_token": server_token})

    def admit(self, view: WatermarkView) -> bool:
        """Take over what is new in a view; returns whether anything is.

        Raises StaleEpoch and takes nothing over.
        """
        if view.computation not in self._seen:
            return self._store(view)
        known = self._seen[view.computation].view
        if not view.registered:
            # Values of a name that was registered once stay: a promise is not taken back by
            # forgetting it. Only a drop ends its incarnation.
            if view.incarnation < known.incarnation:
                return False
            return self._store(replace(view, epoch=max(view.epoch, known.epoch)))
        if view.epoch < known.epoch:
            msg = (
                f"a server answered for {view.computation} with the ownership number {view.epoch}, but {known.epoch} was seen "
                "already: that server has been replaced and does not know it yet. Its answer was not used."
            )
            metadata = {"computation": view.computation, "epoch": str(view.epoch), "seen": str(known.epoch)}
            raise StaleEpoch(msg, metadata=metadata)
        if view.incarnation < known.incarnation or (view.incarnation == known.incarnation and not known.registered):
            self.held_back += 1
            return False
        if view.incarnation == known.incarnation:
            view = self._raised(known, view)
        return self._store(view)

    def begin(self, name: str, incarnation: int) -> bool:
        """Take over that a new incarnation of a computation has begun, in which nothing is known yet; returns whether that is new."""
        known = self.get(name)
        if incarnation <= known.incarnation:
            return False
        shares = tuple((share, Watermark.UNKNOWN) for share, _ in known.shares)
        return self._store(
            WatermarkView(
                name,
                registered=True,
                incarnation=incarnation,
                epoch=known.epoch,
                shares=shares,
                budgets=tuple(LatenessBudget(each.share, Watermark.UNKNOWN, 0, 0, 0, 0.0) for each in known.budgets),
                ranges=known.ranges,
                inputs=known.inputs,
                promise=known.promise,
            )
        )

    def _raised(self, known: WatermarkView, view: WatermarkView) -> WatermarkView:
        """Return the view with nothing below what was seen in the same incarnation."""
        if view.low < known.low:
            self.held_back += 1
            view = replace(view, low=known.low, since_micros=known.since_micros)
        shares = dict(known.shares)
        if any(watermark < shares.get(share, Watermark.UNKNOWN) for share, watermark in view.shares):
            self.held_back += 1
            raised = ((share, max(watermark, shares.get(share, watermark))) for share, watermark in view.shares)
            view = replace(view, shares=tuple(raised))
        budgets = known.budget
        if any(each.watermark < budgets[each.share].watermark for each in view.budgets if each.share in budgets):
            self.held_back += 1
            # All that was seen with the greater value, so that its counts are of one time.
            kept = (
                budgets[each.share]
                if each.share in budgets and each.watermark < budgets[each.share].watermark
                else each
                for each in view.budgets
            )
            view = replace(view, budgets=tuple(kept))
        return view

    def _store(self, view: WatermarkView) -> bool:
        seen = self._seen.get(view.computation)
        if seen is not None and seen.view == view:
            return False
        self.version += 1
        if seen is None:
            self._seen[view.computation] = _Seen(view, self.version)
        else:
            seen.view, seen.version = view, self.version
        return True

    @property
    def names(self) -> KeysView[str]:
        """Of what something was seen."""
        return self._seen.keys()

    def heard(self, name: str, at: float) -> None:
        """Note when what is known of a computation was confirmed last, by a stream that will not tell of it again."""
        seen = self._seen.get(name)
        if seen is not None:
            seen.heard_at = at

    def heard_at(self, name: str) -> float:
        """Return what was noted of that; minus infinity when nothing was."""
        seen = self._seen.get(name)
        return float("-inf") if seen is None else seen.heard_at

    def forget(self, name: str) -> None:
        """Forget a name that was never registered, of which nothing can go back.

        Of what was registered the authority bounds the number.
        """
        seen = self._seen.get(name)
        if seen is not None and not seen.view.registered and not seen.view.incarnation:
            del self._seen[name]

    def get(self, name: str) -> WatermarkView:
        """Return what was seen of a computation, "not registered" when nothing was."""
        seen = self._seen.get(name)
        return WatermarkView(name) if seen is None else seen.view

    def version_of(self, names: Iterable[str]) -> int:
        """Return the version that the last change of any of the names made; 0 when nothing was seen of them. O(names)."""
        return max((self._seen[name].version for name in names if name in self._seen), default=0)

    def changed_since(self, version: int) -> list[WatermarkView]:
        """Return the views that changed after a version. O(names seen)."""
        return [seen.view for seen in self._seen.values() if seen.version > version]
