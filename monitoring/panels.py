"""Dashboards as values: what is shown, how it is asked for, and how to read it.

``grafana.py`` builds Grafana's JSON from them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

JOB: Final = 'job="$job"'
INSTANCES: Final = 'job="$job", instance=~"$instance"'
COMPUTATIONS: Final = 'job="$job", computation=~"$namespace$computation"'
"""Selector of every query: Grafana puts in what the reader chose."""


class Kind(Enum):
    """Form in which a panel draws the results of its queries."""

    LINES = "lines"
    STACK = "stacked areas"
    STAT = "one figure"
    TABLE = "table"
    STATES = "state timeline"


class Unit(Enum):
    """Grafana's names of units."""

    SECONDS = "s"
    MOMENT = "dateTimeFromNow"
    COUNT = "short"
    PER_SECOND = "ops"
    BYTES = "bytes"
    BYTES_PER_SECOND = "Bps"
    SHARE = "percentunit"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression."""

    expr: str
    legend: str = ""
    """Template of the series' name; in a table, the name of its value."""
    limit: bool = False
    """True for the value that others are measured against: dashed, and red."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: one question, and the queries that answer it."""

    title: str
    says: str
    """Text that says what the panel shows, what is normal, and where to look when it is not."""
    queries: tuple[Query, ...]
    unit: Unit = Unit.COUNT
    kind: Kind = Kind.LINES
    width: int = 12
    """Columns of Grafana's 24."""
    height: int = 8
    colours: tuple[tuple[float, str], ...] = ()
    """Lowest value of each colour, above green; among lines, a line across."""
    states: tuple[str, ...] = ()
    """The words for 0, 1, 2... of a state timeline."""
    to_page: bool = False
    """True when each series has a computation: a click opens it on the status page."""

    @property
    def identity(self) -> int:
        """Number of the panel in links. It stays when other panels come and go."""
        return zlib.crc32(self.title.encode()) % 1_000_000 + 1


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Mark across all panels of a dashboard while an expression has a value."""

    name: str
    expr: str
    title: str
    """Template of a mark's title."""
    text: str
    """Template of the text below the title."""
    colour: str


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    about: str
    jobs: str
    """The jobs that the reader chooses from, as Grafana asks Prometheus for them."""
    choices: tuple[Choice, ...]
    rows: tuple[Row, ...]
    several_jobs: bool = False
    """True when more than one job may be chosen at a time."""
    events: tuple[Event, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Panels of all rows, in order."""
        return tuple(panel for row in self.rows for panel in row.panels)


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable of a dashboard: what the reader may choose."""

    name: str
    about: str
    query: str
    regex: str = ""
    """Pattern of the part of each value that counts."""
    all_value: str = ".*"
    """Text that stands for all values in a regular expression."""


INSTANCE: Final = Choice("instance", "Authority process", 'label_values(lowwater_build_info{job="$job"}, instance)')
NAMESPACE: Final = Choice(
    "namespace",
    "Namespace of the computations",
    'label_values(lowwater_epoch{job="$job"}, computation)',
    "/^(.*\\/)[^\\/]*$/",
    "(.*/)?",
)
AUTHORITIES: Final = "label_values(lowwater_build_info, job)"
"""The deployments: one job each."""
COMPUTATION: Final = Choice(
    "computation",
    "Computation",
    'label_values(lowwater_epoch{job="$job"}, computation)',
    "/([^\\/]*)$/",
    "[^~]*",
)
"""Choice of a computation. "All" leaves slices out, of which there may be a thousand; a single
slice may be chosen."""
TEAM: Final = Choice("team", "Team", 'label_values(lowwater_promise_info{job="$job"}, team)')
OWNER: Final = Choice("owner", "Owner", 'label_values(lowwater_promise_info{job="$job", team=~"$team"}, owner)')


def _grown(metric: str) -> str:
    """Return an expression for the computations whose metric has grown within a minute."""
    now, then = (f"max by (job, computation) ({metric}{{{JOB}}}{offset})" for offset in ("", " offset 1m"))
    return f"{now} > {then}"


MOVED: Final = Event(
    "Moves", _grown("lowwater_epoch"), "{{computation}} has a new shard", "A move, a fail-over or a restart.", "blue"
)
RESET: Final = Event(
    "Resets", _grown("lowwater_incarnation"), "{{computation}} was reset", "A new incarnation begins.", "purple"
)
FIRING: Final = Event(
    "Alerts",
    f'ALERTS{{alertname=~"Lowwater.+", alertstate="firing", {JOB}}}',
    "{{alertname}}",
    "{{computation}} {{instance}} {{severity}} {{owner}} {{team}}",
    "red",
)
EVENTS: Final = (MOVED, RESET, FIRING)
"""Events of a deployment."""
