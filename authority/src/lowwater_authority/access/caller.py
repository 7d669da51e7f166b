"""Who makes the call that is served just now, as far as the guard knows; and what a service asks about it.

A servicer knows nothing of tokens: it asks :func:`calling`, which is None where there is no access control.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater._server.audit import Actor
from lowwater.core.events import shortened
from lowwater_authority.access.limits import limit_reached, overloaded
from lowwater_authority.access.policy import BUILT_IN, Action
from lowwater_authority.core.names import NAME, name_parts, namespace_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lowwater._server.audit import Audit
    from lowwater_authority.access.policy import Limits, Principal
    from lowwater_authority.core.topology import Spec

__all__ = [
    "CALLER",
    "Caller",
    "anything",
    "calling",
    "demand_some_read",
    "holder",
    "permit",
    "room",
    "room_for_ranges",
    "room_for_slice",
    "visible",
]

_MOST_DECISIONS: Final = 10_000
"""Decisions that are kept: names are the caller's to make up."""

_NAMES: Final = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?")

_NAMING: Final = (errors.Cycle, errors.EstimatedInput, errors.StillRead, errors.WouldRegress, errors.Unavailable)
"""What names computations that the caller did not name. Other errors repeat what the caller has
sent, and to hide there what is registered would say what is."""


@dataclass(slots=True, eq=False)
class Caller:
    """A principal at the other end of a call or stream, and where that is."""

    principal: Principal
    limits: Limits
    peer: str
    """Host of the other end."""
    audit: Audit
    cut: Callable[[str], bool] = lambda _: False
    """Whether the computation of a name is cut into slices."""
    token: str = ""
    """Fingerprint of the token that it has presented; empty: it has a certificate."""
    reason: str = ""
    """Why the call was refused, by the reason of the error; for the audit."""
    decisions: dict[tuple[Action, str], bool] = field(default_factory=dict)
    """What :meth:`may` has answered under the rules in force, and remembers; bounded."""

    @property
    def actor(self) -> Actor:
        """Who it is, for the audit."""
        return Actor(self.principal.name, self.peer, self.token)

    def become(self, principal: Principal, limits: Limits) -> None:
        """Go on with what the principal may do from now on."""
        self.principal, self.limits = principal, limits
        self.decisions.clear()

    def may(self, action: Action, name: str) -> bool:
        """Whether it may do something to ``[namespace/]name``.

        O(1) but for the first time, then O(rules).

        What it may do to a computation that is cut, it may do to its slices. Nobody may do anything
        to what can be nobody's name, and that is not kept.
        """
        known = self.decisions.get((action, name))
        if known is not None:
            return known
        computation = whole(name)
        if NAME.fullmatch(computation) is None:
            return False
        if len(self.decisions) >= _MOST_DECISIONS:
            self.decisions.clear()
        namespace, plain = name_parts(computation)
        decided = self.decisions[action, name] = self.principal.may(action, namespace, plain)
        return decided

    def may_report(self, name: str) -> bool:
        """Whether its reports of a computation count.

        A shard may report where the computation is cut: claims there are of slices alone.
        """
        return self.may(Action.REPORT, name) or (self.principal.shard and self.cut(name))

    def may_any(self, name: str) -> bool:
        """Whether it may do anything at all to a computation, and so know where it is."""
        return any(self.may(action, name) for action in Action)

    def demand(self, action: Action, name: str) -> None:
        """Raise PermissionDenied unless it may.

        The refusal is the same whether the computation exists or not.
        """
        if not self.may(action, name):
            raise self.denied(action, name)

    def denied(self, action: Action, name: str) -> errors.PermissionDenied:
        """Return the refusal."""
        name = shortened(name)
        namespace, plain = name_parts(name)
        msg = (
            f"{self.principal.name} lacks the permission {action.value} on {plain!r} of the namespace {namespace!r}; "
            f"whoever keeps the access file can add it there"
        )
        facts = {"principal": self.principal.name, "permission": action.value, "computation": name}
        return errors.PermissionDenied(msg, metadata=facts)

    def demand_slice(self, name: str) -> None:
        """Raise PermissionDenied unless it is a shard: nobody else does what a slice does at the computation that it is a slice of."""
        if not self.principal.shard:
            name = shortened(name)
            msg = f"{self.principal.name} is no shard, and only the shard of a slice claims or retires at {name} for the slice; leave identity and sequencer out"
            facts = {"principal": self.principal.name, "permission": Action.REPORT.value, "computation": name}
            raise errors.PermissionDenied(msg, metadata=facts)

    def demand_downstream(self, name: str, names: Iterable[str]) -> None:
        """Raise PermissionDenied unless it may operate on all that begin a new incarnation with one; names one that it may know of."""
        forbidden = [each for each in names if not self.may(Action.OPERATE, each)]
        if forbidden:
            known = next((f", such as {each}" for each in forbidden if self.may_any(each)), "")
            msg = (
                f"{self.principal.name} may not operate on all that reads {name}, directly or not{known}, and a new incarnation of it "
                "begins one of each of them too; somebody who may operate on all of them has to do it"
            )
            facts = {"principal": self.principal.name, "permission": Action.OPERATE.value, "computation": name}
            raise errors.PermissionDenied(msg, metadata=facts)

    def demand_some(self, *actions: Action) -> None:
        """Raise PermissionDenied, which names the first action, unless the caller may do one of them to any computation at all."""
        if not any(map(self.principal.may_some, actions)) and not (Action.REPORT in actions and self.principal.shard):
            needed = actions[0].value
            msg = f"{self.principal.name} lacks the permission {needed} on anything; whoever keeps the access file can add it there"
            facts = {"principal": self.principal.name, "permission": needed}
            raise errors.PermissionDenied(msg, metadata=facts)

    def demand_everything(self) -> None:
        """Raise PermissionDenied unless it may operate on the deployment as a whole."""
        if not self.operates_everything:
            msg = f'{self.principal.name} may not operate on the deployment as a whole; that takes operate = ["*"] of the namespace "*"'
            raise errors.PermissionDenied(msg, metadata={"principal": self.principal.name, "permission": "operate"})

    def demand_regions(self, regions: Iterable[str]) -> None:
        """Raise PermissionDenied unless it speaks for all of some regions."""
        for region in regions:
            if region not in self.principal.regions:
                region = shortened(region)
                msg = f"{self.principal.name} does not speak for region {region!r}; whoever keeps the access file can add it to the principal's regions there"
                facts = {"principal": self.principal.name, "permission": "regions", "region": region}
                raise errors.PermissionDenied(msg, metadata=facts)

    def demand_some_region(self, *, operator: bool) -> None:
        """Raise PermissionDenied unless it speaks for any region, or where an ``operator`` is admitted is one."""
        if self.principal.regions or (operator and self.operates_everything):
            return
        besides = ", and may not operate on the deployment as a whole" if operator else ""
        msg = (
            f"{self.principal.name} speaks for no region{besides}; "
            "whoever keeps the access file can add a region to the principal's regions there"
        )
        facts = {"principal": self.principal.name, "permission": "regions"}
        raise errors.PermissionDenied(msg, metadata=facts)

    @property
    def operates_everything(self) -> bool:
        """Whether it may operate on the deployment as a whole."""
        return self.principal.may_all(Action.OPERATE)

    def demand_report(self, name: str) -> None:
        """Raise PermissionDenied unless it may report for a computation, and have the audit say so: what is beside it in a report counts."""
        if not self.may_report(name):
            error = self.denied(Action.REPORT, name)
            self.audit.refused("report", self.actor, name, error.reason)
            raise error

    def redacted(self, error: errors.LowwaterError, known: Mapping[str, Spec]) -> errors.LowwaterError:
        """Return an error without the names of computations that it may know nothing of.

        O(words), of those that do not repeat the request.
        """
        if isinstance(error, errors.RegistrationConflict):
            return self._without_inputs(error, known.get(error.metadata.get("computation", "")))
        if not isinstance(error, _NAMING):
            return error

        def shown(found: re.Match[str]) -> str:
            named = [word for word in (found[0], found[0].rstrip(".")) if word in known]
            return found[0] if all(map(self.may_any, named)) else "(hidden)"

        message = _NAMES.sub(shown, error.message)
        facts = {key: _NAMES.sub(shown, value) for key, value in error.metadata.items()}
        if (message, facts) == (error.message, error.metadata):
            return error
        changed = type(error)(message, reason=error.reason, metadata=facts)
        changed.retry_after = error.retry_after
        return changed

    def _without_inputs(self, error: errors.RegistrationConflict, spec: Spec | None) -> errors.LowwaterError:
        """Return a conflict whole to who may know of all inputs, else without what it conflicts with: free text is among that."""
        if spec is not None and all(map(self.may_any, spec.inputs)):
            return error
        msg = (
            f"{error.metadata.get('computation', 'it')} is registered with other inputs or options, of which you may not know all. Register the "
            "same, or use another name."
        )
        return errors.RegistrationConflict(msg, metadata=error.metadata)


CALLER: Final[ContextVar[Caller | None]] = ContextVar("lowwater_caller", default=None)
"""Of the call that this task serves."""


def calling() -> Caller | None:
    """Return who makes the call that is served; None: there is no access control, and anybody may do everything."""
    return CALLER.get()


def permit(name: str) -> Callable[[Iterable[str]], None]:
    """Return what refuses, once it is known which computations begin a new incarnation with one, that it may not operate on them all.

    Who calls is looked up now: the rounds in which it becomes known are those of all callers. Raises PermissionDenied.
    """
    caller = CALLER.get()
    return anything if caller is None else lambda names: caller.demand_downstream(name, names)


def anything(*asked: object) -> None:
    """Permit what nobody asks about."""
    del asked


def demand_some_read() -> None:
    """Raise PermissionDenied for a caller without any right to read.

    Its watch would stay empty, and would take a place that another caller could use.
    """
    caller = CALLER.get()
    if caller is not None:
        caller.demand_some(Action.READ)


def holder() -> str:
    """Return whose places before a gate the caller takes: those of a principal; empty for shards, and where there is no access control."""
    caller = CALLER.get()
    return "" if caller is None or caller.principal.name in BUILT_IN else caller.principal.name


def room(name: str, slices: int, limits: Limits) -> Callable[[Collection[str]], None]:
    """Return a check that raises LimitReached when a new computation would exceed a limit.

    The check takes the names of all computations. A cut computation counts as one more for each of
    its ``slices``, because each slice has a log and memory of its own. The limits are those of the
    caller at this moment; ``limits`` where there is no access control.
    """
    limits = _limits_in_force(limits)
    return lambda known: None if name in known else _check_computations(limits, name, name, 1 + slices, known)


def room_for_slice(name: str, limits: Limits) -> Callable[[Collection[str]], None]:
    """Return a check that raises LimitReached when one more slice of a computation would exceed a limit.

    The check takes the names of all computations. ``limits`` count as in :func:`room`.
    """
    limits = _limits_in_force(limits)
    return lambda known: _check_computations(limits, name, f"a slice of {name}", 1, known)


def room_for_ranges(name: str, limits: Limits) -> Callable[[int], None]:
    """Return a check that raises Overloaded when a claim would make more key ranges than the limit.

    The check takes the number of ranges that the computation would have. ``limits`` count as in
    :func:`room`.
    """
    caller = CALLER.get()
    most = _limits_in_force(limits).ranges if caller is None or not caller.principal.shard else None

    def check(ranges: int) -> None:
        if most is not None and ranges > most:
            raise overloaded("ranges", f"{name} would have {ranges} key ranges, and may have {most}", str(most))

    return check


def _limits_in_force(limits: Limits) -> Limits:
    """Return the limits of the caller; ``limits`` where there is no access control."""
    caller = CALLER.get()
    return limits if caller is None else caller.limits


def _check_computations(limits: Limits, name: str, what: str, more: int, known: Collection[str]) -> None:
    """Raise LimitReached when so many more computations are too many for a namespace, or for the deployment.

    O(computations) where the deployment has as many as one namespace may have, else O(1).
    """
    most = limits.all_computations
    if most is not None and len(known) + more > most:
        msg = f"the deployment may have {most} computations, counting slices; it has {len(known)}, and {what} would be {more} more"
        raise limit_reached("all_computations", msg, str(most))
    most = limits.computations
    if most is None or len(known) + more <= most:
        return
    namespace = namespace_of(name)
    count = sum(namespace_of(each) == namespace for each in known)
    if count + more > most:
        msg = f"the namespace {namespace!r} may have {most} computations, counting slices; it has {count}, and {what} would be {more} more"
        raise limit_reached("computations", msg, str(most))


def visible(names: Sequence[str]) -> Sequence[str]:
    """Return which of all names the caller may read."""
    caller = CALLER.get()
    return names if caller is None else [name for name in names if caller.may(Action.READ, name)]
