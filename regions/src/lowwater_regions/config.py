"""The file of a region's agent, and the folder with the state that outlives it."""

from __future__ import annotations

import argparse
import fcntl
import json
import secrets
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from lowwater.cli.arguments import parse_duration
from lowwater.core.checks import is_name
from lowwater.core.durable import write_durably
from lowwater.core.private import make_private_folder, open_private
from lowwater.v1 import regions_pb2 as pb
from lowwater_regions.reference import REPLICATED, Sink, name_of


def positive_duration(text: str) -> float:
    """Return seconds above zero: a period of zero would be a loop without a pause."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is too short; write it like 500ms, 1s or 5m")
    return seconds


class BadConfig(Exception):
    """An unusable file or folder; the message says what to change."""


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """A reference in the file of a region."""

    computation: str
    inputs: tuple[str, ...]
    regions: tuple[str, ...]
    home: str
    policy: str = REPLICATED
    sinks: tuple[Sink, ...] = ()
    low: str = ""
    """Local computation whose low watermark is L."""
    replicated: str = ""
    """Local mirror whose low watermark is R while another region owns the reference."""
    output: str = ""
    """Local replica of the outputs, the same way; empty where they need none."""

    @property
    def name(self) -> str:
        """The reference's name."""
        return name_of(self.computation, self.inputs)


def read_config(path: Path, region: str | None) -> list[ReferenceConfig]:
    """Return the references of a file. Raises BadConfig.

    ``region`` is the agent's; None for an operator, who speaks for no region.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))["reference"]
        configs = [_config(table, region) for table in tables]
        _check_apart(configs)
        return configs
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        msg = (
            f"{path}: {what}: write [[reference]] with computation, inputs, regions and home (docs/operate/regions.md)"
        )
        raise BadConfig(msg) from error


def _check_apart(configs: list[ReferenceConfig]) -> None:
    """Raise ValueError for two tables of one reference, or with L of one computation.

    Adopting one of them would reset the computation of the other.
    """
    fields = ("reference", [config.name for config in configs]), ("low", [config.low for config in configs])
    for which, names in fields:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is the {which} of two tables: give each its own")


def _config(table: dict[str, Any], region: str | None) -> ReferenceConfig:
    table = dict(table)
    for name, value in table.items():
        kind = {"inputs": str, "regions": str, "sinks": dict}.get(name)
        if kind is None and not isinstance(value, str):
            raise ValueError(f"{name} is no text")
        if kind is not None and not (isinstance(value, list) and all(isinstance(item, kind) for item in value)):
            raise ValueError(f"{name} is no list of {'texts' if kind is str else 'tables'}")
    if not all(isinstance(sink.get("fences"), bool) for sink in table.get("sinks", ())):
        raise ValueError("fences of a sink is neither true nor false")
    sinks = tuple(Sink(str(sink["name"]), sink["fences"]) for sink in table.pop("sinks", ()))
    inputs, regions = tuple(sorted(table.pop("inputs"))), tuple(sorted(table.pop("regions")))
    table.setdefault("low", table["computation"])
    config = ReferenceConfig(inputs=inputs, regions=regions, sinks=sinks, **table)
    if region is not None and region not in regions:
        raise ValueError(f"{config.name} may not be owned by {region}: its regions are {', '.join(regions)}")
    for name in filter(None, (config.low, config.replicated, config.output)):
        if not is_name(name):
            raise ValueError(f"{name!r} is no name of a local computation")
    if config.policy == REPLICATED and not config.replicated:
        msg = f"{config.name} is {REPLICATED}: say with replicated = ... which local computation tells R while another region owns it"
        raise ValueError(msg)
    return config


def registration(config: ReferenceConfig) -> pb.RegisterReferenceRequest:
    """Return the request that registers a reference, without its caller."""
    return pb.RegisterReferenceRequest(
        computation=config.computation,
        inputs=config.inputs,
        regions=config.regions,
        home=config.home,
        policy=config.policy,
        sinks=[pb.ReferenceSink(name=sink.name, fences=sink.fences) for sink in config.sinks],
    )


@dataclass(slots=True)
class State:
    """State that outlives an agent: its identity, its store, and the last records."""

    agent: str
    run: int
    store: str = ""
    seen: int = 0
    records: dict[str, str] = field(default_factory=dict)
    relayed: dict[str, int] = field(default_factory=dict)
    """Published global incarnation by relayed name."""


class StateFolder:
    """A folder that one agent uses at a time. Raises BadConfig when another does."""

    def __init__(self, folder: Path, now: int) -> None:
        self._path = folder / "state.json"
        try:
            make_private_folder(folder)
            self._lock: TextIO = open_private(folder / "lock", "w")
        except OSError as error:
            raise BadConfig(f"{folder} cannot be used: {error.strerror}") from error
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
            stored = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
            state = State(**{"agent": secrets.token_hex(8), "run": 0, **stored})
            for record in state.records.values():
                json.loads(record)["number"]
            # The clock makes the run grow also after a loss of the file.
            state.run = max(state.run + 1, now)
        except BlockingIOError:
            msg = f"another agent uses {self._path.parent}: stop it, or give this one a folder of its own"
            raise BadConfig(msg) from None
        except OSError as error:
            raise BadConfig(f"{self._path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"{self._path} is damaged ({error}): remove it; this region then starts as a new one"
            raise BadConfig(msg) from error
        return state

    def save(self) -> None:
        """Make the state durable, unless only ``seen`` has changed."""
        state = asdict(self.state)
        if {**state, "seen": 0} == {**self._written, "seen": 0}:
            return
        write_durably(self._path, json.dumps(state), private=True)
        self._written = state

    def close(self) -> None:
        """Let another agent use the folder."""
        self._lock.close()
