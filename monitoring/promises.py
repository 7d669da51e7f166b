"""The dashboard for owners of promises: late computations, how near the others are, and holders."""

from __future__ import annotations

from typing import Final

from monitoring.panels import AUTHORITIES, EVENTS, JOB, OWNER, TEAM, Board, Kind, Panel, Query, Row, Unit
from monitoring.recordings import BROKEN, FRESHNESS, HOLDER, LATE, LOCAL_LAG, PROMISE, STANDING, USED, broken
from monitoring.rules import COMPUTATION

MINE: Final = f'{PROMISE}{{{JOB}, team=~"$team", owner=~"$owner"}}'
"""Promises of the chosen teams and owners."""


def mine(metric: str, *labels: str) -> str:
    """Select a metric of the computations that the chosen owners have promised.

    ``labels`` are labels of the promise that the result gets.
    """
    return f"{metric}{{{JOB}}} * on ({COMPUTATION}) group_left ({', '.join(labels)}) {MINE}"


def board() -> Board:
    """Build the dashboard of the promises."""
    return Board(
        "lowwater-promises",
        "Lowwater / Promises",
        "What was promised of single computations, by team and owner: which of it is late, and how much of what is allowed is used. It has what"
        " the file of `lowwater serve --promises` names, and nothing else. A click on a series opens the computation on the status page.",
        AUTHORITIES,
        (TEAM, OWNER),
        (_late(), _causes()),
        events=EVENTS,
    )


def _late() -> Row:
    return Row(
        "What is late",
        (
            Panel(
                "Late now",
                "How many computations of the chosen ones are late: older than was promised. Where nobody said how old they may be, the promise"
                " of all counts.",
                (Query(f"sum({mine(BROKEN)}) or vector(0)", "computations"),),
                kind=Kind.STAT,
                width=4,
                colours=((1, "red"),),
            ),
            Panel(
                "Late by team",
                "The same by team, over time. The name is empty where nobody named a team.",
                (Query(f"sum by (team) ({mine(BROKEN, 'team')})", "{{team}}"),),
                kind=Kind.STACK,
                width=8,
            ),
            Panel(
                "Promise kept, by owner, last 6 hours",
                "The share of time in which each computation kept its promise, with who answers for it. Alerts carry the same owner and team.",
                (Query(f"1 - ({mine(broken('6h'), 'owner', 'team')})", "{{computation}} {{owner}} {{team}}"),),
                Unit.SHARE,
                to_page=True,
            ),
            Panel(
                "Used of what was promised",
                "How old each low watermark is, as a share of what was promised: 100 % and more is late. Computations of which an hour and of"
                " which a minute was promised compare at a glance.",
                (Query(mine(USED), "{{computation}}"),),
                Unit.SHARE,
                width=24,
                height=10,
                colours=((0.8, "yellow"), (1, "red")),
                to_page=True,
            ),
            Panel(
                "Who promised what",
                "How old each computation may be and how old it is, in seconds, with owner, team and the owner's runbook. One without a number"
                " has an owner, and the promise of all.",
                (
                    Query(mine(LATE, "owner", "team", "runbook"), "promised"),
                    Query(mine(FRESHNESS, "owner", "team", "runbook"), "age"),
                ),
                Unit.SECONDS,
                Kind.TABLE,
                width=24,
                to_page=True,
            ),
        ),
    )


def _causes() -> Row:
    return Row(
        "Whose fault it is",
        (
            Panel(
                "Added by what is mine",
                "The local lag: how far each of the chosen computations is behind its own inputs. None, and late all the same: it waits for"
                " somebody else's, which `lowwater why` names with the owner.",
                (Query(mine(LOCAL_LAG), "{{computation}}"),),
                Unit.SECONDS,
                Kind.STACK,
                to_page=True,
            ),
            Panel(
                "Holders of what is mine",
                "The key range that holds each of the chosen computations that stands, its worker and host, and for how many seconds it has"
                " stood.",
                (
                    Query(
                        f"{HOLDER}{{{JOB}}} * on ({COMPUTATION}) group_left () ({mine(STANDING)})",
                        "standing",
                    ),
                ),
                Unit.SECONDS,
                Kind.TABLE,
                to_page=True,
            ),
        ),
    )
