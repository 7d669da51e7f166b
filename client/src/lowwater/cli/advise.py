"""``lowwater advise``: what waiting costs and loses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from lowwater import errors
from lowwater._sync.client import Client
from lowwater.cli.failures import answer
from lowwater.cli.render import times
from lowwater.core.advice import DELAYS, Advice, Between, advise
from lowwater.core.advice_picture import picture
from lowwater.core.event_times import EventTimes, read_progress_lines
from lowwater.core.text import on_one_line
from lowwater.views import PPM, WatermarkView
from lowwater.watermark import MIN

__all__ = ["advice", "advice_record", "counted_behind", "read_event_times"]

_MOST_COMPLETIONS = 10_000


def advice(lw: Client, args: argparse.Namespace) -> int:
    """Say what constant delays would have cost and lost, beside a low watermark."""
    query, event_times = read_event_times(args.progress or [], args.query)
    (view,) = lw.get(args.name).values()
    history = lw.history(args.name, limit=_MOST_COMPLETIONS)
    result = advise(
        event_times,
        history,
        query=query,
        estimated=view.estimated,
        delays=[timedelta(seconds=seconds) for seconds in args.delay] if args.delay else DELAYS,
        window=None if args.window is None else timedelta(seconds=args.window),
        since=MIN if args.since is None else args.since.micros,
    )
    if args.picture is not None:
        drawn = picture(result)
        try:
            args.picture.write_text(drawn, "utf-8")
        except OSError as error:
            raise errors.InvalidArgument(
                f"{args.picture} cannot be written: {error.strerror}; name another file"
            ) from None
    lines = [str(result), *counted_behind(view)]
    why = None
    with suppress(errors.LowwaterError):  # the answer is complete without the holder
        why = lw.why(args.name)
        lines.append(f"Now {on_one_line(why.sentence)}")
    record = {
        **advice_record(result),
        "holder_now": None if why is None else why.sentence,
        "came_behind": _behind(view),
    }
    return answer(args, record, "\n".join(lines))


def read_event_times(files: Sequence[Path], query: str | None) -> tuple[str, EventTimes | None]:
    """Return the query and its event times; nothing without files."""
    if not files:
        if query is not None:
            raise errors.InvalidArgument("--query chooses a query of --progress; name the file of its progress as well")
        return "", None
    queries = read_progress_lines(_lines(files))
    names = ", ".join(map(on_one_line, sorted(queries)))
    if query is None and len(queries) == 1:
        (query,) = queries
    if query in queries:
        return query, queries[query]
    if not queries:
        raise errors.InvalidArgument(
            f"no progress of a streaming query is in {', '.join(map(str, files))}; give Spark's event log (spark.eventLog.enabled), "
            "not compressed, or lines of query.lastProgress.json"
        )
    problem = "has several queries; choose one with --query" if query is None else f"has no query {query}"
    raise errors.InvalidArgument(f"{', '.join(map(str, files))} {problem}; it has {names}")


def _lines(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        try:
            if str(file) == "-":
                yield from sys.stdin
            else:
                with file.open(encoding="utf-8") as lines:
                    yield from lines
        except UnicodeDecodeError:
            msg = (
                f"{file} is no text; decompress an event log first: zstd -dc {file} | lowwater advise NAME --progress -"
            )
            raise errors.InvalidArgument(msg) from None
        except OSError as error:
            raise errors.InvalidArgument(f"{file} cannot be read: {error.strerror}; name a file of progress") from None


def _behind(view: WatermarkView) -> list[dict[str, Any]]:
    """Return how many records came behind the other watermarks of a computation."""
    return [
        *(
            {"watermark": "heuristic", "share": ppm / PPM, "records": records, "behind_at_most": behind}
            for ppm, records, behind in view.passed
        ),
        *(
            {"watermark": "budget", "share": budget.share, "records": budget.records, "behind_at_most": budget.behind}
            for budget in view.budgets
        ),
    ]


def counted_behind(view: WatermarkView) -> list[str]:
    """Return sentences about the records that came behind heuristic watermarks and budgets."""
    if not view.budgets:
        return [
            f"How many records came behind a heuristic watermark of {view.computation} is not known: it has no lateness "
            "budget. Register it with lateness_budget=0.01, and its workers count them."
        ]
    lines: list[str] = []
    for behind in _behind(view):
        if behind["records"]:
            name = (
                f"its heuristic watermark of {behind['share'] * 100:g} %"
                if behind["watermark"] == "heuristic"
                else f"its lateness budget of {behind['share'] * 100:g} %"
            )
            lines.append(
                f"Behind {name} came at most {behind['behind_at_most'] / behind['records'] * 100:.2g} % of "
                f"{behind['records']} records."
            )
    return lines


def advice_record(result: Advice) -> dict[str, Any]:
    """Return an advice for JSON."""

    def between(value: Between) -> dict[str, float]:
        return {"least": value.least, "most": value.most}

    return {
        "computation": result.computation,
        "estimated": result.estimated,
        "query": result.query,
        "rows": result.rows,
        "unjudged_rows": result.unjudged_rows,
        "batches": result.batches,
        "stretches": result.stretches,
        "first_batch": result.first_batch,
        "missing_batches": result.missing_batches,
        "window_seconds": None if result.window is None else result.window.total_seconds(),
        **times("start", result.start),
        **times("end", result.end),
        "losses": [
            {
                "delay_seconds": loss.delay.total_seconds(),
                "rows": between(loss.rows),
                "share": between(loss.share),
            }
            for loss in result.losses
        ],
        "delays": [{"share": needed.share, "delay_seconds": between(needed.delay)} for needed in result.delays],
        "waits": None
        if result.waits is None
        else {
            "steps": result.waits.steps,
            "by_rows": result.waits.by_rows,
            "median_seconds": between(result.waits.median),
            "worst_seconds": between(result.waits.worst),
        },
        "unknown": list(result.unknown),
    }
