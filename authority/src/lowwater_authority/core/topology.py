"""The pipeline graph: which computations are registered, and which of them read which.

One versioned graph serves the whole deployment. MillWheel 4.5: the low watermark of A is min(oldest
work of A, low watermark of C : C outputs to A). All functions here are pure: a change returns a new
graph, which the shard appends before it uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.text import counted, duration
from lowwater.watermark import Watermark
from lowwater_authority.core.budget import LEAST, MOST
from lowwater_authority.core.cut import ALL_KEYS, MAX_SLICE_KEY, MAX_SLICES, UNCUT, WHOLE, Cut, Part, SliceKeys
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.history import HOUR, LARGEST_STEP, LEAST_STEP
from lowwater_authority.core.names import CUT, NAME, namespace_of, slice_name
from lowwater_authority.core.requests import NO_FOLD, Fold, bad_field
from lowwater_authority.core.times import ANY_SKEW, DAY
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

MAX_INPUTS: Final = 1000
MAX_SLICE_INPUTS: Final = 100_000
"""Most inputs of all slices of a computation together. Each slice is stored, and sent to every
reader of the graph, with all of its inputs."""
MAX_HEURISTICS: Final = 16
MAX_BUDGETS: Final = 4
MAX_HASH: Final = 64

TOMBSTONE_BYTES: Final = 8 << 20
"""Most bytes of all tombstones, enough for some 120,000. One namespace may use as many bytes as it
leaves free: half of them when no other namespace has any."""

DIGESTS: Final = (1 << 64) - 1
"""Mask of a digest: sums of digests are taken modulo 2^64."""

NAMED: Final = 20
"""Most names in an error message."""

UNREGISTERED: Final = ("incarnation", "input_version", "first", "slicing")
"""Fields of a Spec that a registration does not ask for; of ``slicing`` only the starts."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A registered computation, or the tombstone of a dropped one."""

    name: str
    inputs: tuple[str, ...] = ()
    heuristics: tuple[int, ...] = ()
    """Shares of the heuristic watermarks in parts per million, largest first."""
    key_hash: str = ""
    max_skew: int = DAY
    """Most microseconds by which its reports may lead the clock. 0 in a registration: see
    :meth:`Topology.register`."""
    incarnation: int = 1
    input_version: int = 1
    history_step: int = HOUR
    """Step of the completeness history, microseconds. 0 in a registration: the registered step, or
    one hour for a new name."""
    estimated: bool = False
    """True when the registration promises no watermark. Exact computations may not read this one.
    See :meth:`Topology.is_estimated` for an exact one that a heal has made its reader."""
    first: int = 1
    """Incarnation in which the name was registered. Later incarnations are resets; a drop and a new
    registration begin the next one."""
    budgets: tuple[int, ...] = ()
    """Lateness budgets in parts per million, least first."""
    all_pending: bool = False
    """True when its workers report all records that are still to come before their frontiers."""
    slicing: Cut | SliceKeys | None = None
    """Cut of a computation into slices, or keys of one slice; None for an uncut computation and for
    a tombstone."""

    @property
    def cut(self) -> Cut:
        """Its cut into slices; ``UNCUT`` where there is none."""
        return self.slicing if isinstance(self.slicing, Cut) else UNCUT

    @property
    def keys(self) -> SliceKeys:
        """The keys of a slice; ``ALL_KEYS`` where the computation is none."""
        return self.slicing if isinstance(self.slicing, SliceKeys) else ALL_KEYS

    @property
    def slice_of(self) -> str:
        """The root of a slice; empty where the computation is no slice."""
        return self.name.rpartition(CUT)[0] if CUT in self.name else ""

    def slice_specs(self) -> dict[str, Spec]:
        """Return the registrations of all slices by name, in the order of their keys."""
        spans = self.cut.spans()
        receivers = {part.source: self._slice(part.number) for part, _ in spans if part.source is not None}
        specs: dict[str, Spec] = {}
        for part, span in spans:
            name, source = self._slice(part.number), "" if part.source is None else self._slice(part.source)
            receiver = receivers.get(part.number, "")
            keys = SliceKeys(span, source, part.began_end, receiver, self.cut.version)
            specs[name] = replace(self, name=name, slicing=keys)
        return specs

    def _slice(self, number: int) -> str:
        return slice_name(self.name, number)

    def span_of(self, name: str) -> tuple[bytes, bytes] | None:
        """Return the keys of a slice; None when there is no slice of that name. O(slices)."""
        return next((span for part, span in self.cut.spans() if self._slice(part.number) == name), None)

    def slices_over(self, start: bytes, end: bytes) -> list[str]:
        """Return the names of the slices that share keys with an interval. O(slices)."""
        return [self._slice(number) for number in self.cut.over(start, end)]

    def _part(self, name: str) -> tuple[Part, tuple[bytes, bytes]]:
        """Return a slice and its keys. Raises InvalidArgument."""
        for part, span in self.cut.spans():
            if self._slice(part.number) == name:
                return part, span
        fix = f"name one of its slices: `lowwater slices list {self.name}` shows them"
        if not self.cut.starts:
            fix = f"{self.name} is not cut: to cut it, drop it and register it with slices"
        raise bad_field("slice", f"{name} is no slice of {self.name}", fix, computation=self.name)

    def split(self, name: str, at: bytes) -> tuple[Spec, str]:
        """Return the registration with a slice cut in two at a key, and the new slice's name.

        The new slice gets the keys from ``at`` on. It stays empty until it has received the state
        of these keys, see :meth:`received`. Raises InvalidArgument; Unavailable while another cut
        is under way.
        """
        part, (start, end) = self._part(name)
        receiver = self.cut.under_way()
        if receiver is not None and receiver.source is not None:
            new, source = self._slice(receiver.number), self._slice(receiver.source)
            msg = f"{new} is still taking over keys of {source}; try again when it has. A reset of {self.name} undoes that cut"
            raise errors.Unavailable(msg, metadata={"computation": self.name, "slice": new, "source": source})
        if not start < at or (end and at >= end) or len(at) > MAX_SLICE_KEY:
            keys = f"from 0x{start.hex()}" if start else "from the first key"
            keys += f" up to 0x{end.hex()}" if end else " on"
            _refuse(
                "at",
                f"0x{at.hex()}",
                f"give a key of 1 to {MAX_SLICE_KEY} bytes inside of {name}, which has the keys {keys}, and behind its first key",
            )
        number = self.cut.next_number or len(self.cut.parts)
        if number >= MAX_SLICES:
            _refuse(
                "slice",
                name,
                f"none: {self.name} has used up {MAX_SLICES} numbers of slices. Drop it and register it cut as it is needed",
            )
        spec = replace(self, slicing=self.cut.split(part, end, at, number))
        _validate_slices(spec, "slice")
        return spec, self._slice(number)

    def received(self, name: str) -> Spec:
        """Return the registration with a slice that has received its keys.

        The same registration if it had received them before. Raises InvalidArgument.
        """
        part, _ = self._part(name)
        return self if part.source is None else replace(self, slicing=self.cut.received(part))

    def renewed(self) -> Spec:
        """Return the registration of the next incarnation, without a cut that is under way."""
        slicing = self.slicing.renewed() if isinstance(self.slicing, Cut) else self.slicing
        return replace(self, incarnation=self.incarnation + 1, slicing=slicing)

    def too_far(self, micros: int) -> str:
        """Return in words that a time is further ahead of the clock than this spec allows."""
        skew = duration(self.max_skew / 1_000_000)
        return f"{Watermark(micros)} is ahead of the clock by more than the max_skew of {self.name}, {skew}"

    def same_registration(self, other: Spec) -> bool:
        """Return True when another registration asks for the same."""
        unregistered = {name: getattr(self, name) for name in UNREGISTERED}
        return replace(other, **unregistered) == self and other.cut.starts == self.cut.starts


def _conflict(registered: Spec, spec: Spec) -> errors.RegistrationConflict:
    """Return the refusal of another registration of a name: what differs, and how to change it."""
    differ = {
        field: f"{name} {words(registered)}, and not {words(spec)}"
        for field, name, words in _REGISTERED
        if getattr(registered, field) != getattr(spec, field)
    }
    change, again = (f"`lowwater {command} {spec.name}`" for command in ("set-inputs", "drop"))
    fixes: list[str] = []
    if "inputs" in differ and spec.inputs:
        fixes.append(f"{change[:-1]} {' '.join(spec.inputs)}` changes the inputs")
    if len(differ) > len(fixes):
        fixes.append(f"to change {'the rest' if fixes else 'that'}, drop it ({again}) and register it anew")
    fix = "; ".join(["register the same", *fixes])
    msg = f"{spec.name} is registered with {'; '.join(differ.values())}: {fix}."
    return errors.RegistrationConflict(msg, metadata={"computation": spec.name, "differ": " ".join(differ), "fix": fix})


def _shares(ppm: Iterable[int]) -> str:
    return ", ".join(f"{share / 1_000_000:g}" for share in ppm) or "none"


_REGISTERED: Final[tuple[tuple[str, str, Callable[[Spec], str]], ...]] = (
    ("inputs", "inputs", lambda spec: ", ".join(spec.inputs) or "none"),
    ("heuristics", "heuristics", lambda spec: _shares(spec.heuristics)),
    ("key_hash", "key hash", lambda spec: repr(spec.key_hash)),
    ("budgets", "lateness budgets", lambda spec: _shares(spec.budgets)),
    ("all_pending", "all_pending", lambda spec: str(spec.all_pending)),
    ("history_step", "history step", lambda spec: duration(spec.history_step / 1_000_000)),
    ("estimated", "estimated", lambda spec: str(spec.estimated)),
)
"""What a later registration may not change: the field, its name for people, its words."""


@dataclass(frozen=True)
class Topology:
    """The graph at one version. A derived value is computed once, unless a change has set it."""

    version: int = 0
    computations: Mapping[str, Spec] = field(default_factory=dict)
    dropped: Mapping[str, Spec] = field(default_factory=dict)
    """Tombstones of dropped names: the last incarnation and version of the inputs. A new
    registration of the name goes on above both, so that no reader takes its values for older ones.
    Tombstones stay until an operator has them forgotten."""
    forgotten: int = 0
    """Greatest incarnation, or version of the inputs, of all forgotten tombstones. Every new name
    is registered above it, and so above all that was ever published of that name."""

    @cached_property
    def _estimated(self) -> frozenset[str]:
        """Names of the estimated computations, by their registrations or by what they read."""
        return _estimated(self.computations)

    @cached_property
    def digest(self) -> int:
        """A number of 64 bits that tells two graphs of one version apart.

        It is the sum of the digests of all computations and tombstones. O(graph); O(change) once
        the graph was encoded as a change, or replayed.
        """
        return _digest(self.computations.values(), self.dropped.values())

    @property
    def needs_newest(self) -> bool:
        """True when the graph has cuts or ``forgotten``, so that older releases must not read it.

        O(graph).
        """
        return bool(self.forgotten) or any(spec.cut.starts for spec in self.computations.values())

    def get(self, name: str) -> Spec:
        """Return a computation. Raises UnknownComputation."""
        spec = self.computations.get(name)
        if spec is None:
            msg = f"there is no computation {name!r}; register it first, or check the spelling and the namespace"
            if name in self.dropped:
                msg = f"{name} was dropped; register it again to begin a new incarnation of it"
            raise errors.UnknownComputation(msg, metadata={"computation": name})
        return spec

    def _own(self, name: str) -> Spec:
        """Return a computation that is no slice. Raises UnknownComputation, InvalidArgument."""
        spec = self.get(name)
        if spec.slice_of:
            fix = f"do it to {spec.slice_of}, and its slices follow"
            raise bad_field("computation", f"{name} is a slice of {spec.slice_of}", fix, computation=name)
        return spec

    def check_incarnation(self, name: str, meant: int) -> None:
        """Refuse a late change: one that was meant for another incarnation; 0: any.

        Raises UnknownComputation, IncarnationChanged.
        """
        current = self.get(name).incarnation
        if meant not in (0, current):
            msg = f"incarnation {current} of {name} is in force, not {meant}; nothing was changed, look at it again"
            raise errors.IncarnationChanged(msg, metadata={"computation": name, "incarnation": str(current)})

    def refuse_slice(self, name: str) -> None:
        """Refuse a slice where an answer would promise that event times are complete.

        New inputs of a root are compared with the root's watermark alone. A slice whose watermark
        leads the root's would already have promised too much.

        Raises UnknownComputation, InvalidArgument.
        """
        root = self.get(name).slice_of
        if root:
            problem = f"is {name}, a slice of {root}: what is complete in one slice may be missing in another"
            raise bad_field("computation", problem, f"name {root}", computation=name)

    def required(self, name: str) -> Fold:
        """Return what a fold of a computation's inputs must name.

        An input that is not registered has the incarnation 0.
        """
        spec = self.get(name)
        if not spec.inputs:
            return NO_FOLD
        inputs = (self.computations.get(input_name) for input_name in spec.inputs)
        return Fold(spec.input_version, tuple(source.incarnation if source else 0 for source in inputs))

    def is_estimated(self, name: str) -> bool:
        """Return True when a computation's watermarks are estimates. O(1).

        It is registered as estimated, or reads an estimate. An exact computation can read an
        estimate only after a heal, see :meth:`merged`.
        """
        return name in self._estimated

    def register(self, spec: Spec, *, unused: bool = False) -> Topology:
        """Return the graph with a computation; the same graph when the same is registered.

        ``unused``: no worker has ever claimed the registered computation, and no intervals of tasks
        rely on it. Then an exact computation that no exact one reads may become estimated:
        authorities of 0.1 store estimated computations as exact.

        ``max_skew`` may grow; a smaller one changes nothing. Left out, it is the registered one, or
        a day for a new name, and at least the one of any input: an input's values were compared
        with the clock already, so a smaller one would only keep the reader from following. The
        exception is an input with ANY_SKEW, whose values are compared with no clock.

        Raises InvalidArgument, RegistrationConflict, Cycle, EstimatedInput.
        """
        registered = self.computations.get(spec.name)
        if not spec.history_step:
            spec = replace(spec, history_step=registered.history_step if registered else HOUR)
        if not spec.max_skew:
            inputs = [self.computations[name].max_skew for name in spec.inputs if name in self.computations]
            least = registered.max_skew if registered else DAY
            spec = replace(spec, max_skew=max([least, *(skew for skew in inputs if skew < ANY_SKEW)]))
        _validate(spec)
        if registered is not None:
            spec = replace(spec, max_skew=max(registered.max_skew, spec.max_skew))
            wider = replace(registered, max_skew=spec.max_skew)
            if wider.same_registration(spec):
                return self if wider == registered else self._with(wider)
            if unused and replace(registered, estimated=True).same_registration(spec):
                return self._with(replace(registered, estimated=True))
            if registered.cut.starts != spec.cut.starts:
                slices = len(registered.cut.starts) + 1
                msg = (
                    f"{spec.name} is registered with {counted(slices, 'slice')}, cut elsewhere than asked: "
                    "register the same, and cut slices in two as `lowwater slices split` does, or drop it and register it anew."
                )
                raise errors.RegistrationConflict(msg, metadata={"computation": spec.name, "slices": str(slices)})
            raise _conflict(registered, spec)
        before = self.dropped.get(spec.name) or Spec(spec.name, incarnation=0, input_version=0)
        first = max(before.incarnation, self.forgotten) + 1
        version = max(before.input_version, self.forgotten) + 1
        return self._with(replace(spec, incarnation=first, input_version=version, first=first))

    @property
    def tombstone_bytes(self) -> int:
        """Approximate bytes of the tombstones in the journal. O(tombstones)."""
        return sum(map(_tombstone_bytes, self.dropped))

    def without_tombstones(self, namespace: str) -> Topology:
        """Return the graph without the tombstones of a namespace; the same graph if it has none.

        ``forgotten`` takes their place, so that no name begins again with published values. But if
        a store loses changes, or another process still has a graph from before the drop, a merge
        with that graph brings the dropped computation back; see :meth:`merged`.
        """
        ended = [spec for name, spec in self.dropped.items() if namespace_of(name) == namespace]
        if not ended:
            return self
        numbers = chain.from_iterable((spec.incarnation, spec.input_version) for spec in ended)
        rest = {name: spec for name, spec in self.dropped.items() if namespace_of(name) != namespace}
        return Topology(self.version + 1, self.computations, rest, max(self.forgotten, *numbers))

    def _refuse_tombstones(self, name: str, ended: Iterable[str], most: int) -> None:
        """Raise LimitReached when the tombstones of a namespace would exceed what they leave free.

        A namespace without any tombstone may use all free bytes. O(tombstones).
        """
        namespace, more = namespace_of(name), sum(map(_tombstone_bytes, ended))
        own = others = 0
        prefix = f"{namespace}/" if namespace else ""
        for dropped in self.dropped:
            if dropped.startswith(prefix) and namespace_of(dropped) == namespace:
                own += _tombstone_bytes(dropped)
            else:
                others += _tombstone_bytes(dropped)
        free = most - own - others - more
        if free >= 0 and (not own or own + more <= free):
            return
        msg = (
            f"{name} cannot be dropped: dropped names of the namespace {namespace!r} take {own} "
            f"bytes, {name} would add {more}, and a namespace may take at most as many bytes as "
            f"are free of {most}. The authority remembers a dropped name so that it "
            "never begins again with older values. Register some of these names again, give a job "
            "one name for all of its runs, or let an operator run `lowwater journal copy "
            "--forget-dropped`."
        )
        raise errors.LimitReached(msg, metadata={"computation": name, "bound": "tombstones", "limit": str(most)})

    def drop(self, name: str, *, most: int = TOMBSTONE_BYTES) -> Topology:
        """Return the graph with a tombstone in place of a computation.

        ``most``: bytes that all tombstones may take. Raises UnknownComputation, StillRead,
        LimitReached. O(graph).
        """
        spec = self._own(name)
        readers = sorted(reader.name for reader in self.computations.values() if name in reader.inputs)
        if readers:
            some = ", ".join(readers[:NAMED]) + (f" and {len(readers) - NAMED} more" if len(readers) > NAMED else "")
            msg = (
                f"{name} is an input of {some}: without it they would hold for ever. Change their inputs with set_inputs, or drop them "
                "first."
            )
            raise errors.StillRead(msg, metadata={"computation": name, "consumers": ", ".join(readers[:NAMED])})
        ended = {part.name: _tombstone(part) for part in (spec, *spec.slice_specs().values())}
        self._refuse_tombstones(name, ended, most)
        rest = {other: registered for other, registered in self.computations.items() if other not in ended}
        return Topology(self.version + 1, rest, {**self.dropped, **ended}, self.forgotten)

    def set_inputs(self, name: str, inputs: Sequence[str]) -> Topology:
        """Return the graph with other inputs for a computation. Raises as register does.

        A computation that is registered as exact and read an estimate is reset, with all that reads
        it, because its published values were estimates.
        """
        registered = self._own(name)
        spec = replace(registered, inputs=tuple(inputs), input_version=registered.input_version + 1)
        _validate(spec)
        changed = self._with(spec)
        guessed = self.is_estimated(name) and not registered.estimated
        return changed.reset(name)[0] if guessed else changed

    def reset(self, name: str) -> tuple[Topology, list[str]]:
        """Return the graph after a reset, and the names of what was reset, in topological order.

        The computation, its slices, and all that reads them begin a new incarnation.
        """
        names = self.downstream(self._own(name).name)
        ended = [self.computations[n] for n in names]
        fresh = dict(chain.from_iterable(_with_slices(spec.renewed()) for spec in ended if not spec.slice_of))
        slices = chain.from_iterable(spec.slice_specs().items() for spec in ended)
        undone = {name: _tombstone(spec) for name, spec in slices if name not in fresh}
        rest = {n: spec for n, spec in self.computations.items() if n not in undone}
        changed = Topology(self.version + 1, {**rest, **fresh}, {**self.dropped, **undone}, self.forgotten)
        return changed, [n for n in names if n not in undone]

    def split(self, name: str, part: str, at: bytes) -> tuple[Topology, str]:
        """Return the graph with a slice of a computation cut in two, and the new slice's name.

        Raises as :meth:`Spec.split`, and UnknownComputation.
        """
        spec, new = self._own(name).split(part, at)
        return self._with(spec), new

    def received(self, name: str) -> Topology:
        """Return the graph with a slice that has received its keys.

        The same graph if it had received them before. Raises UnknownComputation.
        """
        root = self.get(self.get(name).slice_of)
        spec = root.received(name)
        return self if spec is root else self._with(spec)

    def merged(self, other: Topology, *, prefer_other: bool = False) -> Topology:
        """Return the merge of two graphs after a store lost changes: the newer registrations.

        Two different registrations of one age: one replaced a lost one. Then this graph's counts,
        or the other graph's with ``prefer_other``. Prefer the graph that the store has, because the
        owners of computations go by it. If the inputs differ, their version grows, so that no
        report that folds the lost inputs counts.

        The merged graph's version is above both when the graphs differ. Two graphs without a cycle
        may form one together: its computations hold until an operator changes their inputs. A
        registration is estimated if either graph says so, because its workers may already report
        estimates; it stays so through resets. An exact computation that reads an estimate then
        counts as estimated for as long as it does.
        """
        newest = dict(self.computations)
        for name, spec in other.computations.items():
            own = newest.get(name)
            if own is None:
                newest[name] = spec
                continue
            if _age(own) == _age(spec):
                newest[name] = _settled(spec, own) if prefer_other else _settled(own, spec)
            else:
                newest[name] = _recut_as(spec, own) if _age(own) < _age(spec) else _recut_as(own, spec)
            if own.first == spec.first:
                newest[name] = replace(newest[name], estimated=own.estimated or spec.estimated)
        dropped = dict(self.dropped)
        _follow_roots(newest, dropped)
        for name, spec in other.dropped.items():
            if name not in dropped or _age(dropped[name]) < _age(spec):
                dropped[name] = spec
        for name in dropped.keys() & newest.keys():
            # A dropped name stays dropped until it is registered again, in a later incarnation.
            ended = dropped if newest[name].incarnation > dropped[name].incarnation else newest
            del ended[name]
        _end_orphans(newest, dropped)
        forgotten = max(self.forgotten, other.forgotten)
        same = (newest, dropped, forgotten) == (self.computations, self.dropped, self.forgotten)
        if same and self.version >= other.version:
            return self
        return Topology(max(self.version, other.version) + 1, newest, dropped, forgotten)

    def downstream(self, name: str) -> list[str]:
        """Return a computation and all that reads it, directly or not, in topological order.

        If a heal has made a cycle, see :meth:`merged`, the order is the one of the search.
        O(graph).
        """
        self.get(name)
        readers: dict[str, list[str]] = {}
        for reader, spec in self.computations.items():
            for input_name in spec.inputs:
                readers.setdefault(input_name, []).append(reader)
        reached = {name: None}
        waiting = [name]
        while waiting:
            for reader in sorted(readers.get(waiting.pop(), ())):
                if reader not in reached:
                    reached[reader] = None
                    waiting.append(reader)
        inputs = {n: [i for i in self.computations[n].inputs if i in reached] for n in reached}
        try:
            return list(TopologicalSorter(inputs).static_order())
        except CycleError:
            return list(reached)

    def _with(self, spec: Spec) -> Topology:
        dropped, new = self.dropped, dict(_with_slices(spec))
        if not new.keys().isdisjoint(dropped):
            dropped = {name: ended for name, ended in dropped.items() if name not in new}
        computations = {**self.computations, **new}
        changed = Topology(self.version + 1, computations, dropped, self.forgotten)
        if not spec.estimated and spec.name not in self._estimated and self._estimated.isdisjoint(spec.inputs):
            vars(changed)["_estimated"] = self._estimated
        cycle = changed._cycle_through(spec.name)
        if cycle:
            msg = (
                f"the inputs would form a cycle: {' -> '.join(cycle)}. A watermark that waits for itself never moves: leave one of "
                "these inputs out, with set_inputs."
            )
            raise errors.Cycle(msg, metadata={"computation": spec.name, "field": "inputs", "cycle": " -> ".join(cycle)})
        changed._refuse_estimates(spec)
        return changed

    def _refuse_estimates(self, spec: Spec) -> None:
        """Raise EstimatedInput when a changed computation makes an exact one read an estimate."""
        others = self.computations.values() if spec.estimated else ()
        readers = [other for other in others if spec.name in other.inputs]
        for reader in (spec, *readers):
            for name in () if reader.estimated else reader.inputs:
                if self.is_estimated(name):
                    msg = (
                        f"{reader.name} is exact and would read {name}, whose watermark is only an estimate. Register "
                        f"{reader.name} as estimated too, or read exact inputs."
                    )
                    raise errors.EstimatedInput(msg, metadata={"computation": reader.name, "input": name})

    def _cycle_through(self, name: str) -> list[str]:
        """Return a path from a computation back to itself along its inputs; empty without one.

        Cost: all that it reads, directly or not.
        """
        readers = {name: ""}
        waiting = [name]
        while waiting:
            reader = waiting.pop()
            spec = self.computations.get(reader)
            for input_name in spec.inputs if spec else ():
                if input_name == name:
                    path = [name]
                    while reader:
                        path.append(reader)
                        reader = readers[reader]
                    return path[::-1]
                if input_name not in readers:
                    readers[input_name] = reader
                    waiting.append(input_name)
        return []

    def changed(self, over: Topology) -> list[str]:
        """Return the names that were registered, changed or dropped since another graph.

        O(graph), by identity.
        """
        return [*_differing(self.computations, over.computations), *_differing(self.dropped, over.dropped)]

    def encode(self, over: Topology | None = None) -> bytes:
        """Return the journal record of the graph, or of its changes since the graph ``over``."""
        if over is None or not over.version:
            return _record(
                self.version, 0, self.digest, self.computations.values(), self.dropped.values(), self.forgotten
            )
        names = self.changed(over)
        computations, dropped = self._named(names)
        grown = _digest(computations, dropped) - _digest(*over._named(names))
        vars(self).setdefault("digest", over.digest + grown & DIGESTS)
        return _record(self.version, over.version, over.digest, computations, dropped, self.forgotten)

    def _named(self, names: Sequence[str]) -> tuple[list[Spec], list[Spec]]:
        """Return the registrations and the tombstones of names."""
        both = [[specs[name] for name in names if name in specs] for specs in (self.computations, self.dropped)]
        return both[0], both[1]

    def replayed(self, payloads: Iterable[bytes]) -> Topology:
        """Return the graph after the next records of a log, whole graphs and changes.

        O(graph + records). Raises WrongGraph for a change that is not one of the graph before it.
        """
        version, computations, dropped = self.version, dict(self.computations), dict(self.dropped)
        digest, forgotten = vars(self).get("digest"), self.forgotten
        for payload in payloads:
            message = pb.Topology.FromString(payload)
            forgotten = max(forgotten, message.forgotten)
            if not message.over:
                computations, dropped = {}, {}
                _apply(message, computations, dropped)
                digest = message.digest or None
            else:
                if message.over != version:
                    msg = f"a change of version {message.over} of the graph stands behind version {version}"
                    raise WrongGraph(msg)
                if digest is None:
                    digest = _digest(computations.values(), dropped.values())
                if message.digest != digest:
                    msg = f"a change of another graph of version {version} stands behind this one"
                    raise WrongGraph(msg)
                digest = digest + _apply(message, computations, dropped) & DIGESTS
            version = message.version
        read = Topology(version, computations, dropped, forgotten)
        if digest is not None:
            vars(read)["digest"] = digest
        return read

    @classmethod
    def gathered(cls, payloads: Iterable[bytes]) -> Topology:
        """Return the newest registration of each computation in a log that has lost records.

        Every record that is still there was acknowledged, so it counts whatever was lost before it.
        O(records x graph).
        """
        gathered = cls()
        for payload in payloads:
            message = pb.Topology.FromString(payload)
            computations: dict[str, Spec] = {}
            dropped: dict[str, Spec] = {}
            _apply(message, computations, dropped)
            graph = cls(message.version, computations, dropped, message.forgotten)
            gathered = gathered.merged(graph, prefer_other=True)
        return gathered

    @classmethod
    def decode(cls, payload: bytes) -> Topology:
        """Return the graph of an encoded whole graph. Raises WrongGraph for an encoded change."""
        return cls().replayed([payload])


class WrongGraph(ValueError):
    """A change of the graph follows another graph in the log than the one that it changes."""


def _differing(specs: Mapping[str, Spec], over: Mapping[str, Spec]) -> list[str]:
    return [name for name, spec in specs.items() if (old := over.get(name)) is not spec and old != spec]


def _apply(message: pb.Topology, computations: dict[str, Spec], dropped: dict[str, Spec]) -> int:
    """Put a record's computations into a graph; return the growth of the digest by a change."""
    grown = 0
    for change in message.computations:
        name, new = change.name, _spec(change)
        if message.over:
            old = [spec for spec in (computations.get(name),) if spec], [spec for spec in (dropped.get(name),) if spec]
            grown += (_digest((), (new,)) if change.dropped else _digest((new,), ())) - _digest(*old)
        (computations if change.dropped else dropped).pop(name, None)
        (dropped if change.dropped else computations)[name] = new
    return grown


def _digest(computations: Iterable[Spec], dropped: Iterable[Spec]) -> int:
    """Return the sum of the digests of registrations and tombstones, as they are stored."""
    messages = (*map(_message, computations), *(_message(spec, dropped=True) for spec in dropped))
    digests = (blake2b(message.SerializeToString(deterministic=True), digest_size=8).digest() for message in messages)
    return sum(int.from_bytes(digest, "little") for digest in digests) & DIGESTS


def _record(
    version: int, over: int, digest: int, computations: Iterable[Spec], dropped: Iterable[Spec], forgotten: int
) -> bytes:
    ended = (_message(spec, dropped=True) for spec in dropped)
    changed = [*map(_message, computations), *ended]
    return pb.Topology(
        version=version, over=over, digest=digest, computations=changed, forgotten=forgotten
    ).SerializeToString()


def _message(spec: Spec, *, dropped: bool = False) -> pb.Computation:
    return pb.Computation(
        name=spec.name,
        inputs=spec.inputs,
        heuristics_ppm=spec.heuristics,
        key_hash=spec.key_hash,
        max_skew_micros=spec.max_skew,
        incarnation=spec.incarnation,
        input_version=spec.input_version,
        history_step_micros=spec.history_step,
        estimated=spec.estimated,
        dropped=dropped,
        first=spec.first if spec.first > 1 else 0,
        lateness_budgets_ppm=spec.budgets,
        all_pending=spec.all_pending,
        slices=spec.cut.starts,
        slice_start=spec.keys.span[0],
        slice_end=spec.keys.span[1],
        cut=[
            pb.Part(number=part.number, start=part.start, source=part.source, began_end=part.began_end)
            for part in spec.cut.recut
        ],
        cut_version=spec.cut.version or spec.keys.version,
        next_slice=spec.cut.next_number,
        source=spec.keys.source,
        began_end=spec.keys.began_end,
        taker=spec.keys.receiver,
    )


def _spec(message: pb.Computation) -> Spec:
    return Spec(
        message.name,
        tuple(message.inputs),
        tuple(message.heuristics_ppm),
        message.key_hash,
        message.max_skew_micros,
        message.incarnation,
        message.input_version,
        message.history_step_micros or HOUR,
        message.estimated,
        message.first or 1,
        tuple(message.lateness_budgets_ppm),
        message.all_pending,
        _slicing(message),
    )


def _slicing(message: pb.Computation) -> Cut | SliceKeys | None:
    span = message.slice_start, message.slice_end
    if span != WHOLE:
        began_end = message.began_end if message.HasField("began_end") else None
        return SliceKeys(span, message.source, began_end, message.taker, message.cut_version)
    if not message.slices:
        return None
    recut = tuple(
        Part(
            part.number,
            part.start,
            part.source if part.HasField("source") else None,
            part.began_end if part.HasField("began_end") else None,
        )
        for part in message.cut
    )
    return Cut(tuple(message.slices), recut, message.cut_version, message.next_slice)


def _tombstone(spec: Spec) -> Spec:
    """Return the tombstone of a computation: its name, incarnation and version of the inputs."""
    return Spec(spec.name, incarnation=spec.incarnation, input_version=spec.input_version)


def _tombstone_bytes(name: str) -> int:
    return len(name) + 24


def _with_slices(spec: Spec) -> Iterable[tuple[str, Spec]]:
    return [(spec.name, spec), *spec.slice_specs().items()]


def _follow_roots(computations: dict[str, Spec], dropped: dict[str, Spec]) -> None:
    """Rebuild the slices of every cut computation from its root.

    A slice that its root does not name is of another registration, or of a cut that is lost.
    """
    for root in [spec for spec in computations.values() if spec.cut.starts]:
        computations.update(root.slice_specs())
    _end_orphans(computations, dropped)


def _end_orphans(computations: dict[str, Spec], dropped: dict[str, Spec]) -> None:
    """Drop the slices that no root names: no request could drop them, nor the inputs they read."""
    for name, spec in list(computations.items()):
        root = spec.slice_of and computations.get(spec.slice_of)
        if spec.slice_of and (not root or root.span_of(name) is None):
            dropped[name] = _tombstone(computations.pop(name))


def _age(spec: Spec) -> tuple[int, int, int]:
    """Return numbers that grow with each change of a computation."""
    return spec.incarnation, spec.input_version, spec.cut.version or spec.keys.version


def _settled(spec: Spec, lost: Spec) -> Spec:
    """Return the change that counts of two of one age; see :meth:`Topology.merged`."""
    return spec if spec.inputs == lost.inputs else replace(spec, input_version=spec.input_version + 1)


def _recut_as(spec: Spec, other: Spec) -> Spec:
    """Return the newer of two registrations, with the newer of their two cuts.

    The older registration may have the newer cut, and logs of slices have followed that.
    """
    lives = [(life.first, life.incarnation, life.cut.starts) for life in (spec, other)]
    older = lives[0] != lives[1] or other.cut.version <= spec.cut.version
    return spec if older else replace(spec, slicing=other.slicing)


def _estimated(computations: Mapping[str, Spec]) -> frozenset[str]:
    """Return the names of estimated computations and of all that read them, directly or not.

    O(graph), times the longest path when any computation is estimated.
    """
    estimated = frozenset(name for name, spec in computations.items() if spec.estimated)
    while estimated:
        readers = [
            name
            for name, spec in computations.items()
            if name not in estimated and not estimated.isdisjoint(spec.inputs)
        ]
        if not readers:
            break
        estimated = estimated.union(readers)
    return estimated


def _validate(spec: Spec) -> None:
    names = (("name", spec.name), *((f"inputs[{i}]", name) for i, name in enumerate(spec.inputs)))
    for path, name in names:
        if not NAME.fullmatch(name):
            _refuse(path, name, "use [namespace/]name, each part 1 to 128 of A-Z a-z 0-9 _ . -")
    if len(set(spec.inputs)) != len(spec.inputs):
        _refuse("inputs", list(spec.inputs), "name each input once")
    if len(spec.heuristics) > MAX_HEURISTICS:
        _refuse("heuristics_ppm", f"{len(spec.heuristics)} shares", f"give at most {MAX_HEURISTICS}")
    if any(not 0 < share < PPM for share in spec.heuristics) or len(set(spec.heuristics)) != len(spec.heuristics):
        _refuse("heuristics_ppm", list(spec.heuristics), f"give different shares between 1 and {PPM - 1}")
    _validate_budgets(spec)
    _validate_slices(spec)
    if len(spec.key_hash) > MAX_HASH:
        _refuse("key_hash", f"{len(spec.key_hash)} characters", f"give at most {MAX_HASH}")
    if not 0 < spec.max_skew < 2**62:
        _refuse("max_skew_micros", spec.max_skew, "give a positive number of microseconds below 2^62")
    if not LEAST_STEP <= spec.history_step <= LARGEST_STEP:
        fix = f"give {LEAST_STEP} (one second) to {LARGEST_STEP} (366 days), or 0 for the registered one, else one hour"
        _refuse("history_step_micros", spec.history_step, fix)


def _validate_budgets(spec: Spec) -> None:
    if len(spec.budgets) > MAX_BUDGETS:
        _refuse("lateness_budgets_ppm", f"{len(spec.budgets)} budgets", f"give at most {MAX_BUDGETS}")
    if any(not LEAST <= ppm <= MOST for ppm in spec.budgets) or len(set(spec.budgets)) != len(spec.budgets):
        fix = f"give different shares between {LEAST} and {MOST} parts per million (0.0001 to 0.5)"
        _refuse("lateness_budgets_ppm", list(spec.budgets), fix)
    if spec.all_pending and (spec.inputs or not spec.budgets or not spec.heuristics):
        fix = "leave it out, or register an injector, without inputs, with a lateness budget and a heuristic share"
        _refuse("all_pending", value=True, fix=fix)


def _validate_slices(spec: Spec, field: str = "slices") -> None:
    """Refuse a cut that cannot be. ``field`` names the field of the request that asks for it."""
    if wrong := spec.cut.wrong():
        _refuse("slices", *wrong)
    slices = len(spec.cut.parts)
    if slices * len(spec.inputs) > MAX_SLICE_INPUTS:
        fix = f"cut it into fewer slices, or read fewer inputs: each slice has all of them, and together they may have {MAX_SLICE_INPUTS}"
        _refuse(field, f"{slices} slices with {len(spec.inputs)} inputs each", fix)
    if slices and spec.all_pending:
        fix = "leave one of the two out: slices do not report all records that are still to come"
        _refuse("all_pending", value=True, fix=fix)


def _refuse(path: str, value: object, fix: str) -> None:
    msg = f"{path}: {value!r} is refused; {fix}"
    raise errors.InvalidArgument(msg, metadata={"field": path, "fix": fix})
