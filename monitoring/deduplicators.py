"""The dashboard and the alerts of deduplicators.

They use metrics of `lowwater-pipeline dedup` about its partitions, and of drivers about stages that
deduplicate.
"""

from __future__ import annotations

from typing import Final

from monitoring.panels import Board, Choice, Kind, Panel, Query, Row, Unit
from monitoring.rules import Alert, Group

TOPICS: Final = 'job=~"$job", topic=~"$topic"'
PARTITION: Final = "{{topic}} [{{partition}}]"
BY_PARTITION: Final = "job, topic, partition"
STAGES: Final = 'job=~"$job", computation=~"$computation"'


def dedup(name: str) -> str:
    """Select a figure of deduplicators, of the topics that the reader chose."""
    return f"lowwater_dedup_{name}{{{TOPICS}}}"


def rate(name: str) -> str:
    """Count events of each topic a second, over its partitions and processes."""
    return f"sum by (job, topic) (rate({dedup(name)}[$__rate_interval]))"


def stage(name: str, matcher: str = "") -> str:
    """Select a figure of stages that deduplicate, of those that the reader chose."""
    return f"lowwater_dedup_stage_{name}{{{STAGES}{matcher}}}"


def stage_rate(name: str, matcher: str = "", by: str = "") -> str:
    """Count events of each stage a second."""
    return f"sum by (job, computation{by}) (rate({stage(name, matcher)}[$__rate_interval]))"


def board() -> Board:
    """Build the dashboard of deduplicators."""
    return Board(
        "lowwater-dedup",
        "Lowwater / Deduplicators",
        "What lowwater-pipeline dedup passes on, drops and remembers, by input topic. Read it from the top: does each partition work, does"
        " it keep up, how many copies come, and does what is remembered stay bounded. Below the same of tracked stages of Spark.",
        'label_values({__name__=~"lowwater_dedup_(running|stage_remembered_ids)"}, job)',
        (
            Choice("topic", "Input topic", 'label_values(lowwater_dedup_running{job=~"$job"}, topic)'),
            Choice(
                "computation", "Stage", 'label_values(lowwater_dedup_stage_remembered_ids{job=~"$job"}, computation)'
            ),
        ),
        (_passed(), _remembered(), _stages()),
        several_jobs=True,
    )


def _passed() -> Row:
    copies = (
        f"{rate('duplicate_messages_total')} / ({rate('admitted_messages_total')} + {rate('duplicate_messages_total')})"
    )
    return Row(
        "Messages",
        (
            Panel(
                "Partitions",
                "A partition works, is held (it is tried again by itself), or has refused to go on for a reason that the log has: it"
                " needs somebody.",
                (Query(f"max by ({BY_PARTITION}) ({dedup('running')} + 2 * {dedup('refused')})", PARTITION),),
                kind=Kind.STATES,
                states=("held", "works", "refused"),
            ),
            Panel(
                "Lag",
                "Messages of the input behind the last commit. A line that only rises is too little of a core: start another process,"
                " the partitions are shared.",
                (Query(dedup("lag_messages"), PARTITION),),
            ),
            Panel(
                "Passed on and dropped",
                "Messages a second: first ones of their id, and copies. Undecidable ones are older than the senders' low watermark,"
                " unreadable ones have no id or no event time; both go into topics of their own.",
                (
                    Query(rate("admitted_messages_total"), "{{topic}} passed on"),
                    Query(rate("duplicate_messages_total"), "{{topic}} copies"),
                    Query(rate("undecidable_messages_total"), "{{topic}} undecidable"),
                    Query(rate("unreadable_messages_total"), "{{topic}} unreadable"),
                ),
                Unit.PER_SECOND,
            ),
            Panel(
                "Share of copies",
                "How many of the messages had come before. A jump is a sender that repeats itself: it gets no acknowledgements, or"
                " reads its own input again.",
                (Query(copies, "{{topic}}"),),
                Unit.SHARE,
            ),
        ),
    )


def _remembered() -> Row:
    spared = f"{rate('filtered_lookups_total')} / ({rate('filtered_lookups_total')} + {rate('found_lookups_total')})"
    return Row(
        "Memory",
        (
            Panel(
                "Remembered ids",
                "Ids in the memory. With a window by the watermark it falls when that moves; a line that only rises is a sender whose low"
                " watermark stands.",
                (Query(dedup("remembered_ids"), PARTITION),),
                width=8,
            ),
            Panel(
                "Size of the memory",
                "Bytes on disk, about 100 an id. It follows the ids with a delay: what is forgotten is removed in the background.",
                (Query(dedup("state_bytes"), PARTITION),),
                Unit.BYTES,
                width=8,
            ),
            Panel(
                "Look-ups that the filters spared",
                "The share of looks into a file of the memory that its Bloom filter has answered with no, of those that were not in vain."
                " New messages make it high.",
                (Query(spared, "{{topic}}"),),
                Unit.SHARE,
                width=8,
            ),
            Panel(
                "Taken and mended",
                "Partitions taken, and rows of the output read again to make a memory whole. Both come with restarts; all the time, they"
                " are processes that fence each other or a disk that loses its files.",
                (
                    Query(
                        f"sum by (job, topic) (increase({dedup('opened_lanes_total')}[$__rate_interval]))",
                        "{{topic}} taken",
                    ),
                    Query(
                        f"sum by (job, topic) (increase({dedup('mended_rows_total')}[$__rate_interval]))",
                        "{{topic}} rows mended",
                    ),
                    Query(
                        f"sum by (job, topic) (increase({dedup('rebuilt_memories_total')}[$__rate_interval]))",
                        "{{topic}} memories made anew",
                    ),
                ),
            ),
            Panel(
                "Commits",
                "Transactions a second. None while messages wait is a broker that is away, or a partition that is held.",
                (Query(rate("commits_total"), "{{topic}}"),),
                Unit.PER_SECOND,
            ),
        ),
    )


def _stages() -> Row:
    copies, decidable = ', route="duplicate"', ', route!="undecidable"'
    copied = f"{stage_rate('rows_total', copies)} / {stage_rate('rows_total', decidable)}"
    filtered = ', outcome="filtered"'
    spared = f"{stage_rate('lookups_total', filtered)} / {stage_rate('lookups_total')}"
    return Row(
        "Tracked stages",
        (
            Panel(
                "Rows of stages",
                "Rows a second: first ones of their id, late ones, copies, and undecidable ones, which are so late that their ids are forgotten."
                " Ids that a bound has pushed out early may pass once more: raise most=.",
                (
                    Query(stage_rate("rows_total", by=", route"), "{{computation}} {{route}}"),
                    Query(stage_rate("forgotten_early_ids_total"), "{{computation}} ids forgotten early"),
                ),
                Unit.PER_SECOND,
            ),
            Panel(
                "Share of copies in stages",
                "How many of the rows had come before, of those of which that can be said. A jump is a sender that repeats itself.",
                (Query(copied, "{{computation}}"),),
                Unit.SHARE,
            ),
            Panel(
                "Ids that stages remember",
                "As of the last batch. They fall when the low watermark of the senders moves; a line that only rises is a sender whose low watermark stands.",
                (Query(f"max by (job, computation) ({stage('remembered_ids')})", "{{computation}}"),),
                width=8,
            ),
            Panel(
                "State of stages",
                "Bytes of the ids and their filters. It follows the ids with a delay: what is forgotten goes with the segment that it is in. Files may take twice as much.",
                (Query(f"max by (job, computation) ({stage('state_bytes')})", "{{computation}}"),),
                Unit.BYTES,
                width=8,
            ),
            Panel(
                "Looks that the filters of stages spared",
                "The share of looks into a segment that its Bloom filter has answered with no. New rows make it high, copies make it low.",
                (Query(spared, "{{computation}}"),),
                Unit.SHARE,
                width=8,
            ),
        ),
    )


def alerts() -> Group:
    """Return the alerts for operators of a deduplicator."""
    return Group(
        "lowwater-dedup",
        "dedup.md",
        (
            Alert(
                "LowwaterDedupRefused",
                f"max by ({BY_PARTITION}) (lowwater_dedup_refused) == 1",
                "1m",
                "critical",
                "The deduplicator of {{ $labels.topic }} has stopped partition {{ $labels.partition }}",
                "It cannot go on without losing or doubling a message, and waits for somebody. The other partitions go on; a process of which"
                " all have stopped ends. The log says why and what to do.",
            ),
            Alert(
                "LowwaterDedupHeld",
                f"(\nmax by ({BY_PARTITION}) (lowwater_dedup_running) == 0\n"
                f"or max by ({BY_PARTITION}) (increase(lowwater_dedup_commits_total[5m])) == 0\n"
                f"and max by ({BY_PARTITION}) (min_over_time(lowwater_dedup_running[5m])) == 0\n)\n"
                f"unless max by ({BY_PARTITION}) (lowwater_dedup_refused) == 1",
                "10m",
                "warning",
                "Partition {{ $labels.partition }} of {{ $labels.topic }} is held",
                "Nothing of it was passed on lately, and it was taken again and again: a broker that is away, too few replicas, a transaction"
                " that somebody has open, or a memory that is being read again.",
            ),
            Alert(
                "LowwaterDedupAbsent",
                f"max by ({BY_PARTITION}) (max_over_time(lowwater_dedup_running[1h]))\n"
                f"unless max by ({BY_PARTITION}) (lowwater_dedup_running)",
                "5m",
                "critical",
                "Nobody deduplicates partition {{ $labels.partition }} of {{ $labels.topic }} any more",
                "A process had it within the last hour, and none has it now: it was killed, it cannot start, or it has ended since all of its"
                " partitions have refused to go on.",
            ),
        ),
    )
