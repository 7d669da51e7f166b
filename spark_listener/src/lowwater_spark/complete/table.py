"""Completeness of a Delta table, by the marks in its versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from lowwater_spark.complete.mark import COMPLETE, History, Mark, Version
from lowwater_spark.sources.tables.delta_log import Commit, TableLog
from lowwater_spark.sources.tables.versioned import writer_of

__all__ = ["history_of", "version_of"]


def version_of(commit: Commit) -> Version:
    """Return a commit as a version.

    >>> version_of(Commit(7, 0, True, "DELETE", "", "")).deletes
    'version 7 (DELETE) takes rows away'
    >>> version_of(Commit(7, 1, True, "MERGE", "", "")).rewinds
    'version 7 (MERGE) takes rows away'
    >>> version_of(Commit(7, 0, False, "RESTORE", "", "")).rewinds
    'version 7 (RESTORE) takes rows away'
    >>> version_of(Commit(7, 1, False, "WRITE", "", ""))
    Version(writes={}, rewinds='', deletes='')
    >>> version_of(Commit(0, 1, False, "CLONE", "", "")).rewinds
    ''
    """
    mark = Mark.from_json(commit.mark.get(COMPLETE))
    writes = {app: mark for app in commit.batches if writer_of(app)}
    what = f"{commit} takes rows away"
    if commit.operation == "DELETE":
        return Version(writes, deletes=what)
    # RESTORE, CLONE and REPLACE set the whole content of the table, and may lose older rows though
    # the commit removes no file. For example, a DELETE has removed all files in version 8, and a
    # RESTORE brings back version 3: the rows of versions 4 to 7 are lost, also for a reader that
    # ignores the DELETE. Only version 0 has no older rows to lose.
    anew = commit.operation in ("RESTORE", "CLONE") or "REPLACE" in commit.operation
    return Version(writes, rewinds=what if commit.removes or (anew and commit.version > 0) else "")


def history_of(
    log: TableLog, newest: int, apps: Collection[str], lost: Mapping[str, str] = MappingProxyType({})
) -> History:
    """Return the versions of a table's log up to ``newest``."""

    def version(number: int) -> Version | None:
        commit = log.commit(number)
        return None if commit is None else version_of(commit)

    return History(newest, apps, version, lost)
