"""The computations that this process serves: the one place that publishes and loses them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lowwater_authority.engine.placement import moved
from lowwater_authority.journal import JournalFenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lowwater import errors
    from lowwater_authority.core.computation import Computation, View
    from lowwater_authority.core.layout import Layout
    from lowwater_authority.core.topology import Spec, Topology
    from lowwater_authority.engine.holdings import Holdings
    from lowwater_authority.engine.hub import Hub
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.engine.placement import Placement
    from lowwater_authority.engine.settings import ShardSettings


class Answer(Protocol):
    """A slice whose root has not confirmed its newest value, so that its callers must wait."""

    name: str

    async def settle(self, turn: int) -> errors.Unavailable | None:
        """Wait until the root has confirmed. Return the refusal of the callers, or None."""
        ...


class SlicesHere(Protocol):
    """The slices that this process serves, each of which reports to its root.

    A protocol, because engine/slices.py imports this module.
    """

    def follow(self, name: str) -> None:
        """Begin to report a computation to its root, if it is a slice."""
        ...

    def follow_anew(self, spec: Spec) -> None:
        """Begin again if the slice was dropped and registered with other keys since."""
        ...

    def unfollow(self, name: str) -> None:
        """Stop reporting a computation."""
        ...

    def durable(self, computation: Computation) -> None:
        """Let a slice report its state, all of which is durable, to the root."""
        ...

    def unsettled(self, names: Iterable[str]) -> list[tuple[Answer, int]]:
        """Return the slices whose callers must wait for the root, each with its turn."""
        ...

    def is_unbound(self, name: str, identity: str) -> bool:
        """Return whether a slice's root may not be bound to a worker's identity yet.

        False for other computations.
        """
        ...

    async def bind(self, name: str, identity: str) -> None:
        """Bind the root to the identity of the slice's first worker.

        Raises IdentityMismatch, Unavailable.
        """
        ...

    async def vouched(self, name: str, through: int, input_version: int) -> None:
        """Wait until the root has confirmed how far outputs of a slice are complete.

        Raises Moved, Unavailable.
        """
        ...


class Served:
    """The computations that this process serves. All methods are called on its event loop.

    Readers see a value only through :meth:`publish`, after its record is durable (rule 2).
    """

    def __init__(
        self,
        held: Holdings,
        hub: Hub,
        placement: Placement,
        slices: SlicesHere,
        observer: Observer,
        settings: ShardSettings,
    ) -> None:
        self.held = held
        self.hub = hub
        self.placement = placement
        self.slices = slices
        self.settings = settings
        self.on_moved: Callable[[str], None] = lambda _: None
        """Called with the name of a computation that another process serves from now on."""
        self._observer = observer

    @property
    def shared(self) -> bool:
        """True if other processes write to the journal too.

        Then a computation that another process takes over ends here, and this process goes on
        with the others.
        """
        return self.held.journal.shared

    @property
    def topology(self) -> Topology:
        """The graph, as far as this process has read it."""
        return self.held.topology

    # -- questions ---------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        """Return whether this process serves a computation, as far as it knows."""
        return name in self.held.served

    def confirms(self, name: str) -> bool:
        """Return whether this process can confirm what it has published of a computation.

        False while half a change of the computation may be in memory: another process may own it by
        then. All others are confirmed without it. With an embedded journal there is no other owner.
        """
        return name in self and not (self.shared and self.held.is_torn(name))

    def epoch(self, name: str) -> int:
        """Return the epoch of a computation that this shard serves; 0 for others."""
        return self.held.epoch(name)

    def names(self) -> list[str]:
        """Return the names of the computations that this shard serves, sorted."""
        return sorted(self.held.served)

    def view(self, name: str) -> View | None:
        """Return the published view of a computation; None when this shard does not serve it."""
        computation = self.held.computation(name)
        return computation.published if computation else None

    def computation(self, name: str) -> Computation:
        """Return the staged state of a computation.

        Raises UnknownComputation, Moved, and Unavailable while memory and store differ.
        """
        self.topology.get(name)
        holding = self.held.served.get(name)
        if holding is None:
            raise moved(name)
        if holding.unwritten is not None:
            raise holding.unwritten.refusal(name)
        return holding.computation

    def granted(self, name: str, sequencer: int) -> int:
        """Return the number of ranges of a claim, lost ones too; 0 for an unknown claim. O(1)."""
        computation = self.held.computation(name)
        group = None if computation is None else computation.map.groups.get(sequencer)
        return 0 if group is None else group.granted

    def wanted_layout(self, name: str) -> Layout | None:
        """Return the durable wanted layout of a computation; None if not served here."""
        computation = self.held.computation(name)
        return None if computation is None else computation.published_layout

    def reported_layout(self, name: str, sequencer: int) -> Layout | None:
        """Return the layout that an owner has reported under a claim; None if not known here."""
        computation = self.held.computation(name)
        return None if computation is None else computation.reported_layout(sequencer)

    def reference(self, name: str) -> int:
        """Return the event time from which a computation's histograms count ages. Raises Moved."""
        computation = self.held.computation(name)
        if computation is None:
            raise moved(name)
        return computation.reference

    # -- changes -----------------------------------------------------------------------------------

    def begin(self, computation: Computation) -> None:
        """Serve a computation that was taken over."""
        self.publish([computation])
        self.slices.follow(computation.spec.name)
        self.count()

    @contextmanager
    def losing(self) -> Iterator[dict[str, tuple[int, int]]]:
        """Catch JournalFenced around calls to the journal, and lose what other processes own now.

        Yields the owners as in JournalFenced; empty until the journal has refused the body.
        """
        lost: dict[str, tuple[int, int]] = {}
        try:
            yield lost
        except JournalFenced as error:
            lost |= error.owners
            self.lose(lost)

    def lose(self, owners: Mapping[str, tuple[int, int]]) -> None:
        """Lose the computations whose epoch is over, because other processes own them now.

        This is all that happens when a shard loses its epoch. ``owners`` is as in JournalFenced:
        the journal refuses a write, or a confirmation, under an older epoch than the newest, and no
        clock ends one. Rounds come here directly, because they also have callers to answer; all
        other calls to the journal by :meth:`losing`.

        - ``Holdings.lose`` forgets the computation in memory, and the ownership of its log. What a
          round has staged of it is never published: it drops out, and the rest of the round goes on
          (``Rounds._drop_out``). A round that changes the graph is rolled back whole instead.
        - Reports are answered with Moved. Other callers stage again and then get Moved, or
          Unavailable if an earlier attempt may have been written.
        - A slice reports no more to its root.
        - Report streams are barred from the computation: the new owner may have newer reports.
        - Watchers get its new place instead of a value.

        Nothing is handed over: the new owner has read the log, and the journal lets it alone write.
        An embedded journal has one process; if another took it, this process ends.
        A store that has itself lost an epoch raises JournalLost instead, and ``Logs.heal`` puts it
        back from memory.
        """
        for name in self.held.lose(owners):
            self.slices.unfollow(name)
            self.on_moved(name)
            self.hub.move(name)
        self.count()

    def publish(self, computations: Iterable[Computation], topology: Topology | None = None) -> None:
        """Publish computations, and go on with another graph, if there is one.

        All that is staged of the computations must be durable.
        """
        views = [computation.publish() for computation in computations]
        begun = [] if topology is None else self._use(topology)
        views += [computation.publish() for computation in begun]
        for computation in begun:
            self.slices.follow_anew(computation.spec)
        shown = [view for view in views if view.name in self]
        self.hub.publish(shown)
        for view in shown:
            self._durable(view.name)

    def count(self) -> None:
        """Let the observer know how many computations are served."""
        self._observer.computations(len(self.held.served))

    def _durable(self, name: str) -> None:
        computation = self.held.computation(name)
        if computation is not None:
            self.slices.durable(computation)

    def _use(self, topology: Topology) -> list[Computation]:
        """Go on with another graph. Returns the new incarnations that begin."""
        before, changed = self.topology, topology.changed(self.topology)
        self.held.graph.use(topology)
        begun = []
        for name in changed:
            spec, computation = topology.computations.get(name), self.held.computation(name)
            if spec is None and name in before.computations:
                self.held.drop(name)
                self.held.forget_damage(name)
                self.slices.unfollow(name)
                self.hub.move(name)
                if self.placement.mine(name):
                    self.held.endings.begin(name)
            elif spec is not None and computation is not None:
                if computation.incarnation < spec.incarnation:
                    begun.append(self.held.restart(computation, spec))
                else:
                    self.held.follow(computation, spec)
                    self._durable(name)
            elif spec is not None:
                self.held.forget_damage(name)  # a reset may have replaced the damaged log
            if spec is not None and name not in before.computations:
                self.hub.move(name)
        return begun
