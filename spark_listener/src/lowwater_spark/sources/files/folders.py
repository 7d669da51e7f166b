"""What a file source asks of the file system of its directory: a listing, and a few names.

There are two kinds of file systems: the local one, with NFS, and those that Hadoop's client in the
session's JVM reaches: HDFS and object stores. The rules of a listing are the same for both
(:mod:`lowwater_spark.sources.files.source`). They need of a file system:

* A listing that begins after W was read has every file that was there, if no file is renamed
  meanwhile. HDFS lists a directory in parts, and S3 and GCS list in pages; each part shows all that
  was there when the part was asked for. An observer of HDFS may lag, so a listing first lets the
  client catch up with the active name node.
* A file whose rows count is whole. An object is: it is in no listing while it is uploaded. A
  multipart upload appears when it is completed, and S3 gives it the modification time of its begin.
  HDFS lists a file that is open, and keeps its time while it grows. So HDFS is asked once of each
  file, when it is new to a run, whether it is closed. A file that is opened again is not noticed.
* A file that was written again has another modification time, or another version where the listing
  shows one. S3 has times of whole seconds, and an ETag of each object.

Azure's stores (ABFS) break the second rule: they list a file when it is created, and its time of
whole seconds need not change when its rows come. So a source there is refused.

A rename in an object store is a copy and a deletion, so a listing in pages can miss both names. So
a listing in a store is compared with one before it, as a local one is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from lowwater_spark.checkpoint.hadoop import HADOOP, HadoopPath, Status
from lowwater_spark.checkpoint.location import OBJECT_STORES, Location, glance
from lowwater_spark.sources.files import writers
from lowwater_spark.sources.files.roots import Identity, identity_of

__all__ = ["HERE", "Entry", "Folders", "Listing", "folders_of"]


Entry = os.DirEntry[str] | Status
"""Entry of a directory, on the local file system or on another one."""

Listing = Callable[[str], Sequence[Entry]]
"""Function that returns the entries of a directory below a root, in one listing of the root. None
for a directory that was removed during the listing. Raises FileNotFoundError for the root."""


class Folders(Protocol):
    """The file system of a source's directory."""

    @property
    def pause(self) -> float:
        """Least seconds between two looks at the directory."""
        ...

    @property
    def settles(self) -> bool:
        """True when a directory's inode tells whether a batch of lowwater is still the same."""
        ...

    def at(self, path: str) -> Location:
        """Return the location of a path."""
        ...

    def listing(self, root: str) -> Listing:
        """Begin a listing. Raises OSError."""
        ...

    def is_whole(self, path: str, modified: int) -> bool:
        """Return whether a listed file has all of its rows. Raises OSError."""
        ...

    def identity(self, root: str) -> Identity:
        """Return the identity of a directory. Raises OSError."""
        ...

    def above(self, root: str) -> Iterator[str]:
        """Yield the directories above whose writers write here: this one is a partition."""
        ...


@dataclass(frozen=True, slots=True)
class _Here:
    """The local file system."""

    pause: float = 0.0
    settles: bool = True

    def at(self, path: str) -> Path:
        return Path(path)

    def listing(self, root: str) -> Listing:
        def entries(folder: str) -> list[os.DirEntry[str]]:
            try:
                with os.scandir(folder) as listing:
                    return list(listing)
            except FileNotFoundError:
                if folder == root:
                    raise
                return []

        return entries

    def is_whole(self, path: str, modified: int) -> bool:
        """Return True: each write to a local file changes its modification time."""
        del path, modified
        return True

    def identity(self, root: str) -> Identity:
        return identity_of(root)

    def above(self, root: str) -> Iterator[str]:
        return writers.above(root)


HERE: Final[Folders] = _Here()


@dataclass(frozen=True, slots=True)
class _Remote:
    """A file system of Hadoop's client."""

    base: HadoopPath
    """Root of the file system."""
    endpoint: str
    """Address of an object store, as far as the session's settings name it."""
    pause: float = 1.0

    @property
    def settles(self) -> bool:
        return self._scheme in HADOOP

    @property
    def _scheme(self) -> str:
        return self.base.uri.partition(":")[0]

    def at(self, path: str) -> HadoopPath:
        return self.base.with_uri(path)

    def listing(self, root: str) -> Listing:
        if self._scheme in HADOOP:
            self.base.catch_up()
        listed = self.at(root).statuses()

        def entries(folder: str) -> list[Status]:
            if folder in listed:
                return listed[folder]
            try:
                return self.at(folder).statuses()[folder]
            except FileNotFoundError:
                return []

        return entries

    def is_whole(self, path: str, modified: int) -> bool:
        return self._scheme not in HADOOP or self.at(path).is_closed(modified)

    def identity(self, root: str) -> Identity:
        """Return the inode number on HDFS, and in an object store the bucket with its address.

        A directory in an object store is a part of names, and has nothing of its own.
        """
        if self._scheme in OBJECT_STORES:
            return Identity(f"{self.base.uri} at {self.endpoint or 'the default endpoint'}", None)
        return Identity(self.at(root).file_id(), None)

    def above(self, root: str) -> Iterator[str]:
        folder, _, name = root.rpartition("/")
        while "=" in name:
            yield folder
            folder, _, name = folder.rpartition("/")


def folders_of(location: Location) -> Folders:
    """Return the file system of a location."""
    if isinstance(location, Path):
        return HERE
    base = location.with_uri("/".join(location.uri.split("/")[:3]))
    return _Remote(base, base.setting(_ENDPOINTS.get(base.uri.partition(":")[0], "")), glance(base))


_ENDPOINTS: Final = {"gs": "fs.gs.storage.root.url", "s3a": "fs.s3a.endpoint"}
"""Settings that name the server of a store."""
