"""The first dashboard to open: late computations, whether data or system is late, and holders."""

from __future__ import annotations

from monitoring.panels import (
    AUTHORITIES,
    COMPUTATION,
    COMPUTATIONS,
    EVENTS,
    NAMESPACE,
    Board,
    Kind,
    Panel,
    Query,
    Row,
    Unit,
)
from monitoring.recordings import (
    BROKEN,
    FRESHNESS,
    GLOBAL_LAG,
    HOLDER,
    LOCAL_LAG,
    LOW,
    OPERATION,
    SILENCE,
    STANDING,
    broken,
    by_computation,
    by_group,
    due,
    newest,
)
from monitoring.settings import Settings


def chosen(metric: str) -> str:
    """Select what the reader chose."""
    return f"{metric}{{{COMPUTATIONS}}}"


def board(settings: Settings) -> Board:
    """Build the watermark lag overview."""
    minutes = settings.late_seconds // 60
    return Board(
        "lowwater-lag",
        "Lowwater / Watermark lag",
        "Read it from the top: is a promise broken, which computation adds the lag, is the data old or the system stuck, who holds"
        " it. A click on a series opens the computation on the status page.",
        AUTHORITIES,
        (NAMESPACE, COMPUTATION),
        (_late(settings, minutes), _guilty(), _system(), _holders(), _tasks()),
        events=EVENTS,
    )


def _late(settings: Settings, minutes: int) -> Row:
    return Row(
        "Who is late",
        (
            Panel(
                "Promises broken",
                "How many computations are older than was promised of them, or where nothing was, are not complete"
                f" {minutes} minutes after the end of a period. Estimated ones do not count.",
                (Query(f"sum({chosen(BROKEN)}) or vector(0)", "computations"),),
                kind=Kind.STAT,
                width=4,
                colours=((1, "red"),),
            ),
            Panel(
                "Furthest behind",
                "The greatest age of any low watermark, and whose it is. It alone says little: after a backfill old is right. Go on"
                " to the local lag.",
                (Query(f"topk(1, {chosen(FRESHNESS)})", "{{computation}}"),),
                Unit.SECONDS,
                Kind.STAT,
                width=4,
                to_page=True,
            ),
            Panel(
                "Promise kept, last 6 hours",
                f"The share of time in which each computation kept its promise. The objective is {settings.objective_words}; the"
                " alert LowwaterPromiseBroken looks at the same figure over two windows at once.",
                (Query(f"1 - {chosen(broken('6h'))}", "{{computation}}"),),
                Unit.SHARE,
                width=16,
                to_page=True,
            ),
            Panel(
                "Freshness and the promise",
                "How old each low watermark is: everything older than the line is complete. The dashed saw is the most that the"
                f" promise of all allows: {minutes} minutes after a period's end the line has to be under it. A stage that writes windows"
                " is a saw itself, that is its health. What was promised of single computations is on *Lowwater / Promises*.",
                (
                    Query(chosen(FRESHNESS), "{{computation}}"),
                    Query(f"time() - {due(settings)}", "allowed", limit=True),
                ),
                Unit.SECONDS,
                width=24,
                height=10,
                to_page=True,
            ),
        ),
    )


def _guilty() -> Row:
    return Row(
        "Who is guilty",
        (
            Panel(
                "Local lag",
                "What each computation adds: how far it is behind its own inputs. The areas add up along a chain, so that the"
                " broadest one is the guilty one, and those behind it, however late, are innocent.",
                (Query(chosen(LOCAL_LAG), "{{computation}}"),),
                Unit.SECONDS,
                Kind.STACK,
                height=10,
                to_page=True,
            ),
            Panel(
                "Global lag",
                "How far each computation is behind the sources of the pipeline: what has come in, but is not through yet. Lines"
                " that rise together have one cause before them; see the local lag.",
                (Query(chosen(GLOBAL_LAG), "{{computation}}"),),
                Unit.SECONDS,
                height=10,
                to_page=True,
            ),
            Panel(
                "99 % lately seen, beside exact",
                "How far the heuristic watermarks are ahead of the exact one: what the last few records cost. A great gap means a"
                " few stragglers hold everybody up; none means that all records are late together.",
                (
                    Query(
                        "max by (job, computation, share)"
                        f" ({chosen('lowwater_heuristic_watermark_timestamp_seconds')})"
                        f" - on (job, computation) group_left {chosen(LOW)}",
                        "{{computation}} {{share}}",
                    ),
                ),
                Unit.SECONDS,
                to_page=True,
            ),
            Panel(
                "Behind the lateness budgets",
                "Share of the records of the last hour that came behind the watermark of each lateness budget. In the long run it is at most the budget, besides"
                " the records that were excused as lateness jumped; in one hour it may be several times that.",
                (
                    Query(
                        "sum by (job, computation, budget)"
                        f" (rate({chosen('lowwater_lateness_budget_behind_total')}[1h]))"
                        " / (sum by (job, computation, budget)"
                        f" (rate({chosen('lowwater_lateness_budget_records_total')}[1h])) > 0)",
                        "{{computation}} {{budget}}",
                    ),
                ),
                Unit.SHARE,
                to_page=True,
            ),
            Panel(
                "Since when it stands",
                "Seconds since the low watermark moved last. A saw of the length of its windows is healthy; a straight line up is"
                " LowwaterWatermarkStalled, if the inputs go on.",
                (Query(chosen(STANDING), "{{computation}}"),),
                Unit.SECONDS,
                to_page=True,
            ),
        ),
    )


def _system() -> Row:
    return Row(
        "Old data, or a stuck system",
        (
            Panel(
                "Oldest operation",
                "How long the oldest operation has been running. Old data with young operations: the data came late. An operation"
                " as old as the lag: the system is stuck on it.",
                (Query(chosen(OPERATION), "{{computation}}"),),
                Unit.SECONDS,
                to_page=True,
            ),
            Panel(
                "Silence of the holders",
                "Seconds since the ranges that hold the low watermark were reported last. A living worker renews its report every"
                " few seconds, so that a line that climbs is a worker that died or lost its way to the authority.",
                (Query(chosen(SILENCE), "{{computation}}"),),
                Unit.SECONDS,
                colours=((30, "red"),),
                to_page=True,
            ),
            Panel(
                "Ranges by state",
                "Key ranges of the chosen computations. Unowned and never claimed ones hold until somebody claims or retires them.",
                (Query(f"sum by (state) ({newest(chosen('lowwater_ranges'))})", "{{state}}"),),
                kind=Kind.STACK,
            ),
            Panel(
                "State of the watermarks",
                "Unknown: some key range was never reported, so that nothing can be said. Finished: nothing will ever come.",
                (
                    Query(
                        f"max by (computation) ({_state('time')} + 2 * {_state('finished')})",
                        "{{computation}}",
                    ),
                ),
                kind=Kind.STATES,
                states=("unknown", "time", "finished"),
                to_page=True,
            ),
        ),
    )


def _state(state: str) -> str:
    return by_computation(f'lowwater_watermark_state{{{COMPUTATIONS}, state="{state}"}}')


def _holders() -> Row:
    standing = f"on (job, computation) group_left {chosen(STANDING)}"
    return Row(
        "Who holds",
        (
            Panel(
                "Holders",
                "The key range that holds each computation whose low watermark stands, its worker and host, and for how many"
                " seconds it has stood. Empty when everything moves. All ranges, with their sequencers, are on the status page and"
                " in `lowwater why`.",
                (Query(f"{chosen(HOLDER)} * {standing}", "standing"),),
                Unit.SECONDS,
                Kind.TABLE,
                width=16,
                to_page=True,
            ),
            Panel(
                "Ranges that hold",
                "How many key ranges stand at the low watermark. One: look for that worker. All of them: look at the inputs, or at"
                " what they all write to.",
                (Query(by_computation(chosen("lowwater_holding_ranges")), "{{computation}}"),),
                width=8,
                to_page=True,
            ),
        ),
    )


def _tasks() -> Row:
    return Row(
        "Tasks",
        (
            Panel(
                "Tasks that wait and tasks in work",
                "Tasks of each group that nobody has taken, and those that a worker has under a lease. A line of waiting ones that only"
                " rises has too few workers, or none.",
                (
                    Query(
                        by_group(f'lowwater_tasks{{{COMPUTATIONS}, state="ready"}}'), "{{computation}} {{group}} wait"
                    ),
                    Query(
                        by_group(f'lowwater_tasks{{{COMPUTATIONS}, state="leased"}}'),
                        "{{computation}} {{group}} in work",
                    ),
                ),
                to_page=True,
            ),
            Panel(
                "Age of what is closed",
                "How old the event time is below which every task of a group is done: with intervals, how far the close has come. A saw of"
                " the interval's length is its health.",
                (
                    Query(
                        f"time() - {by_group(chosen('lowwater_tasks_closed_timestamp_seconds'))}",
                        "{{computation}} {{group}}",
                    ),
                ),
                Unit.SECONDS,
                to_page=True,
            ),
        ),
    )
