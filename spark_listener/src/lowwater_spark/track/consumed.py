"""Tells from the text of an executed plan whether an action has read a metric's rows to their end. Pure: plain text in.

A metric counts the rows that come by. A limit stops asking for rows, and ``take`` runs over some of the partitions only, so a count says
nothing unless something above the metric asks for everything: a shuffle or a broadcast, which is complete before anything is
read from it, or the end of an action that collects or writes all, with nothing in between that could stop early. The operators that pass this on
are listed; whatever is not is taken for one that stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["read_whole"]

_ASKS_ALL: Final = frozenset({"BroadcastExchange", "Exchange"})
"""They run over all partitions of what they read, to the end."""

_PASS_ON: Final = frozenset(
    {
        "AQEShuffleRead",
        "AdaptiveSparkPlan",
        "AppendData",
        "ArrowEvalPython",
        "BatchEvalPython",
        "BroadcastHashJoin",
        "BroadcastQueryStage",
        "Coalesce",
        "CollectMetrics",
        "ColumnarToRow",
        "CommandResult",
        "Execute",
        "Expand",
        "Filter",
        "Generate",
        "HashAggregate",
        "ObjectHashAggregate",
        "OverwriteByExpression",
        "OverwritePartitionsDynamic",
        "Project",
        "ResultQueryStage",
        "ShuffleQueryStage",
        "Sort",
        "SortAggregate",
        "TableCacheQueryStage",
        "Union",
        "WriteFiles",
    }
)
"""They read all rows of their child when all of theirs are read. Of a broadcast join the side that is not broadcast; if the other one is empty
it may read nothing, and then the metric has counted no row at all."""

_READ_ALL: Final = frozenset(
    {
        "append",
        "collect",
        "collectAsArrowToPython",
        "collectToPython",
        "command",
        "count",
        "overwrite",
        "overwritePartitions",
    }
)
"""Actions that read all rows of their plan."""

_LINE: Final = re.compile(r"^(?P<depth>(?:[ :]  )*(?:[+:]- )?)(?:\*\(\d+\) |\* )?(?P<text>.*)$")


def read_whole(plan: str, metric: str, action: str) -> bool:
    r"""Return whether an action on a plan has read all rows that ``metric`` counts. False when the text does not say so.

    >>> plan = "Execute Insert\n+- WriteFiles\n   +- *(1) Project [a#1]\n      +- CollectMetrics m, [count(1)]\n         +- *(1) Scan"
    >>> read_whole(plan, "m", "command"), read_whole(plan.replace("Project", "LocalLimit"), "m", "command")
    (True, False)
    """
    paths = list(_paths(plan, metric))
    return bool(paths) and all(_asked(path, action) for path in paths)


def _asked(path: list[str], action: str) -> bool:
    """Return whether what is above the metric, from the metric up, asks for all."""
    for text in path:
        name = text.split(" ", 1)[0].split("(", 1)[0]
        if name in _ASKS_ALL:
            # Sorting samples its rows by a job of their own, which counts as well.
            return "rangepartitioning" not in text
        if name not in _PASS_ON:
            return False
    return action in _READ_ALL


def _paths(plan: str, metric: str) -> Iterator[list[str]]:
    """Yield, for each place of the metric in the plan that was run, the operators above it, nearest first."""
    above: list[tuple[int, str]] = []
    planned = None
    for line in plan.split("\n"):
        match = _LINE.match(line)
        assert match is not None, "it matches every line"
        depth, text = len(match["depth"]), match["text"].lstrip()
        if planned is not None and depth >= planned and not text.startswith("== "):
            continue
        # An adaptive plan shows what was run, and after it what had been planned at first.
        planned = depth if text.startswith("== Initial Plan") else None
        if text.startswith("== "):
            continue
        while above and above[-1][0] >= depth:
            above.pop()
        if text.startswith(f"CollectMetrics {metric},"):
            yield [operator for _, operator in reversed(above)]
        above.append((depth, text))
