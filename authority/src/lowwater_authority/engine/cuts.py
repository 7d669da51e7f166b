"""Steps of a cut: a slice gets the keys that the graph gives it, and follows its root's inputs.

A cut is described in core/cut.py; these are its steps 2 and 3.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core.slicing import as_slice
from lowwater_authority.journal import JournalError

if TYPE_CHECKING:
    from lowwater_authority.core.topology import Spec, Topology
    from lowwater_authority.engine.reads import Reads
    from lowwater_authority.engine.requests import Requests
    from lowwater_authority.engine.round import Round
    from lowwater_authority.journal import End
    from lowwater_authority.records.journal_pb2 import Snapshot

Inputs: TypeAlias = "frozenset[tuple[str, int]]"
"""Names and incarnations of what a computation reads."""

log = logging.getLogger(__name__)


def inputs_of(topology: Topology, name: str) -> Inputs:
    """Return what a computation reads now, each with its incarnation."""
    return frozenset(zip(topology.get(name).inputs, topology.required(name).input_incarnations, strict=True))


class Cuts:
    """Hands keys over between slices, and revokes claims that were made under older inputs."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests = requests
        self._served = requests.served
        self._holdings = requests.held
        self._reads = reads
        self._looked: dict[str, tuple[Spec, End]] = {}
        """Fruitless readings of a log, by name of the slice that waits for keys: the registration
        of the slice that hands them over, and the end of its log. Until either changes, the log is
        not read again."""

    def forget(self, name: str) -> None:
        """Forget a slice that this process does not serve any more."""
        self._looked.pop(name, None)

    async def cut_anew(self, name: str) -> None:
        """Give the log of a slice the keys that the graph gives it; see core/cut.py.

        Raises Unavailable while the other slice has not done its step.
        """
        if self._requests.topology.get(name).keys.source:
            await self._receive(name)
        else:
            await self._hand_over(name)

    async def _hand_over(self, name: str) -> None:
        def stage(round_: Round) -> str | None:
            computation, spec = as_slice(self._served.computation(name)), self._requests.topology.get(name)
            (start, end), root = computation.map.span, self._requests.topology.get(spec.slice_of)
            if spec.keys.source or (start, end) == spec.keys.span:
                return None
            to = spec.keys.receiver
            smaller = bool(spec.keys.span[1]) and (not end or spec.keys.span[1] < end)
            if start != spec.keys.span[0] or not smaller or (to and root.span_of(to) != (spec.keys.span[1], end)):
                msg = f"the keys of {name} in its log and in the graph differ: the store has lost records of one of them. Reset {root.name}"
                raise errors.Unavailable(msg, metadata={"computation": name})
            round_.touch(name, computation)
            round_.fenced += computation.hand_over(to)
            return to

        to = await self._requests.write(stage, alone=True, needs_root=False)
        if to is not None:
            facts = event("slice_moved_out", computation=name, to=to)
            log.info("%s has handed its last keys over to %s", name, to or "nobody: it has them already", extra=facts)

    async def _receive(self, name: str) -> None:
        """Append, to the slice's log and to the graph in one step, that the slice has its keys."""
        spec = self._requests.topology.get(name)
        state = await self._handed_over(spec.keys.source, name)
        if state is None:
            msg = f"{spec.keys.source} has not handed over the keys of {name} yet; try again"
            raise errors.Unavailable(msg, metadata={"computation": name, "source": spec.keys.source})

        def stage(round_: Round) -> bool:
            graph, computation = self._requests.topology, as_slice(self._served.computation(name))
            if graph.get(name) != spec:
                return False  # the slice looks at the graph again
            round_.touch(name, computation)
            if not computation.cut_version:  # else the store has lost only the graph's record of it
                computation.receive(state)
            round_.topology = graph.received(name)
            return True

        if await self._requests.write(stage, alone=True, needs_root=False):
            facts = event("slice_taken_in", computation=name, source=spec.keys.source)
            log.info("%s has taken its keys over from %s", name, spec.keys.source, extra=facts)

    async def _handed_over(self, source: str, name: str) -> Snapshot | None:
        """Return the durable state that a slice has handed over, whichever shard serves that slice.

        None: it has not handed over yet. Raises Unavailable.
        """
        if source in self._served:
            return await self._reads.ask(source, lambda slice_, _: as_slice(slice_).handed_over.get(name))
        spec = self._requests.topology.get(source)
        try:
            if self._looked.get(name) == (spec, await self._holdings.journal.end(source)):
                return None  # the log is as it was when it was read
            loaded = await self._holdings.journal.load(source)
            recovered = await self._holdings.recovered_in_pieces(spec, loaded)
        except JournalError as error:
            msg = f"the state of the keys of {name} cannot be read from the log of {source}: {error}. If that stays so, drop their computation by force, and register it again"
            raise errors.Unavailable(msg, metadata={"computation": name, "source": source}) from error
        state = as_slice(recovered.computation).handed_over.get(name)
        if state is None:
            self._looked[name] = spec, loaded.end
        else:
            self._looked.pop(name, None)
        return state

    async def follow_inputs(self, name: str, input_version: int, bound: int, claimed: Inputs | None) -> None:
        """Revoke the claims of a slice that were made under older inputs than the root has.

        ``input_version`` is a version of the root's inputs, and ``bound`` the root's value of the
        slice under it. If the graph has a newer version, this does nothing: the bound does not take
        the newer inputs into account, and the slice must ask the root again.

        ``claimed`` are the inputs that the claims were made under; None: unknown. If an input was
        added, no range may lead the bound. Otherwise the ranges keep their values, because a
        finished range has no owner who would finish it again.
        """

        def stage(round_: Round) -> None:
            computation, spec = self._requests.touch(round_, name), self._requests.topology.get(name)
            if self._requests.topology.required(name).input_version != input_version or computation.input_version in (
                0,
                spec.input_version,
            ):
                return
            added = claimed is None or not inputs_of(self._requests.topology, name) <= claimed
            round_.fenced += computation.revoke(spec.input_version, round_.now, bound=bound if added else None)

        await self._requests.write(stage, needs_root=False)
