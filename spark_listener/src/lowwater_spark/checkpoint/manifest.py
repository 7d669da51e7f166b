"""What lowwater keeps in a checkpoint beside Spark's own files: one manifest, of which each change is a new version.

``CHECKPOINT/lowwater/manifest/<version>.json``; the greatest number counts. A version is created and never replaced, and its name can be taken once:
so of two runs of one checkpoint none writes over what the other has noted. With one file that is replaced, an older run that still goes on and
notes something of its own would take back what the newer one has noted meanwhile.

Releases before it had seven files: ``query``, ``stages``, ``reading``, ``roots``, ``sink`` and ``read.json``, and ``state.json`` for each stage that has a state.
They are read once, when such a checkpoint is taken over. What decides is ``query.json``: while it is absent or of format 1 the seven are the truth, and
any manifest is ignored; once it is of format 2, the manifest is, and a release that knows only the seven refuses the checkpoint.

``state.json`` alone stays, and nobody reads it any more. The first release had no other of the seven, so it does not see that the manifest decides. Until a batch of this release
has begun, which it refuses (:mod:`lowwater_spark.track.batch_log`), it could still go on, and without the file it would take the stage for one that holds nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lowwater_spark.checkpoint.durable import make_directory, sync_directory, write_once, write_over
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch

__all__ = ["SECTIONS", "Manifest"]

_FORMAT: Final = 2

_OLD: Final = 1
"""The format of the seven files."""

SECTIONS: Final[Mapping[str, str]] = {
    "query": "What of the query decides which state the checkpoint holds.",
    "stages": "The names of its stages; None: one, of any name.",
    "reading": "The last reading of the inputs that counted, and its batch.",
    "roots": "By what the directories of the sources are known again, by path.",
    "kafka": "By source: the ids of the cluster and of the topics that it reads, where one of them was cut off, and how far each partition was seen to go.",
    "kafka_ids": "By source of an injector: the ids of the cluster and of the topics that it reads.",
    "kafka_out": "By the stage's directory and the topic that it writes into: the topic's id, by how many slots, since which batch, where they are staged.",
    "outputs": "By the full name of a stage and what it writes into: of a table its newest batch there, of a directory its first.",
    "delta": "By source: the id of the table that it reads, its version when the query began, and why nothing newer of it counts.",
    "iceberg": "By source: the uuid of the table that it reads, where the query began, how far snapshots were looked at, and why nothing newer of it counts.",
    "sink": "How far the output of a file sink is durable.",
    "read": "How far each output was read, as of a committed batch.",
    "watched": "Of a checkpoint that is only looked at: whose it is, what was declared of it, and its newest batch that was seen committed.",
    "state": "By the stage's directory: where its state is, for how many ranges, since which batch, and by what it is made.",
}
"""What a manifest has. Each is None while nothing is known."""

_FILES: Final = ("reading.json", "roots.json", "sink.json", "read.json", "stages.json")
"""The files of older releases, but for ``query.json``."""


class Manifest:
    """The manifest of one checkpoint, for one run or for one that is about to begin.

    :meth:`change` notes something in memory, :meth:`save` makes what was noted durable. Any thread
    may call it. ``probe`` is called with the name of each step; for tests.
    """

    def __init__(
        self, checkpoint: Location, probe: Callable[[str], None] = lambda _step: None, *, home: Location | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.home: Location = checkpoint if home is None else home
        """Where the directory ``lowwater`` is: the checkpoint itself, but for one that is only
        looked at."""
        self.run = 0
        """The number of the run that writes, see
        :func:`~lowwater_spark.checkpoint.identity.new_ordinal`; 0 before it has one."""
        self.last_run = 0
        """The number of the run that has written last, as far as it was read."""
        self._home = self.home / "lowwater"
        self._folder = self._home / "manifest"
        self._probe = probe
        self._lock = threading.RLock()
        self._noted: dict[str, Any] = {}
        """What was changed and is not durable yet."""
        self._version = 0
        """The version that was read or written last; 0: the seven files, or nothing."""
        self._content: dict[str, Any] = {}
        self.look()

    def __getitem__(self, section: str) -> Any:
        """Return a section, as it was read or noted last. None while nothing is known."""
        with self._lock:
            return self._noted[section] if section in self._noted else self._content[section]

    def __reduce__(self) -> tuple[Any, ...]:
        """Go along as None: the closure of an update may take its batch to the tasks, where nobody asks for it."""
        return type(None), ()

    def look(self) -> None:
        """Read it anew: until a run has its claim, an older one may still write.

        Raises CheckpointMismatch, and OSError.
        """
        with self._lock:
            if self._is_decided():
                self._version, self._content = self._newest()
            else:
                self._version, self._content = 0, self._read_old()

    def change(self, section: str, value: Any) -> None:
        """Note another content of a section, which is JSON.

        It is durable after the next :meth:`save`.
        """
        if section not in SECTIONS:
            msg = f"a manifest has no section {section!r}"
            raise ValueError(msg)
        with self._lock:
            self._noted[section] = value
            if self._content[section] == value:
                del self._noted[section]

    def begin(self, run: int) -> None:
        """Make it the manifest of a run, before its claim.

        Raises CheckpointMismatch when a newer one has begun.
        """
        self.take_over()
        self.run = run
        self.look()

    def keep(self, section: str, value: Any) -> None:
        """Note another content of a section, durable when it returns; when it raises, nothing was noted. Costs and raises as :meth:`save`."""
        with self._lock:
            self.change(section, value)
            try:
                self.save()
            except BaseException:
                # Who asks for it next must not take for durable what is not.
                self._noted.pop(section, None)
                raise

    def keep_entry(self, section: str, name: str, value: Any) -> None:
        """Note one entry of a section as :meth:`keep` does.

        What other threads note of the section meanwhile stays: a source looks while its neighbour
        is confirmed.
        """
        with self._lock:
            self.keep(section, {**(self[section] or {}), name: value})

    def attend(self) -> None:
        """Raise FileNotFoundError when the checkpoint is away: nothing may be concluded from what is not there."""
        self._folder.stat()

    def take_over(self) -> None:
        """Make the manifest the truth of this checkpoint, and delete what older releases have kept.

        Only when everything that can be refused was: a release before it cannot go on with the
        checkpoint afterwards. Whatever ends it in between, the next start finds either truth whole,
        and goes on from there. Costs nothing when it was done before, else eight fsyncs.
        """
        with self._lock:
            if not self._is_decided():
                make_directory(self._folder)
                # What stands there was left by a take-over that was not decided: the seven files
                # may have changed since.
                self._version = max(self._numbers(), default=0)
                self._create({**self._content, **self._noted})
                self._probe("created")
                write_over(self._home / "query.json", json.dumps({"format": _FORMAT}).encode())
                self._probe("decided")
            self._delete_old()

    def save(self) -> None:
        """Make durable what was noted: one new version, or none if nothing has changed.

        Only after :meth:`take_over`.

        Raises CheckpointMismatch when a newer run has written meanwhile: it has taken the
        checkpoint over. Costs two fsyncs, and three listings of the folder.
        """
        with self._lock:
            if self._noted:
                self._create({**self._content, **self._noted})

    # -- versions ----------------------------------------------------------------------------------

    def _create(self, content: dict[str, Any]) -> None:
        while True:
            number = self._version + 1
            entry = {"format": _FORMAT, "version": number, "run": self.run, **content}
            created = write_once(self._path(number), json.dumps(entry, indent=1).encode())
            # Also when it was created: of an old number, which had been deleted meanwhile, nobody
            # takes notice.
            if created and max(self._numbers()) == number:
                break
            self._version, theirs = self._newest()
            # Another session that was about to begin, and was refused, or an older run: what it
            # noted is kept where this one has noted nothing.
            content = {**theirs, **self._noted}
        self._version, self._content, self._noted = number, content, {}
        for old in self._numbers():
            if old < number - 1:
                self._path(old).unlink(missing_ok=True)

    def _newest(self) -> tuple[int, dict[str, Any]]:
        """Return the version that counts.

        Raises CheckpointMismatch for one that this run may not go on from.
        """
        while True:
            number = max(self._numbers(), default=0)
            if number == 0:
                msg = f"{self._folder} is empty, though the checkpoint was begun; restore the checkpoint as a whole"
                raise CheckpointMismatch(msg)
            with contextlib.suppress(FileNotFoundError):  # a newer one was created meanwhile, and this one deleted
                return number, self._read(self._path(number))

    def _read(self, path: Location) -> dict[str, Any]:
        content = _loaded(path)
        if content.get("format") != _FORMAT:
            raise _other(path, content.get("format"))
        unknown = sorted(content.keys() ^ {"format", "version", "run", *SECTIONS})
        if unknown:
            msg = f"{path} has other sections than this release knows: {', '.join(unknown)}. Use the release that wrote it, or a newer one."
            raise CheckpointMismatch(msg)
        if self.run and content["run"] > self.run:
            msg = f"a newer run, number {content['run']}, has taken the checkpoint of {self._home.parent} over, and this is number {self.run}"
            raise CheckpointMismatch(msg)
        self.last_run = content["run"]
        return {section: content[section] for section in SECTIONS}

    def _path(self, number: int) -> Location:
        return self._folder / f"{number}.json"

    def _numbers(self) -> list[int]:
        try:
            return [
                int(path.stem) for path in self._folder.iterdir() if path.suffix == ".json" and path.stem.isdecimal()
            ]
        except FileNotFoundError:
            return []

    # -- the seven files ---------------------------------------------------------------------------

    def _is_decided(self) -> bool:
        """Return whether the manifest is the truth.

        Raises CheckpointMismatch for a checkpoint of a newer release.
        """
        path = self._home / "query.json"
        found = _loaded(path).get("format") if path.exists() else _OLD
        if found not in (_OLD, _FORMAT):
            raise _other(path, found)
        return found == _FORMAT

    def _read_old(self) -> dict[str, Any]:
        if not isinstance(self.home, Path) or self.home != self.checkpoint:
            return dict.fromkeys(SECTIONS)  # those releases kept checkpoints on local file systems alone
        query, stages, reading, roots, sink, read = (
            self._old(f"lowwater/{name}.json") for name in ("query", "stages", "reading", "roots", "sink", "read")
        )
        return {
            "query": query,
            "stages": stages and stages["stages"],
            "reading": reading,
            "roots": roots and roots["roots"],
            "kafka": None,
            "kafka_ids": None,
            "kafka_out": None,
            "outputs": None,
            "delta": None,
            "iceberg": None,
            "sink": sink,
            "read": read,
            "watched": None,
            "state": self._old_states(),
        }

    def _old_states(self) -> dict[str, Any] | None:
        """Return by stage what its file says. It had no format."""
        assert isinstance(self.checkpoint, Path)
        stages = self.checkpoint / "lowwater" / "stages"
        homes = [Path(), *(path.relative_to(self.checkpoint) for path in stages.glob("*"))]
        found = {home.as_posix(): self._old((home / "lowwater/state.json").as_posix()) for home in homes}
        return {home: {"made": None, **entry} for home, entry in found.items() if entry is not None} or None

    def _old(self, name: str) -> dict[str, Any] | None:
        """Return what a file says, by its path in the checkpoint."""
        path = self.checkpoint / name
        try:
            content = _loaded(path)
        except FileNotFoundError:
            return None
        # The stages and the states had no format.
        if content.pop("format", _OLD) != _OLD:
            raise _other(path, "another")
        return content

    def _delete_old(self) -> None:
        if not isinstance(self.checkpoint, Path):
            return
        for path in (self._home / name for name in _FILES):
            if path.exists():
                path.unlink()
                self._probe(f"deleted {path.name}")
                sync_directory(path.parent)


def _loaded(path: Location) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        msg = f"{path} is no JSON; restore the checkpoint as a whole"
        raise CheckpointMismatch(msg) from error
    if not isinstance(content, dict):
        msg = f"{path} is no JSON object; restore the checkpoint as a whole"
        raise CheckpointMismatch(msg)
    return content


def _other(path: Location, found: object) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"{path} is of format {found}; this release reads {_OLD} and {_FORMAT}. Use the release that wrote it, or a newer one."
    )
