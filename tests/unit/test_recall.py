"""What the page recalls: each computation once, and none waits for another one's shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import lowwater
from lowwater import WatermarkView, errors
from lowwater_page import recall
from lowwater_page.board import Board
from lowwater_page.recall import Recall
from tests.kit.eventually import eventually
from tests.kit.times import HOUR


class Away:
    """What a client answers while the shard of some computations is away."""

    def __init__(self, *away: str) -> None:
        self.away = set(away)
        self.answered: list[str] = []

    def history(self, name: str, limit: int) -> list[Any]:
        if name in self.away:
            raise errors.Unavailable("no shard answers")
        self.answered.append(name)
        return [SimpleNamespace(through=lowwater.Watermark(HOUR), time_micros=2 * HOUR, incarnation=1)][:limit]


def test_a_shard_that_is_away_keeps_only_its_own_waiting(monkeypatch: Any) -> None:
    monkeypatch.setattr(recall, "AGAIN_SECONDS", 0.01)
    board, client = Board(), Away("a")
    for name in ("a", "b", "c"):
        board.admit(WatermarkView(name, registered=True, incarnation=1, low=lowwater.Watermark(HOUR)))
    board.sample(3 * HOUR)
    recalling = Recall(lambda: cast("lowwater.Client", client), board)
    recalling.want()
    try:
        eventually(lambda: client.answered == ["b", "c"])
        client.away.clear()
        eventually(lambda: client.answered == ["b", "c", "a"])
    finally:
        recalling.close()
