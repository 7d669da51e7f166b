"""Files of a checkpoint on HDFS, S3 or GCS, through Hadoop's client in the session's JVM.

Only the driver uses them. HDFS promises:

* One rename of the name node gives a file its name. The rename replaces a file only when asked to,
  and is in the name node's journal when the call returns.
* Each data node with a replica syncs a file of lowwater before the file gets its name.
* A file of Spark is as durable as the replicas of a closed file. All may be in memory for a while
  (``dfs.datanode.synconclose`` prevents that). A file whose replicas are lost is still listed and
  cannot be read, so it is never taken for a missing one.

S3 and GCS promise:

* A file is one object, which one request puts whole. When the call returns, the object is stored
  and in every listing.
* A name is taken once: the request demands that there is no such object. S3's clients before Hadoop
  3.4.2 look first and put then, and some stores that speak S3 do not know such a request. Spark
  itself has no such request: two drivers that plan one batch are both told that they have. So a
  checkpoint there needs a single driver
  (:func:`~lowwater_spark.checkpoint.location.checkpoint_of`).
* No file is renamed.
* A directory exists while an object is in it, or an object stands for it.

Each failure of a call is an OSError, as for a local file.
"""

from __future__ import annotations

import contextlib
import errno
import re
import uuid
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HADOOP", "HadoopFiles", "HadoopPath", "Status", "statuses_in"]

HADOOP: Final = frozenset({"hdfs"})
"""Schemes of file systems with an atomic rename that replaces nothing."""

_PUT: Final = frozenset({"gs", "s3a"})
"""Schemes of file systems where one request puts a whole file under its name."""

_FLAT: Final = frozenset({"s3a"})
"""Schemes of file systems that list all files below a directory in pages, whatever directories they
are in. Elsewhere each directory is a request of its own."""

_PART: Final = 10_000
"""Number of entries that come from the JVM in one text: some 4 MB."""

_UNLESS_THERE: Final = "fs.option.create.conditional.overwrite"
"""Option of a request to put: fail when the name exists."""

_PROMPT: Final[Mapping[str, str]] = {
    "fs.gs.http.connect-timeout": "5000",
    "fs.gs.http.max.retry": "1",
    "fs.gs.http.read-timeout": "10000",
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.connection.acquisition.timeout": "15s",
    "fs.s3a.connection.establish.timeout": "15s",
    "fs.s3a.connection.request.timeout": "15s",
    "fs.s3a.connection.timeout": "15s",
    "fs.s3a.retry.interval": "100ms",
    "fs.s3a.retry.limit": "1",
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.retry.policy.enabled": "false",
    "dfs.client.retry.window.base": "300",
    "dfs.client.socket-timeout": "10000",
    "ipc.client.connect.max.retries": "0",
    "ipc.client.connect.max.retries.on.timeouts": "0",
    "ipc.client.connect.timeout": "5000",
    "ipc.client.rpc-timeout.ms": "10000",
}
"""Settings of a client that answers or fails soon. After a failure the query holds, tells the
reason, and asks again. Spark's own client keeps its settings."""


class Status(NamedTuple):
    """An entry of a listing, with the methods of :class:`os.DirEntry` that sources of files use."""

    path: str
    """URI, with nothing escaped."""
    folder: bool
    modified: int
    """Modification time as Spark logs it, milliseconds since the epoch: whole seconds on S3."""
    version: str
    """ETag of an object on S3; empty on other file systems, and for a directory."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    def is_dir(self) -> bool:
        """Return whether this is a directory."""
        return self.folder

    def is_symlink(self) -> bool:
        """Return False: object stores have no links, and the client of HDFS shows none."""
        return False

    def inode(self) -> int:
        """Return the modification time: it tells directories of HDFS apart, as an inode does.

        A directory that replaces one of its name has the time at which its own last entry came.
        """
        return self.modified


_ENTRY: Final = re.compile(r"(true|false);.*? modification_time=(\d+);", re.DOTALL)
"""Hadoop's text for an entry of a listing, from the value of ``isDirectory`` on."""

_ETAG: Final = re.compile(r".*eTag=[\"']*(?:W/\"?)?([^\"' ,\]]*)", re.DOTALL)
"""Hadoop's text for an object of S3, up to the end of its ETag. The last one counts: before it are
names that people give."""

_NO_CLIENT: Final = "the session lacks the client of this file system, or the setting that names its class: docs/operate/spark-cluster.md has both"

_PLAIN_PROVIDERS: Final = ("", "ConfiguredFailoverProxyProvider")
"""Ends of the names of classes that never let a client of HDFS read from an observer."""


class HadoopFiles:
    """A file system of Hadoop's client: one object for each JVM and name node or bucket."""

    def __init__(self, gateway: Any, system: Any) -> None:
        jvm: Any = gateway.jvm
        hadoop: Any = jvm.org.apache.hadoop
        self.gateway = gateway
        self.system = system
        self.puts = str(system.getScheme()) in _PUT
        """True when one request puts a whole file; otherwise a file is written beside and renamed.
        """
        self.path: Any = hadoop.fs.Path
        self.paths: Any = hadoop.fs.FileUtil.stat2Paths
        self.text: Any = jvm.scala.runtime.ScalaRunTime.stringOf
        flag: Any = hadoop.fs.CreateFlag
        # SYNC_BLOCK: when a file of lowwater is closed, each data node syncs its replica and the
        # replica's directory. Otherwise a power cut could take a file that has its name already.
        self.flags: Any = jvm.java.util.EnumSet.of(flag.CREATE, flag.SYNC_BLOCK)
        permission: Any = hadoop.fs.permission.FsPermission
        self.permission: Any = permission.getFileDefault().applyUMask(permission.getUMask(system.getConf()))
        rename: Any = hadoop.fs.Options.Rename
        self.once, self.over = (gateway.new_array(rename, 1) for _ in range(2))
        self.once[0], self.over[0] = rename.NONE, rename.OVERWRITE

    @classmethod
    def of(cls, spark: SparkSession, path: str) -> HadoopFiles:
        """Return the file system of a path, as Spark reads the path.

        Connects to no server. Raises OSError for an impossible file system.
        """
        gateway: Any = spark.sparkContext._gateway
        hadoop: Any = gateway.jvm.org.apache.hadoop.fs
        conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        with _as_os_error(path):
            uri = hadoop.Path(path).toUri()
            uri = hadoop.FileSystem.getDefaultUri(conf) if uri.getScheme() is None else uri
            systems, place = _known.setdefault(gateway, {}), f"{uri.getScheme()}://{uri.getAuthority()}"
            if place not in systems:
                for name, value in _PROMPT.items():
                    conf.set(name, value)
                systems[place] = cls(gateway, hadoop.FileSystem.newInstance(uri, conf))
        return systems[place]

    def at(self, path: str) -> HadoopPath:
        """Return a path in this file system, as Spark reads the path."""
        with _as_os_error(path):
            return HadoopPath(self, str(self.system.makeQualified(self.path(path))))

    def entries(self, path: Any) -> str:
        """Return the entries of a directory as one text: py4j needs a call for each element."""
        return str(self.text(self.paths(self._listed(path))))

    def _listed(self, path: Any) -> Any:
        """Return the entries of a directory as an array of FileStatus."""
        # listStatus() gets an array of one path. For a bare path the client of S3 returns an array
        # of its own subclass of FileStatus, for which py4j finds no method stat2Paths().
        one = self.gateway.new_array(self.path, 1)
        one[0] = path
        return self.system.listStatus(one)

    def statuses(self, path: Any, *, below: bool) -> Iterator[Status]:
        """Yield the entries of a directory; with ``below`` all files in it and below it instead.

        Raises OSError for a text of another form than this release knows.
        """
        jvm: Any = self.gateway.jvm
        if below:
            files: Any = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(
                self.system.listFiles(path, True)  # noqa: FBT003 - methods of Java take no keywords
            )
            listed = files.toArray()
        else:
            listed = self._listed(path)
        for start in range(0, len(listed), _PART):
            # py4j passes no array for another type of array, and stat2Paths() needs this type.
            length = min(_PART, len(listed) - start)
            part = self.gateway.new_array(jvm.org.apache.hadoop.fs.FileStatus, length)
            jvm.java.lang.System.arraycopy(listed, start, part, 0, length)
            yield from statuses_in(str(self.text(self.paths(part))), str(self.text(part)))


def statuses_in(paths: str, text: str) -> Iterator[Status]:
    """Yield the entries in two texts of Hadoop: one has the paths alone, the other all fields.

    A name may look like fields. So each path is known before its entry is searched for.
    """
    # The text is like "Array(s3a://one/in/1, s3a://one/in/2)". No path has two slashes in a row
    # except after its scheme, so ``between`` cannot be a part of a path.
    first = paths.removeprefix("Array(").removesuffix(")")
    scheme, _, rest = first.partition("://")
    between = f", {scheme}://{rest.partition('/')[0]}/"
    head, *names = first.split(between)
    uris = [head, *(between[2:] + name for name in names)]
    starts, ends, at = list[int](), list[int](), 0
    for uri in uris:
        begin = f"{{path={uri}; isDirectory="
        at = text.find(begin, at) + len(begin)
        if at < len(begin):
            raise _unreadable(uri)
        if starts:
            # An entry ends where the next one begins, whose name may look like fields.
            ends.append(at - len(begin))
        starts.append(at)
    for uri, start, end in zip(uris, starts, [*ends, len(text)], strict=True):
        fields = _ENTRY.match(text, start, end)
        if fields is None:
            raise _unreadable(uri)
        folder, version = fields[1] == "true", ""
        if scheme == "s3a" and not folder:
            tag = _ETAG.match(text, fields.end(), end)
            version = "" if tag is None or tag[1] == "null" else tag[1]
            if not version:
                msg = f"{uri}: the listing has no ETag of this object, so lowwater could not tell whether it is written again"
                raise OSError(msg)
        yield Status(uri, folder, int(fields[2]), version)


def _unreadable(uri: str) -> OSError:
    return OSError(f"{uri}: Hadoop shows this entry of a listing in a form that this release does not know")


_known: Final[weakref.WeakKeyDictionary[Any, dict[str, HadoopFiles]]] = weakref.WeakKeyDictionary()
"""File systems by the gateway to the JVM, and by scheme and authority."""


@dataclass(order=True, unsafe_hash=True, repr=False, slots=True)
class HadoopPath:
    """A file or directory on a file system of Hadoop, with the methods of :class:`pathlib.Path`.

    ``uri`` is the path with scheme and authority, and with nothing escaped. Each method costs one
    or a few requests: a millisecond each on HDFS, tens of them on S3.
    """

    _files: HadoopFiles = field(compare=False)
    uri: str
    _java: Any = field(default=None, init=False, compare=False)

    def __truediv__(self, name: str) -> Self:
        """Return the path of this name in the directory."""
        return type(self)(self._files, f"{self.uri}/{name}")

    def __str__(self) -> str:
        """Return the URI."""
        return self.uri

    def __repr__(self) -> str:
        """Return the URI in the form of a call."""
        return f"HadoopPath({self.uri!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as text: a batch in an update's closure goes to tasks, which need no path."""
        return str, (self.uri,)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.uri.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """End of the name from its last dot."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """Name without the suffix."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> Self:
        """Directory of this path."""
        return type(self)(self._files, self.uri.rpartition("/")[0])

    @property
    def parents(self) -> list[Self]:
        """Directories above, the nearest first."""
        root = self._files.path(self.uri).toUri()
        folders, above = list[Self](), self
        while above.uri != f"{root.getScheme()}://{root.getAuthority()}":
            above = above.parent
            folders.append(above)
        return folders[:-1]

    # -- reading -----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether a file or a directory exists here."""
        return bool(self._call("exists"))

    def is_dir(self) -> bool:
        """Return whether this is a directory."""
        with contextlib.suppress(FileNotFoundError), _as_os_error(self.uri):
            return bool(self.stat().isDirectory())
        return False

    def is_file(self) -> bool:
        """Return whether this is a file."""
        with contextlib.suppress(FileNotFoundError), _as_os_error(self.uri):
            return bool(self.stat().isFile())
        return False

    def stat(self) -> Any:
        """Return Hadoop's status. Raises FileNotFoundError."""
        return self._call("getFileStatus")

    def size(self) -> int:
        """Return the size of a file in bytes. Raises FileNotFoundError."""
        with _as_os_error(self.uri):
            return int(self.stat().getLen())

    def iterdir(self) -> Iterator[Self]:
        """Return the entries of the directory. Raises FileNotFoundError."""
        with _as_os_error(self.uri):
            text = self._files.entries(self._path())
        # The text is like "Array(hdfs://one/ck/1, hdfs://one/ck/2)". No name has a slash, so
        # ``between`` cannot be a part of a name.
        between = f", {self.uri}/"
        names = text.removeprefix(f"Array({self.uri}/").removesuffix(")").split(between) if text != "Array()" else []
        return (self / name for name in names)

    def statuses(self) -> dict[str, list[Status]]:
        """Return the entries of the directory, and maybe of those below, by directory.

        One request for a thousand entries. On S3 the result has all files below the directory, and
        the directories that have files; elsewhere the entries of this directory alone. Raises
        FileNotFoundError when there is nothing of this name, and OSError.
        """
        below = self.uri.partition(":")[0] in _FLAT
        folders: dict[str, list[Status]] = {self.uri: []}
        with _as_os_error(self.uri):
            for status in self._files.statuses(self._path(), below=below):
                if not status.path.startswith(f"{self.uri}/"):
                    # Its directory would be another one, so no reader of this one would see it.
                    msg = (
                        f"{self.uri}: the listing has {status.path}, which is not below it: give the file another name"
                    )
                    raise OSError(msg)
                _add(folders, status)
        return folders

    def is_closed(self, modified: int) -> bool:
        """Return whether a file of HDFS is closed, and was since its modification time.

        A file that is open keeps its time while it grows, and gets another one when it is closed.
        Two requests. Raises FileNotFoundError.
        """
        # The time is read last. In the other order the file could be closed in between, and would
        # pass for one that was closed when it had the time of the listing.
        return bool(self._call("isFileClosed")) and int(self.stat().getModificationTime()) == modified

    def file_id(self) -> int:
        """Return the inode number of a file or directory of HDFS. Raises FileNotFoundError."""
        with _as_os_error(self.uri):
            return int(self.stat().getFileId())

    def catch_up(self) -> None:
        """Let the next reads of HDFS see all that the active name node has acknowledged by now.

        An observer may lag. One request where the client may read from one, else none. Raises
        OSError when the name node cannot answer it.
        """
        authority = self.uri.partition("://")[2].partition("/")[0]
        provider = self.setting(f"dfs.client.failover.proxy.provider.{authority}")
        if provider.rpartition(".")[2] not in _PLAIN_PROVIDERS:
            with _as_os_error(self.uri):
                self._files.system.msync()

    @property
    def client(self) -> str:
        """Name of the class of Hadoop's client."""
        return str(self._files.system.getClass().getName())

    def with_uri(self, uri: str) -> Self:
        """Return another path of the same file system."""
        return type(self)(self._files, uri)

    def setting(self, name: str) -> str:
        """Return a setting of the file system's client; empty if it has none."""
        return str(self._files.system.getConf().get(name, ""))

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Yield all entries of the directory and below; the pattern must be ``*``.

        Raises FileNotFoundError.
        """
        assert pattern == "*"
        for entry in self.iterdir():
            yield entry
            if entry.is_dir():
                yield from entry.rglob(pattern)

    def read_bytes(self) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with _as_os_error(self.uri), contextlib.closing(self._call("open")) as file:
            return bytes(file.readAllBytes())

    def read_range(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on, fewer where the file ends.

        Raises FileNotFoundError.
        """
        with _as_os_error(self.uri), contextlib.closing(self._call("open")) as file:
            file.seek(start)
            return bytes(file.readNBytes(length))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content of a file as text. Raises FileNotFoundError."""
        return self.read_bytes().decode(encoding)

    # -- writing: durable when a call returns ------------------------------------------------------

    def mkdir(self) -> None:
        """Create the directory and its missing parents, unless it exists."""
        if not self._call("mkdirs"):
            msg = f"{self.uri}: the directory cannot be created"
            raise OSError(msg)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete a file. Raises FileNotFoundError."""
        if not self._call("delete", False) and not missing_ok:  # noqa: FBT003 - methods of Java take no keywords
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self.uri)

    def write_once(self, data: bytes) -> bool:
        """Create a whole file with this content; False when the name exists, with any content."""
        if self._files.puts:
            return self._put_once(data)
        beside = self._beside()
        with beside._written(data):
            fresh = beside.rename_once(self)
        if not fresh:
            beside.unlink(missing_ok=True)
        return fresh

    def rename_once(self, to: HadoopPath) -> bool:
        """Rename a file or a directory; False when the new name exists.

        Not for file systems where files are put.
        """
        assert not self._files.puts
        try:
            with _as_os_error(to.uri):
                # ``once`` is the option Rename.NONE: rename() fails when ``to`` exists. Without an
                # option it would move the directory into an existing directory ``to``.
                self._files.system.rename(self._path(), to._path(), self._files.once)
        except FileExistsError:
            return False
        return True

    def remove_tree(self) -> None:
        """Delete a file or a directory with its content, if it exists."""
        self._call("delete", True)  # noqa: FBT003 - methods of Java take no keywords

    def write_over(self, data: bytes) -> None:
        """Create or replace a whole file."""
        if self._files.puts:
            self.parent.stat()
            self._put(data, over=True)
            return
        beside = self._beside()
        with beside._written(data), _as_os_error(self.uri):
            self._files.system.rename(beside._path(), self._path(), self._files.over)

    def _put_once(self, data: bytes) -> bool:
        self.parent.stat()
        try:
            self._put(data, over=False)
        except OSError:
            # If the name exists, the store refused the request for that reason; or the request has
            # put the file, and the store's answer was lost. The result is False for both, so the
            # caller must read the file before it takes the file for another run's.
            if not self.exists():
                raise
            return False
        return True

    def _put(self, data: bytes, *, over: bool) -> None:
        """Put a file. The directory need not exist.

        Raises FileExistsError or another OSError when the name exists and ``over`` is False.
        """
        with _as_os_error(self.uri):
            builder = self._files.system.createFile(self._path()).overwrite(over)
            # With the option the store refuses to put when the name exists. Hadoop's client before
            # 3.4.2 ignores the option and only looks first: of two writers at the same moment the
            # later one would win. So a checkpoint on S3 needs a single driver (see the module).
            file = (builder if over else builder.opt(_UNLESS_THERE, True)).build()  # noqa: FBT003 - methods of Java take no keywords
            try:
                if data:
                    file.write(data)
            except BaseException:
                # close() would store the bytes that were written before the failure as the whole
                # file. abort() stores nothing. The client of GCS has no abort(), and stores nothing
                # either while the file is not closed. The failure to raise is the first one.
                with contextlib.suppress(OSError), _as_os_error(self.uri):
                    file.abort()
                raise
            file.close()

    def _beside(self) -> Self:
        return self.parent / f".{self.name}.{uuid.uuid4().hex}.tmp"

    @contextlib.contextmanager
    def _written(self, data: bytes) -> Iterator[None]:
        """Write a file for the time of a ``with`` block, and delete it when the block fails."""
        try:
            self._write(data)
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(missing_ok=True)
            raise

    def _write(self, data: bytes) -> None:
        """Create a file. Raises FileExistsError, and FileNotFoundError without its directory."""
        system, files = self._files.system, self._files
        with _as_os_error(self.uri):
            path = self._path()
            replicas, block = system.getDefaultReplication(path), system.getDefaultBlockSize(path)
            file = system.createNonRecursive(path, files.permission, files.flags, 4096, replicas, block, None)
            try:
                if data:
                    file.write(data)
            finally:
                file.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        """Return the answer of the file system's method for this path. Raises OSError."""
        with _as_os_error(self.uri):
            return getattr(self._files.system, method)(self._path(), *arguments)

    def _path(self) -> Any:
        if self._java is None:
            # Without its slash the root of a bucket would be the user's home directory in it.
            root = "/" not in self.uri.partition("://")[2]
            self._java = self._files.path(f"{self.uri}/" if root else self.uri)
        return self._java


def _add(folders: dict[str, list[Status]], status: Status) -> None:
    """Add an entry to its directory, and that one to the directory above it if it is new."""
    above = status.path.rpartition("/")[0]
    if above not in folders:
        folders[above] = []
        _add(folders, Status(above, folder=True, modified=0, version=""))
    folders[above].append(status)


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Turn each failure of a call in the JVM into an OSError; BrokenPipeError: the JVM is gone."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as failure:
        raise _os_error(failure, path) from failure
    except Py4JNetworkError as failure:
        raise BrokenPipeError(errno.EPIPE, f"the JVM of Spark does not answer: {failure}", path) from failure
    except (Py4JError, PySparkException) as failure:
        msg = f"{path}: {failure}"
        raise OSError(msg) from failure


def _os_error(failure: Any, path: str) -> OSError:
    java = failure.java_exception
    try:
        name, message = str(java.getClass().getSimpleName()), str(java.getMessage()).partition("\n")[0]
    except Exception as error:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
        return OSError(f"{path}: the JVM of Spark does not answer: {error}")
    if name == "UnsupportedFileSystemException" or "ClassNotFoundException" in f"{name}: {message}":
        return OSError(f"{path}: {message}: {_NO_CLIENT}")
    if name == "FileNotFoundException":
        return FileNotFoundError(errno.ENOENT, message, path)
    if name == "FileAlreadyExistsException":
        return FileExistsError(errno.EEXIST, message, path)
    return OSError(f"{path}: {name}: {message}")
