"""What a checkpoint tells, as a file of declarations to fill in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowwater_spark.checkpoint.location import checkpoint_of
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.sidecar.declaration import BLANK, HISTORY, PROMISES, SAME_OPERATORS, needed
from lowwater_spark.sidecar.evidence import query_id
from lowwater_spark.sidecar.stateful import ON_ARRIVAL, operators, word_of
from lowwater_spark.sources.kinds import guess

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.location import Location

__all__ = ["describe", "looked_at"]


def looked_at(checkpoint: str, session: Any) -> Location:
    """Return where a checkpoint is that is only read. ``session()`` is called for a URI.

    Raises Unsupported for a file system on which it cannot be tracked.
    """
    if checkpoint.startswith("/"):
        return Path(checkpoint)
    # single_driver=True stands for the promise, for which nobody who only reads asks: no watermark
    # is reported that a second driver could make wrong.
    return checkpoint_of(session(), checkpoint, single_driver=True, looked_at=True)


def describe(checkpoint: str, session: Any) -> str:
    """Return a file of declarations for a checkpoint, filled in as far as the checkpoint shows.

    Raises OSError, CheckpointMismatch, Unsupported.
    """
    where = looked_at(checkpoint, session)
    query = query_id(where)
    log = CheckpointLog(where)
    last = log.last_committed()
    plan = None if last is None else log.plan(last)
    stateful = operators(where, plan)
    names = [operator.name for operator in stateful]
    unknown = [operator.folder.name for operator in stateful if not operator.name]
    lines = () if plan is None else plan.lines
    read = f"The query {query} has committed no batch yet."
    if plan is not None:
        read = f"The query {query} has committed batch {plan.batch}; of each source it is at:"
    sources = "\n".join(f'    "<{guess(line)}>",  # {line[:200]}' for line in lines) or '    "<files:/data/in>",'
    state = "It keeps nothing in Spark's state."
    if names:
        state = f"In Spark's state: {', '.join(word_of(name) or 'an operator that is not known' for name in names)}. Declare its retention, unless it is deduplication."
    unless = "" if set(names) - ON_ARRIVAL else "# "
    promised = [*needed(checkpoint), *([] if last is None else [HISTORY])]
    if not all(operator.named for operator in stateful):
        promised.append(SAME_OPERATORS)
    declared_operators = f"operators = {json.dumps([word_of(name) for name in names])}"
    if unknown:
        declared_operators = f"They cannot be declared: what is in state/{unknown[0]} is not known, and is refused."
    promises = "\n".join(f'    # {PROMISES[name]}\n    # "{name}",' for name in promised)
    return BLANK.format(
        checkpoint=json.dumps(checkpoint, ensure_ascii=False),
        read=read,
        sources=sources,
        state=state,
        retention=unless,
        mode=unless,
        operators=declared_operators,
        promises=promises,
    )
