"""The run facet ``lowwater_lowWatermark``; its schema is LowWatermarkRunFacet.json beside this file."""

from typing import Any, ClassVar, Final

import attr
from openlineage.client.facet_v2 import RunFacet

import lowwater

__all__ = ["NAME", "LowWatermarkRunFacet", "facet_of"]

NAME: Final = "lowwater_lowWatermark"
"""Under which a run has the facet."""

_HOLDERS: Final = 3
"""Key ranges that are named of each computation: events of lineage are to be small."""


@attr.define
class LowWatermarkRunFacet(RunFacet):
    """How far a computation was complete when this was asked."""

    computation: str
    deployment: str
    """The server token of the authority's deployment."""
    incarnation: int
    """Watermarks of two incarnations are never compared."""
    state: str
    """``unknown``, ``reached`` or ``finished``."""
    lowWatermark: str | None = None  # noqa: N815 - as OpenLineage spells
    """Every event time below it is complete; None unless the state is ``reached``."""
    estimated: bool = False
    """Whether nobody promises it."""
    interval: dict[str, Any] | None = None
    """The interval that the run read, whether that was complete, and what was missing of it."""

    _additional_skip_redact: ClassVar[list[str]] = ["computation", "deployment", "lowWatermark", "state"]

    @staticmethod
    def _get_schema() -> str:
        return "urn:lowwater:openlineage:1-0-0:LowWatermarkRunFacet.json"


def facet_of(
    lw: lowwater.Client,
    computation: str,
    start: lowwater.EventTime | None = None,
    end: lowwater.EventTime | None = None,
) -> LowWatermarkRunFacet:
    """Return the facet of a computation as it stands now; with both ends of an interval also what is missing of that.

    Raises UnknownComputation, and Unavailable when nobody can tell: decide whether the run is to go on without the facet.
    """
    interval = None
    if start is not None and end is not None:
        found = lw.interval(computation, start, end, _HOLDERS)
        view, interval = found.watermark, _interval(found)
    else:
        (view,) = lw.get(computation).values()
        if not view.registered:
            msg = f"there is no computation {view.computation!r}; check the spelling and the namespace"
            raise lowwater.UnknownComputation(msg, metadata={"computation": view.computation})
    state = "unknown" if view.low.unknown else "finished" if view.low.finished else "reached"
    return LowWatermarkRunFacet(
        computation=view.computation,
        deployment=lw.server_token,
        incarnation=view.incarnation,
        state=state,
        lowWatermark=_time(view.low),
        estimated=view.estimated,
        interval=interval,
    )


def _interval(found: lowwater.IntervalView) -> dict[str, Any]:
    return {
        "from": _time(found.start),
        "to": _time(found.end),
        "complete": found.complete,
        "why": None if found.why is None else found.why.sentence,
        "missing": [
            {
                "computation": gap.computation,
                "from": _time(gap.missing),
                "keyRanges": None if gap.ranges is None else gap.ranges.total,
                "holders": [
                    {
                        "start": each.start.hex(),
                        "end": each.end.hex(),
                        "lowWatermark": _time(each.watermark),
                        "worker": each.worker,
                        "host": each.host,
                    }
                    for each in gap.ranges or ()
                ],
            }
            for gap in found.gaps
        ],
    }


def _time(watermark: lowwater.Watermark) -> str | None:
    return None if watermark.unknown or watermark.finished else str(watermark)
