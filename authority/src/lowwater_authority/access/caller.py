"""The caller of the call that is being served, and the checks that a servicer makes with it.

A servicer knows no tokens: :func:`calling` returns the caller that the guard has identified.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.events import shortened
from lowwater_authority.access.limits import limit_reached, overloaded
from lowwater_authority.access.policy import BUILT_IN, Action
from lowwater_authority.core.names import NAME, name_parts, namespace_of, whole
from lowwater_server.audit import Actor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lowwater_authority.access.policy import Limits, Principal
    from lowwater_authority.core.topology import Spec
    from lowwater_server.audit import Audit

_MOST_DECISIONS: Final = 10_000
"""Most decisions in the cache of a caller, who can make up any number of names."""

_NAMES: Final = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?")

_NAMING: Final = (errors.Cycle, errors.EstimatedInput, errors.StillRead, errors.WouldRegress, errors.Unavailable)
"""Errors whose text names computations that the request does not name. Other errors repeat names of
the request; to hide a registered one there would reveal that it is registered."""


@dataclass(slots=True, eq=False)
class Caller:
    """The principal that makes a call or has opened a stream."""

    principal: Principal
    limits: Limits
    peer: str
    """Host of the caller."""
    audit: Audit
    cut: Callable[[str], bool] = lambda _: False
    """Function that returns whether the computation of a name is cut into slices."""
    token: str = ""
    """Fingerprint of the token that the caller has presented; empty: it has a certificate."""
    reason: str = ""
    """Reason of the error that the call was refused with, for the audit; empty: not refused."""
    decisions: dict[tuple[Action, str], bool] = field(default_factory=dict)
    """Cache of :meth:`may` under the rules in force, of at most ``_MOST_DECISIONS``."""

    @property
    def actor(self) -> Actor:
        """The caller as the audit names it."""
        return Actor(self.principal.name, self.peer, self.token)

    def become(self, principal: Principal, limits: Limits) -> None:
        """Use other rules from now on."""
        self.principal, self.limits = principal, limits
        self.decisions.clear()

    def may(self, action: Action, name: str) -> bool:
        """Return whether the caller may act on ``[namespace/]name``. O(1), the first time O(rules).

        The rules for a computation that is cut hold for its slices too. No caller may act on a
        malformed name, and that is not cached.
        """
        cached = self.decisions.get((action, name))
        if cached is not None:
            return cached
        computation = whole(name)
        if NAME.fullmatch(computation) is None:
            return False
        if len(self.decisions) >= _MOST_DECISIONS:
            self.decisions.clear()
        namespace, plain = name_parts(computation)
        decision = self.decisions[action, name] = self.principal.may(action, namespace, plain)
        return decision

    def may_report(self, name: str) -> bool:
        """Return whether the caller may report for a computation.

        A shard may report for any computation that is cut: all claims of that are slices' claims.
        """
        return self.may(Action.REPORT, name) or (self.principal.shard and self.cut(name))

    def may_any(self, name: str) -> bool:
        """Return whether the caller may act on a computation at all, and so may know its place."""
        return any(self.may(action, name) for action in Action)

    def demand(self, action: Action, name: str) -> None:
        """Raise PermissionDenied unless the caller may act on a computation.

        The refusal is the same whether the computation is registered or not.
        """
        if not self.may(action, name):
            raise self.denied(action, name)

    def denied(self, action: Action, name: str) -> errors.PermissionDenied:
        """Return the refusal of an action on a computation."""
        name = shortened(name)
        namespace, plain = name_parts(name)
        msg = (
            f"{self.principal.name} lacks the permission {action} on {plain!r} of the namespace {namespace!r}; "
            f"whoever keeps the access file can add it there"
        )
        return self._lacks(action, msg, computation=name)

    def _lacks(self, permission: str, msg: str, **facts: str) -> errors.PermissionDenied:
        """Return the refusal for a permission that the caller lacks."""
        facts = {"principal": self.principal.name, "permission": str(permission), **facts}
        return errors.PermissionDenied(msg, metadata=facts)

    def demand_slice(self, name: str) -> None:
        """Raise PermissionDenied unless the caller is a shard, whose slices act at their roots."""
        if not self.principal.shard:
            name = shortened(name)
            msg = (
                f"{self.principal.name} is no shard, and only the shard of a slice claims or retires at {name} for the "
                "slice; leave identity and sequencer out"
            )
            raise self._lacks(Action.REPORT, msg, computation=name)

    def demand_downstream(self, name: str, names: Iterable[str]) -> None:
        """Raise PermissionDenied unless the caller may operate on all ``names``.

        They begin new incarnations with ``name``. The error names one that the caller may know.
        """
        forbidden = [reader for reader in names if not self.may(Action.OPERATE, reader)]
        if forbidden:
            example = next((f", such as {reader}" for reader in forbidden if self.may_any(reader)), "")
            msg = (
                f"{self.principal.name} may not operate on all that reads {name}, directly or not{example}, and a new "
                "incarnation of it begins one of each of them too; use a principal that may operate on all of them"
            )
            raise self._lacks(Action.OPERATE, msg, computation=name)

    def demand_some(self, *actions: Action) -> None:
        """Raise PermissionDenied unless the caller may do one of the actions to some computation.

        The error names the first action.
        """
        if not any(map(self.principal.may_some, actions)) and not (Action.REPORT in actions and self.principal.shard):
            msg = (
                f"{self.principal.name} lacks the permission {actions[0]} on anything; "
                "whoever keeps the access file can add it there"
            )
            raise self._lacks(actions[0], msg)

    def demand_everything(self) -> None:
        """Raise PermissionDenied unless the caller may operate on the deployment as a whole."""
        if not self.operates_everything:
            msg = (
                f"{self.principal.name} may not operate on the deployment as a whole; "
                'allow it operate = ["*"] in the namespace "*"'
            )
            raise self._lacks(Action.OPERATE, msg)

    def demand_regions(self, regions: Iterable[str]) -> None:
        """Raise PermissionDenied unless the caller speaks for all these regions."""
        for region in regions:
            if region not in self.principal.regions:
                region = shortened(region)
                msg = (
                    f"{self.principal.name} does not speak for region {region!r}; "
                    "whoever keeps the access file can add it to the principal's regions there"
                )
                raise self._lacks("regions", msg, region=region)

    def demand_some_region(self, *, operator: bool) -> None:
        """Raise PermissionDenied unless the caller speaks for some region.

        With ``operator``, a caller that may operate on the deployment as a whole passes too.
        """
        if self.principal.regions or (operator and self.operates_everything):
            return
        besides = ", and may not operate on the deployment as a whole" if operator else ""
        msg = (
            f"{self.principal.name} speaks for no region{besides}; "
            "whoever keeps the access file can add a region to the principal's regions there"
        )
        raise self._lacks("regions", msg)

    @property
    def operates_everything(self) -> bool:
        """True: the caller may operate on the deployment as a whole."""
        return self.principal.may_all(Action.OPERATE)

    def demand_report(self, name: str) -> None:
        """Raise PermissionDenied unless the caller may report for a computation.

        The refusal is written to the audit here, because the rest of the report is applied.
        """
        if not self.may_report(name):
            error = self.denied(Action.REPORT, name)
            self.audit.refused("report", self.actor, name, error.reason)
            raise error

    def redacted(self, error: errors.LowwaterError, registered: Mapping[str, Spec]) -> errors.LowwaterError:
        """Return an error without the names of computations that the caller may not know.

        O(words).
        """
        if isinstance(error, errors.RegistrationConflict):
            return self._without_inputs(error, registered.get(error.metadata.get("computation", "")))
        if not isinstance(error, _NAMING):
            return error

        def shown(word: re.Match[str]) -> str:
            names = [name for name in (word[0], word[0].rstrip(".")) if name in registered]
            return word[0] if all(map(self.may_any, names)) else "(hidden)"

        message = _NAMES.sub(shown, error.message)
        facts = {key: _NAMES.sub(shown, value) for key, value in error.metadata.items()}
        if (message, facts) == (error.message, error.metadata):
            return error
        changed = type(error)(message, reason=error.reason, metadata=facts)
        changed.retry_after = error.retry_after
        return changed

    def _without_inputs(self, error: errors.RegistrationConflict, spec: Spec | None) -> errors.LowwaterError:
        """Return a conflict without the options it is about, unless the caller may know all inputs.

        These options contain free text.
        """
        if spec is not None and all(map(self.may_any, spec.inputs)):
            return error
        msg = (
            f"{error.metadata.get('computation', 'it')} is registered with other inputs or options, of which you may "
            "not know all. Register the same, or use another name."
        )
        metadata = {key: value for key, value in error.metadata.items() if key not in {"differ", "fix"}}
        return errors.RegistrationConflict(msg, metadata=metadata)


CALLER: Final[ContextVar[Caller | None]] = ContextVar("lowwater_caller", default=None)
"""The caller of the call that this task serves; None: there is no access control."""


def calling() -> Caller | None:
    """Return the caller of this call; None: there is no access control, and all is allowed."""
    return CALLER.get()


def permit(name: str) -> Callable[[Iterable[str]], None]:
    """Return a check that the caller may operate on all computations that a reset would restart.

    It takes their names, which only the round of the reset knows, and raises PermissionDenied. The
    caller is looked up here, because one round serves many callers.
    """
    caller = CALLER.get()
    return (lambda _: None) if caller is None else lambda names: caller.demand_downstream(name, names)


def demand_some_read() -> None:
    """Raise PermissionDenied for a caller without any right to read.

    Its watch would stay empty, and would take a place that another caller could use.
    """
    caller = CALLER.get()
    if caller is not None:
        caller.demand_some(Action.READ)


def holder() -> str:
    """Return the principal whose places behind a gate this call takes.

    Empty for shards, and where there is no access control.
    """
    caller = CALLER.get()
    return "" if caller is None or caller.principal.name in BUILT_IN else caller.principal.name


def room(name: str, slices: int, limits: Limits) -> Callable[[Collection[str]], None]:
    """Return a check that raises LimitReached when a new computation would exceed a limit.

    The check takes the names of all computations. A cut computation counts as one more for each of
    its ``slices``, because each slice has a log and memory of its own. The limits are those of the
    caller at this moment; ``limits`` where there is no access control.
    """
    limits = _limits_in_force(limits)
    return lambda names: None if name in names else _check_computations(limits, name, name, 1 + slices, names)


def room_for_slice(name: str, limits: Limits) -> Callable[[Collection[str]], None]:
    """Return a check that raises LimitReached when one more slice would exceed a limit.

    The check takes the names of all computations. ``limits`` count as in :func:`room`.
    """
    limits = _limits_in_force(limits)
    return lambda names: _check_computations(limits, name, f"a slice of {name}", 1, names)


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


def _check_computations(limits: Limits, name: str, what: str, more: int, names: Collection[str]) -> None:
    """Raise LimitReached when a namespace or the deployment would get too many computations.

    ``more``: how many this request adds, counting slices.

    O(computations) where the deployment has as many as one namespace may have, else O(1).
    """

    def check(limit: str, most: int | None, where: str, count: int) -> None:
        if most is not None and count + more > most:
            msg = (
                f"{where} may have {most} computations, counting slices; "
                f"it has {count}, and {what} would be {more} more"
            )
            raise limit_reached(limit, msg, str(most))

    check("all_computations", limits.all_computations, "the deployment", len(names))
    if limits.computations is not None and len(names) + more > limits.computations:
        namespace = namespace_of(name)
        count = sum(namespace_of(other) == namespace for other in names)
        check("computations", limits.computations, f"the namespace {namespace!r}", count)


def visible(names: Sequence[str]) -> Sequence[str]:
    """Return those of the names that the caller may read."""
    caller = CALLER.get()
    return names if caller is None else [name for name in names if caller.may(Action.READ, name)]
