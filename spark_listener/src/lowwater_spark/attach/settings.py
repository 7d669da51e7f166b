"""The settings of ``attach``: from arguments, else ``spark.lowwater.*``, else the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lowwater_spark.attach.progress import computation_name

__all__ = ["AttachSettings", "resolve"]

PREFIX: Final = "spark."
"""Default prefix of names, so that they differ from tracked stages, which are exact."""

_CONF: Final = "spark.lowwater."
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_PREFIXES: Final = re.compile(r"[A-Za-z0-9_.-]{0,64}")


@dataclass(frozen=True, slots=True)
class AttachSettings:
    """Settings of one session's attachment."""

    enabled: bool
    """False: nothing is started, nothing listened to, nothing sent."""
    address: str | None
    """Address of the authority; None for an embedded one."""
    namespace: str
    prefix: str
    data: Path | None
    """Folder of the embedded authority's journal; None for a temporary one."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Inputs by computation, without the namespace."""


def resolve(
    conf: Callable[[str], str | None],
    environ: Mapping[str, str] = os.environ,
    *,
    address: str | None,
    namespace: str | None,
    prefix: str | None,
    data: str | os.PathLike[str] | None,
    enabled: bool | None,
    inputs: Mapping[str, Sequence[str]] | None = None,
) -> AttachSettings:
    """Return the settings. ``conf`` returns a setting of the session by its full name.

    Raises ValueError for values without a meaning.
    """

    def setting(argument: str | None, name: str, variable: str = "") -> str | None:
        return argument if argument is not None else conf(_CONF + name) or environ.get(variable) or None

    if enabled is None:
        enabled = _flag(setting(None, "enabled", "LOWWATER_ENABLED"))
    chosen = setting(prefix, "prefix")
    chosen = PREFIX if chosen is None else chosen
    if _PREFIXES.fullmatch(chosen) is None:
        msg = f"the prefix {chosen!r} cannot begin a name; use at most 64 of A-Z a-z 0-9 _ . - (a namespace has an argument of its own)"
        raise ValueError(msg)
    folder = setting(None if data is None else os.fspath(data), "data")
    return AttachSettings(
        enabled,
        setting(address, "address", "LOWWATER_ADDRESS"),
        setting(namespace, "namespace") or "",
        chosen,
        None if folder is None else Path(folder).absolute(),
        _graph(chosen, inputs or {}),
    )


def _graph(prefix: str, inputs: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the inputs of each computation.

    An input that is a key of the mapping becomes the computation of that query. Any other input is
    the name of a computation.
    """

    def computation(query: str) -> str:
        return computation_name(prefix, query, "")

    graph: dict[str, tuple[str, ...]] = {}
    for query, reads in inputs.items():
        if not query or isinstance(reads, str) or not all(reads):
            msg = f"inputs is a mapping from a query's name to the list of what it reads, as in {{'hourly': ['flights']}}, and not {query!r}: {reads!r}"
            raise ValueError(msg)
        if query in reads:
            msg = f"inputs has {query!r} among what {query!r} reads; nothing can wait for itself"
            raise ValueError(msg)
        graph[computation(query)] = tuple(computation(name) if name in inputs else name for name in reads)
    return graph


def _flag(text: str | None) -> bool:
    if text is None or text.strip().lower() in _TRUE:
        return True
    if text.strip().lower() in _FALSE:
        return False
    msg = f"{_CONF}enabled (or LOWWATER_ENABLED) is {text!r}; use true or false"
    raise ValueError(msg)
