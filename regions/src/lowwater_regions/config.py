"""What a region's agent is told in its file, and what it keeps in its folder."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from lowwater.cli.arguments import parse_duration
from lowwater.core.checks import is_name
from lowwater.core.private import make_private_folder, open_private
from lowwater.v1 import regions_pb2 as pb
from lowwater_regions.reference import REPLICATED, Sink, name_of


def positive_duration(text: str) -> float:
    """Return seconds above zero: what is done once in none is done without end."""
    found = parse_duration(text)
    if found <= 0:
        msg = f"{text!r} is too short; write it like 500ms, 1s or 5m"
        raise argparse.ArgumentTypeError(msg)
    return found


class BadConfig(Exception):
    """The file, or the folder, cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A reference, as the file of a region has it."""

    computation: str
    inputs: tuple[str, ...]
    regions: tuple[str, ...]
    home: str
    policy: str = REPLICATED
    sinks: tuple[Sink, ...] = ()
    low: str = ""
    """The computation at the local authority whose low watermark is L."""
    replicated: str = ""
    """The mirror there, whose low watermark is R while another region owns the reference."""
    output: str = ""
    """The replica of the outputs there, likewise; empty where they need none."""

    @property
    def name(self) -> str:
        """The reference's name."""
        return name_of(self.computation, self.inputs)


def read_config(path: Path, region: str | None) -> list[Kept]:
    """Return the references of a file, for the agent of a region; None: for an operator, who speaks for none. Raises BadConfig."""
    try:
        told = tomllib.loads(path.read_text("utf-8"))
        found = [_kept(each, region) for each in told["reference"]]
        _check_apart(found)
        return found
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise BadConfig(msg) from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        msg = f"{path}: {what}: write [[reference]] with computation, inputs, regions and home (docs/regions.md)"
        raise BadConfig(msg) from error


def _check_apart(found: list[Kept]) -> None:
    """Raise ValueError for two references that are one, or that read L of one computation: adopting one would reset the other's."""
    for which, told in (("reference", [each.name for each in found]), ("low", [each.low for each in found])):
        twice = sorted({each for each in told if told.count(each) > 1})
        if twice:
            msg = f"{twice[0]} is the {which} of two tables: give each its own"
            raise ValueError(msg)


def _kept(told: dict[str, Any], region: str | None) -> Kept:
    told = dict(told)
    for name, value in told.items():
        kind = {"inputs": str, "regions": str, "sinks": dict}.get(name)
        if kind is None and not isinstance(value, str):
            raise ValueError(f"{name} is no text")
        if kind is not None and not (isinstance(value, list) and all(isinstance(each, kind) for each in value)):
            raise ValueError(f"{name} is no list of {'texts' if kind is str else 'tables'}")
    if not all(isinstance(each.get("fences"), bool) for each in told.get("sinks", ())):
        raise ValueError("fences of a sink is neither true nor false")
    sinks = tuple(Sink(str(each["name"]), each["fences"]) for each in told.pop("sinks", ()))
    inputs, regions = tuple(sorted(told.pop("inputs"))), tuple(sorted(told.pop("regions")))
    told.setdefault("low", told["computation"])
    found = Kept(inputs=inputs, regions=regions, sinks=sinks, **told)
    if region is not None and region not in regions:
        msg = f"{found.name} may not be owned by {region}: its regions are {', '.join(regions)}"
        raise ValueError(msg)
    for name in filter(None, (found.low, found.replicated, found.output)):
        if not is_name(name):
            msg = f"{name!r} is no name of a local computation"
            raise ValueError(msg)
    if found.policy == REPLICATED and not found.replicated:
        msg = f"{found.name} is {REPLICATED}: say with replicated = ... which local computation tells R while another region owns it"
        raise ValueError(msg)
    return found


def registration(each: Kept) -> pb.RegisterReferenceRequest:
    """Return the request that makes a reference known; who asks is not in it yet."""
    return pb.RegisterReferenceRequest(
        computation=each.computation,
        inputs=each.inputs,
        regions=each.regions,
        home=each.home,
        policy=each.policy,
        sinks=[pb.ReferenceSink(name=sink.name, fences=sink.fences) for sink in each.sinks],
    )


@dataclass(slots=True)
class State:
    """What outlives an agent: who it is, which store it belongs to, and what it was told last."""

    agent: str
    run: int
    store: str = ""
    seen: int = 0
    records: dict[str, str] = field(default_factory=dict)
    relayed: dict[str, int] = field(default_factory=dict)
    """By relayed name the global incarnation that is published there."""


class StateFolder:
    """A folder that one agent uses at a time. Raises BadConfig when another does."""

    def __init__(self, folder: Path, now: int) -> None:
        self._path = folder / "state.json"
        try:
            make_private_folder(folder)
            self._lock: TextIO = open_private(folder / "lock", "w")
        except OSError as error:
            msg = f"{folder} cannot be used: {error.strerror}"
            raise BadConfig(msg) from error
        try:
            self.state = self._begin(now)
        except BadConfig:
            self._lock.close()
            raise
        self._written: dict[str, Any] = {}
        self.save()

    def _begin(self, now: int) -> State:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            told = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
            state = State(**{"agent": secrets.token_hex(8), "run": 0, **told})
            for record in state.records.values():
                json.loads(record)["number"]
            # Also greater than before when the file was lost, as long as the clock is right.
            state.run = max(state.run + 1, now)
        except BlockingIOError:
            msg = f"another agent uses {self._path.parent}: stop it, or give this one a folder of its own"
            raise BadConfig(msg) from None
        except OSError as error:
            msg = f"{self._path} cannot be read: {error.strerror}"
            raise BadConfig(msg) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"{self._path} is damaged ({error}): remove it; this region is then as one that was never here"
            raise BadConfig(msg) from error
        return state

    def save(self) -> None:
        """Make the state durable, if it has changed but for the position that was seen last."""
        told = asdict(self.state)
        if {**told, "seen": 0} == {**self._written, "seen": 0}:
            return
        beside = self._path.with_suffix(".new")
        with open_private(beside, "w") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._written = told

    def close(self) -> None:
        """Let another agent use the folder."""
        self._lock.close()
