"""Files of a checkpoint that Hadoop's client reaches, through the JVM of the session: HDFS, and S3 by S3A.

Only the driver asks for them. What is promised on HDFS:

* A name is given by one rename of the name node, which replaces nothing unless it is told to, and which is in its journal when the call returns.
* What lowwater writes is synced by each data node that has a replica before its file gets its name.
* What Spark has written is as durable as the replicas of a closed file are. They may all be in memory for a while (``dfs.datanode.synconclose`` is for
  that); a file whose replicas are lost stays there, and cannot be read, so it is never taken for one that is absent.

And on S3:

* A file is one object, and appears whole, by the one request that puts it. When the call returns, it is stored and in every listing.
* A name is taken once: the request says that there must be none. Clients before Hadoop 3.4.2 look before they put, and some stores that speak S3 do not know such a
  request. So it is for one driver alone, as everything there: Spark's own entries are put by whoever comes, and of two drivers that plan one batch both are told that they
  have (:func:`~lowwater_spark.checkpoint.location.checkpoint_of`).
* Nothing is renamed.
* A directory is there as long as anything is in it, or an object that stands for it.

Whatever a call fails with is an OSError, as of a local file.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
import weakref
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HADOOP", "HadoopFiles", "HadoopPath"]

HADOOP: Final = frozenset({"hdfs"})
"""The schemes of the file systems that rename at once, and replace nothing by it."""

_PUT: Final = frozenset({"s3a"})
"""The schemes of those where a file is put whole, under its name."""

_UNLESS_THERE: Final = "fs.option.create.conditional.overwrite"
"""Of a request to put: there must be nothing of this name."""

_PROMPT: Final[Mapping[str, str]] = {
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
"""Settings of a client that answers soon, by an error if need be. Who asks holds meanwhile, says
why, and asks again; Spark's own client keeps its settings."""


class HadoopFiles:
    """A file system as Hadoop's client of one JVM sees it.

    All of a JVM share the one of a name node, or of a bucket.
    """

    def __init__(self, gateway: Any, system: Any) -> None:
        jvm: Any = gateway.jvm
        hadoop: Any = jvm.org.apache.hadoop
        self.gateway = gateway
        self.system = system
        self.puts = str(system.getScheme()) in _PUT
        """Whether a file is put whole, under its name; else it is written beside, and renamed."""
        self.path: Any = hadoop.fs.Path
        self.paths: Any = hadoop.fs.FileUtil.stat2Paths
        self.text: Any = jvm.scala.runtime.ScalaRunTime.stringOf
        flag: Any = hadoop.fs.CreateFlag
        # Each replica is synced when the file is closed, and so is the directory that the data node
        # has it in.
        self.flags: Any = jvm.java.util.EnumSet.of(flag.CREATE, flag.SYNC_BLOCK)
        permission: Any = hadoop.fs.permission.FsPermission
        self.permission: Any = permission.getFileDefault().applyUMask(permission.getUMask(system.getConf()))
        rename: Any = hadoop.fs.Options.Rename
        self.once, self.over = (gateway.new_array(rename, 1) for _ in range(2))
        self.once[0], self.over[0] = rename.NONE, rename.OVERWRITE

    @classmethod
    def of(cls, spark: SparkSession, path: str) -> HadoopFiles:
        """Return the file system of a path, as Spark reads it.

        Asks nobody. Raises OSError for one that there cannot be.
        """
        gateway: Any = spark.sparkContext._gateway
        hadoop: Any = gateway.jvm.org.apache.hadoop.fs
        conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        with _as_os_error(path):
            uri = hadoop.Path(path).toUri()
            uri = hadoop.FileSystem.getDefaultUri(conf) if uri.getScheme() is None else uri
            known, place = _known.setdefault(gateway, {}), f"{uri.getScheme()}://{uri.getAuthority()}"
            if place not in known:
                for name, value in _PROMPT.items():
                    conf.set(name, value)
                known[place] = cls(gateway, hadoop.FileSystem.newInstance(uri, conf))
        return known[place]

    def at(self, path: str) -> HadoopPath:
        """Return a path in it, as Spark reads it."""
        with _as_os_error(path):
            return HadoopPath(self, str(self.system.makeQualified(self.path(path))))

    def entries(self, path: Any) -> str:
        """Return what is in a directory, as one text: each element by itself would be a call."""
        # Of one path the client of S3 makes an array of its own class, which no method takes.
        one = self.gateway.new_array(self.path, 1)
        one[0] = path
        return str(self.text(self.paths(self.system.listStatus(one))))


_known: Final[weakref.WeakKeyDictionary[Any, dict[str, HadoopFiles]]] = weakref.WeakKeyDictionary()
"""By the gateway to the JVM, and by scheme and authority."""


class HadoopPath:
    """A file or directory there.

    What :class:`pathlib.Path` has under the same names, it does likewise.

    ``uri`` is the path with scheme and authority, and with nothing escaped. Each call is one to the
    name node, or a few, which take a millisecond each, or to S3, tens of them.
    """

    __slots__ = ("_files", "_java", "uri")

    def __init__(self, files: HadoopFiles, uri: str) -> None:
        self.uri = uri
        self._files = files
        self._java: Any = None

    def __truediv__(self, name: str) -> Self:
        """Return what has this name in it."""
        return type(self)(self._files, f"{self.uri}/{name}")

    def __str__(self) -> str:
        """Return its URI."""
        return self.uri

    def __repr__(self) -> str:
        """Return it for people."""
        return f"HadoopPath({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same URI."""
        return isinstance(other, HadoopPath) and self.uri == other.uri

    def __hash__(self) -> int:
        """Return a hash of the URI."""
        return hash(self.uri)

    def __lt__(self, other: HadoopPath) -> bool:
        """Order by the URI."""
        return self.uri < other.uri

    def __reduce__(self) -> tuple[Any, ...]:
        """Go along as a text: the closure of an update may take its batch to the tasks, where nobody asks for it."""
        return str, (self.uri,)

    @property
    def name(self) -> str:
        """The last part."""
        return self.uri.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """The name without the suffix."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> Self:
        """The directory that it is in."""
        return type(self)(self._files, self.uri.rpartition("/")[0])

    @property
    def parents(self) -> list[Self]:
        """All directories above, the nearest first."""
        root = self._files.path(self.uri).toUri()
        found, above = list[Self](), self
        while above.uri != f"{root.getScheme()}://{root.getAuthority()}":
            above = above.parent
            found.append(above)
        return found[:-1]

    # -- reading -----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether there is a file or a directory."""
        with _as_os_error(self.uri):
            return bool(self._files.system.exists(self._path()))

    def is_dir(self) -> bool:
        """Return whether there is a directory."""
        with contextlib.suppress(FileNotFoundError), _as_os_error(self.uri):
            return bool(self._status().isDirectory())
        return False

    def is_file(self) -> bool:
        """Return whether there is a file."""
        with contextlib.suppress(FileNotFoundError), _as_os_error(self.uri):
            return bool(self._status().isFile())
        return False

    def stat(self) -> object:
        """Raise FileNotFoundError when nothing is there."""
        with _as_os_error(self.uri):
            return self._status()

    def size(self) -> int:
        """Return how many bytes a file has. Raises FileNotFoundError."""
        with _as_os_error(self.uri):
            return int(self._status().getLen())

    def iterdir(self) -> Iterator[Self]:
        """Return what is in the directory. Raises FileNotFoundError."""
        with _as_os_error(self.uri):
            text = self._files.entries(self._path())
        # No name has a slash, so this stands between two of them and nowhere else.
        between = f", {self.uri}/"
        names = text.removeprefix(f"Array({self.uri}/").removesuffix(")").split(between) if text != "Array()" else []
        return (self / name for name in names)

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Return all that is in the directory and below; the pattern must be ``*``.

        Raises FileNotFoundError.
        """
        assert pattern == "*"
        for entry in self.iterdir():
            yield entry
            if entry.is_dir():
                yield from entry.rglob(pattern)

    def read_bytes(self) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with _as_os_error(self.uri):
            file = self._files.system.open(self._path())
            try:
                return bytes(file.readAllBytes())
            finally:
                file.close()

    def read_range(self, start: int, length: int) -> bytes:
        """Return so many bytes from a place on, fewer where the file ends.

        Raises FileNotFoundError.
        """
        with _as_os_error(self.uri):
            file = self._files.system.open(self._path())
            try:
                file.seek(start)
                return bytes(file.readNBytes(length))
            finally:
                file.close()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content of a file as text. Raises FileNotFoundError."""
        return self.read_bytes().decode(encoding)

    # -- writing: durable when a call returns ------------------------------------------------------

    def mkdir(self) -> None:
        """Create a directory with its missing parents, unless it is there."""
        with _as_os_error(self.uri):
            made = self._files.system.mkdirs(self._path())
        if not made:
            msg = f"{self.uri}: the directory cannot be made"
            raise OSError(msg)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete a file. Raises FileNotFoundError."""
        with _as_os_error(self.uri):
            gone = self._files.system.delete(self._path(), False)  # noqa: FBT003 - Hadoop's own order
        if not gone and not missing_ok:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self.uri)

    def write_once(self, data: bytes) -> bool:
        """Create a file with this content, whole; False when the name was taken, by whatever content."""
        if self._files.puts:
            return self._put_once(data)
        beside = self._beside()
        with beside._written(data):
            fresh = beside.rename_once(self)
        if not fresh:
            beside.unlink(missing_ok=True)
        return fresh

    def rename_once(self, to: HadoopPath) -> bool:
        """Give a file or a directory another name; False when that was taken, by whatever there is.

        Not where files are put.
        """
        assert not self._files.puts
        try:
            with _as_os_error(to.uri):
                # Without the option a directory would be moved into the one that has the name.
                self._files.system.rename(self._path(), to._path(), self._files.once)
        except FileExistsError:
            return False
        return True

    def remove_tree(self) -> None:
        """Delete what is there with all that is in it, if anything is."""
        with _as_os_error(self.uri):
            self._files.system.delete(self._path(), True)  # noqa: FBT003 - Hadoop's own order

    def write_over(self, data: bytes) -> None:
        """Create or replace a file, whole."""
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
            # Refused, since it is there; or nobody has heard what became of the request, which may
            # have put it.
            if not self.exists():
                raise
            return False
        return True

    def _put(self, data: bytes, *, over: bool) -> None:
        """Put a file.

        Raises FileExistsError or another OSError when it is there. It asks for no directory.
        """
        with _as_os_error(self.uri):
            made = self._files.system.createFile(self._path()).overwrite(over)
            # A client that does not know it passes over it.
            file = (made if over else made.opt(_UNLESS_THERE, True)).build()  # noqa: FBT003 - Hadoop's own order
            try:
                if data:
                    file.write(data)
            except BaseException:
                file.abort()  # closed, it would be put as far as it is written
                raise
            file.close()

    def _beside(self) -> Self:
        return self.parent / f".{self.name}.{uuid.uuid4().hex}.tmp"

    @contextlib.contextmanager
    def _written(self, data: bytes) -> Iterator[None]:
        """Have a file of this content meanwhile, which is deleted when it fails."""
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

    def _status(self) -> Any:
        return self._files.system.getFileStatus(self._path())

    def _path(self) -> Any:
        if self._java is None:
            self._java = self._files.path(self.uri)
        return self._java


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Raise OSError for whatever a call in the JVM has failed with; BrokenPipeError when there is no JVM any more."""
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
        name, said = str(java.getClass().getSimpleName()), str(java.getMessage()).partition("\n")[0]
    except Exception as error:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
        return OSError(f"{path}: the JVM of Spark does not answer: {error}")
    if name == "FileNotFoundException":
        return FileNotFoundError(errno.ENOENT, said, path)
    if name == "FileAlreadyExistsException":
        return FileExistsError(errno.EEXIST, said, path)
    return OSError(f"{path}: {name}: {said}")
