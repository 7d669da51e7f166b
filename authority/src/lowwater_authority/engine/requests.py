"""Rooms and steps that all requests to a shard share: graph, computation, round, retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, Unpack

from lowwater import errors
from lowwater_authority.core.times import MIN
from lowwater_authority.engine.round import GivenUp, GraphMoved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.engine.confirmation import Confirmation
    from lowwater_authority.engine.placement import Lows
    from lowwater_authority.engine.round import Round, Rounds, Sharing
    from lowwater_authority.engine.served import Served
    from lowwater_authority.engine.takeover import Takeover

    Permit = Callable[[Iterable[str]], None]
    """Check that raises PermissionDenied unless these computations may begin new incarnations."""
    Room = Callable[[Collection[str]], None]
    """Check that raises Overloaded unless one more computation is allowed beside these."""
    RoomForRanges = Callable[[int], None]
    """Check that raises Overloaded unless a computation may have this number of ranges."""

T = TypeVar("T")


def allow(*_: object) -> None:
    """Allow everything: the default of ``permit`` and ``room``."""


class Requests:
    """Runs requests in rounds, for the fronts of a shard."""

    def __init__(self, served: Served, rounds: Rounds, confirmation: Confirmation, takeover: Takeover) -> None:
        self.served = served
        self.held = served.held
        self.rounds = rounds
        self.confirmation = confirmation
        self.takeover = takeover

    @property
    def topology(self) -> Topology:
        """The graph, as far as this process has read it."""
        return self.held.topology

    async def read(self, read: Callable[[Round], T]) -> T:
        """Answer a question when all staged state is durable.

        Raises Unavailable when that takes longer than ``wait_seconds``.
        """
        async with self.confirmation.in_time():
            return await self.rounds.read(read)

    async def write(
        self,
        stage: Callable[[Round], T],
        *,
        first: Callable[[], Awaitable[None]] | None = None,
        lows_of: Callable[[], Iterable[str]] | None = None,
        away: Lows | None = None,
        **sharing: Unpack[Sharing],
    ) -> T:
        """Run a request in a round, and again when the round was given up for reasons of others.

        ``first`` runs before each attempt. ``lows_of`` names computations whose low watermarks
        ``stage`` needs. ``away`` gets those that other shards serve.
        """

        async def prepare() -> None:
            if first is not None:
                await first()
            if lows_of is not None and away is not None:
                registered = self.topology.computations
                inputs = [name for name in lows_of() if name in registered]
                # A computation that was registered a moment ago may be on its way to this shard.
                elsewhere = [name for name in inputs if not await self.takeover.serve(name)]
                away.update(await self.served.placement.lows(elsewhere))

        return await self.confirmation.write(stage, first=prepare, **sharing)

    def low(self, name: str, away: Lows) -> int:
        """Return the low watermark of a computation, whichever shard serves it.

        Raises GivenUp when the other shard must be asked again.
        """
        computation = self.held.computation(name)
        if computation is not None:
            return computation.published.low
        spec = self.topology.computations.get(name)
        if spec is None:
            return MIN
        if name not in away:
            raise GivenUp
        incarnation, low = away[name]
        if incarnation > spec.incarnation:
            raise GraphMoved
        return low if incarnation == spec.incarnation else MIN

    def touch(self, round_: Round, name: str) -> Computation:
        """Return a computation that a request reads or changes in this round.

        Raises as :meth:`by_its_inputs`.
        """
        computation = self.by_its_inputs(round_, name)
        round_.touch(name, computation)
        return computation

    def by_its_inputs(self, round_: Round, name: str) -> Computation:
        """Return a computation to change it, after its log follows the inputs that the graph has.

        A change of inputs is one append to the log and to the graph. So the two differ only if the
        store has lost acknowledged records, and another process has healed the graph alone. If the
        log is behind, its ranges and owners do not take the new input into account, and the
        computation would lead that input. So this round first revokes all claims, and lowers every
        range to the published value, which no added input is below. The log of a slice follows its
        root instead, see Cuts.follow_inputs.

        Raises Unavailable where the log is ahead, and begins to read the graph again.
        """
        computation, spec = self.served.computation(name), self.topology.get(name)
        version = computation.logged_inputs
        if spec.slice_of or version in {0, spec.input_version}:
            return computation
        if version > spec.input_version:
            self.confirmation.refresh_soon()
            msg = (
                f"the log of {name} has version {version} of its inputs, but the graph, as far as this shard has read it, only "
                f"{spec.input_version}: it is read again. If that stays so, the store has lost a change of the graph: reset {name}"
            )
            raise errors.Unavailable(msg, metadata={"computation": name})
        round_.behind[name] = version, spec.input_version
        round_.touch(name, computation)
        round_.fenced += computation.revoke(spec.input_version, round_.now, bound=computation.low)
        return computation
