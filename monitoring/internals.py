"""The dashboard of the authority's operator: calls, commits, journal, subscribers, process."""

from __future__ import annotations

from monitoring.panels import AUTHORITIES, EVENTS, INSTANCE, INSTANCES, Board, Kind, Panel, Query, Row, Unit
from monitoring.recordings import APPEND, CONFLATION, LOOP, PUSH


def chosen(metric: str, more: str = "") -> str:
    """Select what the reader chose."""
    return f"{metric}{{{INSTANCES}{more}}}"


def rate(counter: str, by: str, more: str = "") -> str:
    """Count events a second."""
    return f"sum by ({by}) (rate({chosen(counter, more)}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str) -> str:
    """Take a quantile over the shown interval."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', f'{by}, le')})"


def mean(histogram: str, by: str) -> str:
    """Take the mean over the shown interval."""
    return f"{rate(f'{histogram}_sum', by)} / {rate(f'{histogram}_count', by)}"


def board() -> Board:
    """Build the authority's dashboard."""
    return Board(
        "lowwater-authority",
        "Lowwater / Authority",
        "How the authority does: rate, errors and duration of calls, commit rounds and the journal that each watermark waits for,"
        " and how fast subscribers are told.",
        AUTHORITIES,
        (INSTANCE,),
        (_calls(), _journal(), _reports(), _subscribers(), _shards(), _process()),
        events=EVENTS,
    )


def _calls() -> Row:
    return Row(
        "Calls",
        (
            Panel(
                "Calls by method",
                "Calls a second. Workers and subscribers keep streams open, which count once, when they end.",
                (Query(rate("lowwater_calls_total", "method"), "{{method}}"),),
                Unit.PER_SECOND,
                width=8,
            ),
            Panel(
                "Calls that failed",
                "By method and gRPC code. UNAVAILABLE comes with restarts and moves; FAILED_PRECONDITION is a worker that was"
                " replaced; anything that lasts has a reason in the panel beside.",
                (Query(rate("lowwater_calls_total", "method, code", ', code!="OK"'), "{{method}} {{code}}"),),
                Unit.PER_SECOND,
                width=8,
            ),
            Panel(
                "Refused calls by reason",
                "The reasons are the names of the client's exceptions; docs/reference/client.md says what each asks for.",
                (Query(rate("lowwater_refused_calls_total", "method, reason"), "{{method}} {{reason}}"),),
                Unit.PER_SECOND,
                width=8,
            ),
            Panel(
                "Duration of calls",
                "Unary calls: the median and the 99th of a hundred. A claim or a commit waits for the journal, a question for the"
                " epoch to be confirmed there. Calls that wait on purpose are as long as their caller wished.",
                (
                    Query(quantile(0.5, "lowwater_call_seconds", "method"), "{{method}} p50"),
                    Query(quantile(0.99, "lowwater_call_seconds", "method"), "{{method}} p99"),
                ),
                Unit.SECONDS,
                width=24,
            ),
        ),
    )


def _journal() -> Row:
    return Row(
        "Rounds and the journal",
        (
            Panel(
                "Append until durable",
                "Every watermark waits for one append. Sudden steps are the disk's or the store's.",
                (
                    Query(quantile(0.5, "lowwater_journal_append_seconds", "instance"), "{{instance}} p50"),
                    Query(quantile(0.99, "lowwater_journal_append_seconds", "instance"), "{{instance}} p99"),
                    Query(chosen(APPEND), "{{instance}} p99 as alerted"),
                ),
                Unit.SECONDS,
            ),
            Panel(
                "Commit rounds",
                "Rounds a second. There is no timer: the next begins when the append returns.",
                (Query(rate("lowwater_rounds_total", "instance"), "{{instance}}"),),
                Unit.PER_SECOND,
                width=6,
            ),
            Panel(
                "Requests a round",
                "How many requests one append carries. It grows with load: that is how a busy authority keeps up.",
                (
                    Query(mean("lowwater_round_requests", "instance"), "{{instance}} mean"),
                    Query(quantile(0.99, "lowwater_round_requests", "instance"), "{{instance}} p99"),
                ),
                width=6,
            ),
            Panel(
                "Appended bytes",
                "Bytes follow the ranges that changed, not the reports that came.",
                (Query(rate("lowwater_journal_appended_bytes_total", "instance"), "{{instance}}"),),
                Unit.BYTES_PER_SECOND,
                width=6,
            ),
            Panel(
                "Journal errors",
                "Writes that the store refused (failed), or did not answer (unknown: tried again). Zero is the only good value.",
                (Query(rate("lowwater_journal_errors_total", "instance, outcome"), "{{instance}} {{outcome}}"),),
                Unit.PER_SECOND,
                width=6,
                colours=((0.001, "red"),),
            ),
            Panel(
                "Last confirmed",
                "Seconds since the journal last confirmed that this process still owns what it serves. Readers are told no value"
                " that is older than that.",
                (Query(f"time() - {chosen('lowwater_journal_confirmed_timestamp_seconds')}", "{{instance}}"),),
                Unit.SECONDS,
                width=6,
                colours=((30, "red"),),
            ),
            Panel(
                "Replay",
                "How long it took to rebuild what the process serves from the journal, all computations together: the part of a"
                " restart that grows with the number of ranges.",
                (Query(chosen("lowwater_journal_replay_seconds_sum"), "{{instance}}"),),
                Unit.SECONDS,
                Kind.STAT,
                width=6,
            ),
        ),
    )


def _reports() -> Row:
    return Row(
        "Workers",
        (
            Panel(
                "Reports",
                "Report messages a second, and the range states in them. A process sends one message for all it owns.",
                (
                    Query(rate("lowwater_reports_total", "instance"), "{{instance}} messages"),
                    Query(rate("lowwater_reported_ranges_total", "instance"), "{{instance}} ranges"),
                ),
                Unit.PER_SECOND,
            ),
            Panel(
                "Refused reports by reason",
                "STALE_SEQUENCER is fencing at work, right after a claim. TOO_FAR_AHEAD is a bad timestamp in the data, and its"
                " range holds.",
                (Query(rate("lowwater_refused_reports_total", "reason"), "{{reason}}"),),
                Unit.PER_SECOND,
            ),
            Panel(
                "Claims by outcome",
                "A burst after a deployment is right. Claims without an end are workers that fight, or die and come back.",
                (Query(rate("lowwater_claims_total", "outcome"), "{{outcome}}"),),
                Unit.PER_SECOND,
                width=8,
            ),
            Panel(
                "Report streams",
                "Open streams: processes that report. A step down is that many processes gone.",
                (Query(chosen("lowwater_report_streams"), "{{instance}}"),),
                width=8,
            ),
            Panel(
                "Admission",
                "Who starts a stream goes through a gate: how many are inside, of how many, and who waits. Refused ones are told"
                " when to come again.",
                (
                    Query(
                        f"{chosen('lowwater_admission_inside')} / {chosen('lowwater_admission_bound')}", "{{gate}} used"
                    ),
                    Query(chosen("lowwater_admission_waiting"), "{{gate}} waiting"),
                    Query(rate("lowwater_admission_refused_total", "gate"), "{{gate}} refused a second"),
                ),
                width=8,
            ),
        ),
    )


def _subscribers() -> Row:
    return Row(
        "Subscribers",
        (
            Panel(
                "Publish to stream",
                "From the publication of a watermark until it is given to a subscriber's stream.",
                (
                    Query(quantile(0.5, "lowwater_push_seconds", "instance"), "{{instance}} p50"),
                    Query(quantile(0.99, "lowwater_push_seconds", "instance"), "{{instance}} p99"),
                    Query(chosen(PUSH), "{{instance}} p99 as alerted"),
                ),
                Unit.SECONDS,
            ),
            Panel(
                "Conflation",
                "The share of values that were replaced by newer ones before a subscriber took them. Some is normal and harmless:"
                " a subscriber gets the newest value, never a backlog.",
                (Query(chosen(CONFLATION), "{{instance}}"),),
                Unit.SHARE,
                width=6,
            ),
            Panel(
                "Subscriptions and values",
                "Open subscriptions, and the watermarks given to them a second.",
                (
                    Query(chosen("lowwater_subscribers"), "{{instance}} subscriptions"),
                    Query(rate("lowwater_pushed_watermarks_total", "instance"), "{{instance}} a second"),
                ),
                width=6,
            ),
        ),
    )


def _shards() -> Row:
    return Row(
        "Shards",
        (
            Panel(
                "Served computations",
                "How many computations each process serves. Areas that change their owner are a fail-over, a drain or a new shard.",
                (Query(chosen("lowwater_owned_computations"), "{{instance}}"),),
                kind=Kind.STACK,
                width=8,
            ),
            Panel(
                "Without an owner",
                "Registered computations that no process serves: their watermarks stand. Zero but for seconds.",
                (
                    Query(
                        'max(lowwater_registered_computations{job="$job"})'
                        ' - (count(count by (computation) (lowwater_epoch{job="$job"})) or vector(0))',
                        "computations",
                    ),
                ),
                width=8,
                colours=((1, "red"),),
            ),
            Panel(
                "Owners and epochs",
                "The epoch of each computation grows when its owner changes. Two rows of one computation: a move, or a process that"
                " does not know yet that it was replaced.",
                (Query(f"max by (computation, instance) ({chosen('lowwater_epoch')})", "epoch"),),
                Unit.NONE,
                Kind.TABLE,
                width=8,
            ),
        ),
    )


def _process() -> Row:
    return Row(
        "Process",
        (
            Panel(
                "Event-loop lag",
                "How late the event loop is: everything waits behind it. Metrics have a thread and the status page a process of its own:"
                " neither is in the way.",
                (
                    Query(quantile(0.5, "lowwater_event_loop_lag_seconds", "instance"), "{{instance}} p50"),
                    Query(chosen(LOOP), "{{instance}} p99 as alerted"),
                ),
                Unit.SECONDS,
            ),
            Panel(
                "CPU",
                "Cores in use. One core is about the most that the event loop can use.",
                (Query(f"rate({chosen('process_cpu_seconds_total')}[$__rate_interval])", "{{instance}}"),),
                width=6,
            ),
            Panel(
                "Memory",
                "Resident memory. It follows the number of key ranges, and nothing else for long.",
                (
                    Query(chosen("process_resident_memory_bytes"), "{{instance}}"),
                    Query(chosen("lowwater_memory_limit_bytes"), "{{instance}} limit"),
                ),
                Unit.BYTES,
                width=6,
            ),
            Panel(
                "Version and start",
                "What runs, and since when. Shards of two versions are right while an upgrade is rolled out, and only then.",
                (
                    Query(
                        f"{chosen('lowwater_build_info')} * on (job, instance) group_left ()"
                        f" ({chosen('process_start_time_seconds')} * 1000)",
                        "started",
                    ),
                ),
                Unit.MOMENT,
                Kind.TABLE,
            ),
        ),
    )
