"""The dashboard of the pipeline's operator: metrics of Spark jobs and client processes."""

from __future__ import annotations

from typing import Final

from monitoring.panels import Board, Choice, Kind, Panel, Query, Row, Unit

JOBS: Final = 'job=~"$job", instance=~"$instance"'
QUERIES: Final = f'{JOBS}, query=~"$query"'
QUERY: Final = "{{query}} {{computation}}"
EXPORTED: Final = '{__name__=~"lowwater_client_claims|lowwater_spark_committed_batch|lowwater_spark_attach_authority"}'
"""Metrics by which a process shows that it exports figures of a client, of tracked queries or of an
attachment."""


def spark(name: str, more: str = QUERIES) -> str:
    """Select a figure of Spark queries."""
    return f"lowwater_spark_{name}{{{more}}}"


def client(name: str) -> str:
    """Select a figure of client processes."""
    return f"lowwater_client_{name}{{{JOBS}}}"


def rate(counter: str) -> str:
    """Count events a second."""
    return f"rate({counter}[$__rate_interval])"


def grown(counter: str) -> str:
    """Count events in the shown interval."""
    return f"increase({counter}[$__rate_interval])"


def board() -> Board:
    """Build the dashboard of Spark jobs and clients."""
    return Board(
        "lowwater-workloads",
        "Lowwater / Spark jobs and clients",
        "What the processes that report export about themselves: lowwater_spark.prometheus in a driver, lowwater.prometheus in any"
        " process. They are jobs of their own in Prometheus, beside the authority's.",
        f"label_values({EXPORTED}, job)",
        (
            Choice("instance", "Process", f'label_values({EXPORTED[:-1]}, job=~"$job"}}, instance)'),
            Choice("query", "Spark query", 'label_values({__name__=~"lowwater_spark_.+", job=~"$job"}, query)'),
        ),
        (_tracked(), _attached(), _attachment(), _clients()),
        several_jobs=True,
    )


def _tracked() -> Row:
    return Row(
        "Tracked queries",
        (
            Panel(
                "Age of what was reached and reported",
                "How old the input watermark is that the committed batches have reached, and the least that the query's ranges"
                " report. They move together; a gap between them is work that the query still holds.",
                (
                    Query(f"time() - {spark('low_watermark_timestamp_seconds')}", f"{QUERY} reached"),
                    Query(f"time() - {spark('reported_watermark_timestamp_seconds')}", f"{QUERY} reported"),
                ),
                Unit.SECONDS,
            ),
            Panel(
                "Batches",
                "The number of the last committed batch. Steps are batches; a flat line of a running query is one that takes long,"
                " or has nothing to do.",
                (Query(spark("committed_batch"), QUERY),),
                width=6,
            ),
            Panel(
                "Forced batches",
                "Empty batches a second, asked for so that a query without rows follows its inputs and closes its windows.",
                (Query(rate(spark("ticks_total")), QUERY),),
                Unit.PER_SECOND,
                width=6,
            ),
            Panel(
                "Holding",
                "While a stage holds it reports nothing new, for a reason that `query.stage_status()` says in a sentence.",
                (Query(spark("holding"), QUERY),),
                kind=Kind.STATES,
                states=("follows", "holds"),
            ),
            Panel(
                "Late rows",
                "Rows below what the inputs had promised before: broken promises, of whoever reports upstream. Not one is normal.",
                (Query(grown(spark("late_rows_total")), QUERY),),
                width=4,
                colours=((1, "red"),),
            ),
            Panel(
                "Rows that Spark dropped",
                "Rows that Spark's own operators dropped for being below Spark's own watermark. A driven query drops only what is"
                " late above too.",
                (Query(grown(spark("dropped_rows_total")), QUERY),),
                width=4,
                colours=((1, "red"),),
            ),
            Panel(
                "Rows without an event time",
                "They hold no watermark, and no window has them. Where every row should have a time, not one is normal.",
                (Query(grown(spark("untimed_rows_total")), QUERY),),
                width=4,
                colours=((1, "red"),),
            ),
            Panel(
                "Unacknowledged productions",
                "Rows of weak productions that no broker has acknowledged yet. They are kept and sent again, and the low watermark does not pass"
                " them. `lowwater why` names the topic, and since when.",
                (Query(spark("unsent_rows"), QUERY),),
                colours=((1, "red"),),
            ),
        ),
    )


def _attached() -> Row:
    return Row(
        "Attached queries",
        (
            Panel(
                "Rows",
                "Rows read a second, by each query that is only watched.",
                (Query(rate(spark("attached_rows_total")), QUERY),),
                Unit.PER_SECOND,
                width=6,
            ),
            Panel(
                "Batches a second",
                "How often each query runs a batch. None while rows come is a batch that takes long.",
                (Query(rate(spark("attached_batches_total")), QUERY),),
                Unit.PER_SECOND,
                width=6,
            ),
            Panel(
                "Duration of the last batch",
                "It bounds how fresh the query can be: what comes in during a batch waits for the next.",
                (Query(spark("attached_batch_seconds"), QUERY),),
                Unit.SECONDS,
                width=6,
            ),
            Panel(
                "Rows in state",
                "Growth without an end is a watermark that stands, or a key that never closes.",
                (Query(spark("attached_state_rows"), QUERY),),
                width=6,
            ),
            Panel(
                "Age of Spark's watermark",
                "What the last batch ran with, and what the authority has taken over of it. It is an estimate: rows below it are"
                " dropped, not waited for.",
                (
                    Query(f"time() - {spark('attached_watermark_timestamp_seconds')}", f"{QUERY} Spark"),
                    Query(f"time() - {spark('attached_reported_timestamp_seconds')}", f"{QUERY} reported"),
                ),
                Unit.SECONDS,
            ),
            Panel(
                "Rows dropped as late",
                "What Spark lost by guessing its watermark. A query that cannot afford it wants a tracked stage, see docs/concepts/spark.md.",
                (Query(grown(spark("attached_dropped_rows_total")), QUERY),),
                width=6,
                colours=((1, "red"),),
            ),
            Panel(
                "Running",
                "Whether each query runs; an ended one stays as it stood.",
                (Query(spark("attached_running"), QUERY),),
                kind=Kind.STATES,
                width=6,
                states=("ended", "runs"),
            ),
        ),
    )


def _attachment() -> Row:
    return Row(
        "The way from a driver to the authority",
        (
            Panel(
                "How the authority is seen",
                "The breaker that keeps a slow authority from slowing Spark: it answers (0), is away and tried again at the next"
                " value (1), or is left alone for a while (2).",
                (
                    Query(
                        f"{_in_state('away')} + ignoring (state) 2 * {_in_state('left_alone')}",
                        "{{job}} {{instance}}",
                    ),
                ),
                kind=Kind.STATES,
                states=("answers", "away", "left alone"),
            ),
            Panel(
                "Values sent",
                "Values that the authority has answered, has not, and that a newer one replaced while they waited.",
                (
                    Query(rate(spark("attach_delivered_total", JOBS)), "{{instance}} delivered"),
                    Query(rate(spark("attach_failures_total", JOBS)), "{{instance}} failed"),
                    Query(rate(spark("attach_conflated_total", JOBS)), "{{instance}} conflated"),
                ),
                Unit.PER_SECOND,
                width=6,
            ),
            Panel(
                "Errors kept from Spark",
                "Errors that were swallowed are bugs, please report them. Dropped events are queries beyond the thousand that one"
                " attachment remembers.",
                (
                    Query(spark("attach_swallowed_errors_total", JOBS), "{{instance}} errors"),
                    Query(spark("attach_dropped_events_total", JOBS), "{{instance}} dropped events"),
                ),
                width=6,
                colours=((1, "red"),),
            ),
        ),
    )


def _in_state(state: str) -> str:
    return spark("attach_authority", f'{JOBS}, state="{state}"')


def _clients() -> Row:
    return Row(
        "Clients",
        (
            Panel(
                "Claims and what waits",
                "Claims that a process reports, those with a state that was not sent yet, and messages on their way. Waiting that"
                " does not go back to zero is an authority that does not answer.",
                (
                    Query(client("claims"), "{{instance}} claims"),
                    Query(client("waiting_claims"), "{{instance}} waiting"),
                    Query(client("reports_in_flight"), "{{instance}} in flight"),
                ),
                width=8,
            ),
            Panel(
                "Reports sent and acknowledged",
                "The lines lie on each other. Sent without acknowledged: the journal hangs, or the way to it.",
                (
                    Query(rate(client("reports_total")), "{{instance}} sent"),
                    Query(rate(client("acknowledged_reports_total")), "{{instance}} acknowledged"),
                    Query(rate(client("refused_reports_total")), "{{instance}} with refusals"),
                ),
                Unit.PER_SECOND,
                width=8,
            ),
            Panel(
                "Streams opened",
                "Each step is a connection made anew: a restart, a move, or a network that cuts.",
                (
                    Query(client("report_streams_total"), "{{instance}} reports"),
                    Query(client("watch_streams_total"), "{{instance}} watch"),
                ),
                width=8,
            ),
            Panel(
                "Messages about watermarks",
                "What subscribers are told, beats included: a second without one is a stream that hangs.",
                (Query(rate(client("watch_messages_total")), "{{instance}}"),),
                Unit.PER_SECOND,
            ),
            Panel(
                "Not shown, not followed, not served",
                "Values below one that was already shown, redirects of replaced shards, and computations that no shard tells of"
                " just now. The first two are the client keeping its promises during a fail-over.",
                (
                    Query(client("held_back_watermarks_total"), "{{instance}} held back"),
                    Query(client("refused_redirects_total"), "{{instance}} redirects refused"),
                    Query(client("unserved_computations"), "{{instance}} unserved"),
                ),
            ),
        ),
    )
