"""The run facet ``lowwater_lowWatermark``, with the schema in LowWatermarkRunFacet.json."""

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
    """Completeness of a computation at the time of the call."""

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
    """True if the value is an estimate, which no worker guarantees."""
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
    """Return the facet of a computation as it stands now.

    With both ends of an interval it also has the missing parts of that interval.

    Raises UnknownComputation, and Unavailable when the authority does not answer: the caller
    decides whether its run goes on without the facet.
    """
    interval = None
    if start is not None and end is not None:
        completeness = lw.interval(computation, start, end, _HOLDERS)
        view, interval = completeness.watermark, _interval(completeness)
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


def _interval(completeness: lowwater.IntervalView) -> dict[str, Any]:
    return {
        "from": _time(completeness.start),
        "to": _time(completeness.end),
        "complete": completeness.complete,
        "why": None if completeness.why is None else completeness.why.sentence,
        "missing": [
            {
                "computation": gap.computation,
                "from": _time(gap.missing),
                "keyRanges": None if gap.ranges is None else gap.ranges.total,
                "holders": [
                    {
                        "start": holder.start.hex(),
                        "end": holder.end.hex(),
                        "lowWatermark": _time(holder.watermark),
                        "worker": holder.worker,
                        "host": holder.host,
                    }
                    for holder in gap.ranges or ()
                ],
            }
            for gap in completeness.gaps
        ],
    }


def _time(watermark: lowwater.Watermark) -> str | None:
    return None if watermark.unknown or watermark.finished else str(watermark)
