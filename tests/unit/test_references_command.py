"""`lowwater references adopt --write-off` is two requests: it gives up no more than it was told to, and may be said again after half of it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from lowwater._pb.lowwater.v1 import regions_pb2 as pb
from lowwater_authority.commands.references import _adopt_and_write_off


class Center:
    """A global authority with one reference; ``holds`` is what an adoption leaves behind."""

    def __init__(self, owner: str, before: tuple[str, ...], holds: tuple[str, ...]) -> None:
        self.view = pb.ReferenceView(owner=owner, holds_for=before)
        self.holds = holds
        self.said: list[tuple[Any, str]] = []

    def list(self, _: str) -> pb.ListReferencesResponse:
        return pb.ListReferencesResponse(references=[self.view])

    def decide(self, decision: Any, _: Any, region: str) -> pb.ListReferencesResponse:
        self.said.append((decision, region))
        self.view = pb.ReferenceView(owner="us", holds_for=self.holds)
        return pb.ListReferencesResponse(references=[self.view])


ADOPT, WRITE_OFF = (pb.DECISION_ADOPT, "us"), pb.DECISION_WRITE_OFF


@pytest.mark.parametrize(
    ("center", "said"),
    [
        (Center("eu", (), ("eu",)), [ADOPT, (WRITE_OFF, "eu")]),
        (Center("eu", ("asia",), ("asia", "eu")), [ADOPT, (WRITE_OFF, "eu")]),  # not what asia has
        (Center("us", ("eu",), ("eu",)), [(WRITE_OFF, "eu")]),  # the rest of a command that was broken off
        (Center("eu", (), ()), [ADOPT]),  # of a local reference, or one that was released
        (Center("", (), ("",)), [ADOPT, (WRITE_OFF, "")]),
        (Center("", ("asia",), ("asia", "")), [ADOPT]),  # an empty name would mean both
    ],
)
def test_it_gives_up_what_the_last_owner_has(center: Center, said: list[tuple[Any, str]]) -> None:
    args = argparse.Namespace(reference="hourly:clicks", to="us")
    _adopt_and_write_off(center, args)  # type: ignore[arg-type]
    assert center.said == said
