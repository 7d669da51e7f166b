"""Who makes the call that is served just now, as far as the guard knows; and what a service asks about it.

A servicer knows nothing of tokens: it asks :func:`calling`, which is None where there is no access control.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater_authority.access.limits import overloaded
from lowwater_authority.access.policy import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lowwater_authority.access.audit import Audit
    from lowwater_authority.access.policy import Limits, Principal

__all__ = ["CALLER", "Caller", "anything", "calling", "permit", "visible"]

_MOST_DECISIONS: Final = 10_000
"""Decisions that are kept: names are the caller's to make up."""

_NAMES: Final = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?")


@dataclass(slots=True, eq=False)
class Caller:
    """A principal at the other end of a call or stream, and where that is."""

    principal: Principal
    limits: Limits
    peer: str
    """Host of the other end."""
    audit: Audit
    reason: str = ""
    """Why the call was refused, by the reason of the error; for the audit."""
    _decided: dict[tuple[Action, str], bool] = field(default_factory=dict)

    def become(self, principal: Principal, limits: Limits) -> None:
        """Go on with what the principal may do from now on."""
        self.principal, self.limits = principal, limits
        self._decided.clear()

    def may(self, action: Action, name: str) -> bool:
        """Whether it may do something to ``[namespace/]name``. O(1) but for the first time, then O(rules)."""
        known = self._decided.get((action, name))
        if known is not None:
            return known
        if len(self._decided) >= _MOST_DECISIONS:
            self._decided.clear()
        namespace, plain = parted(name)
        decided = self._decided[action, name] = self.principal.may(action, namespace, plain)
        return decided

    def may_any(self, name: str) -> bool:
        """Whether it may do anything at all to a computation, and so know where it is."""
        return any(self.may(action, name) for action in Action)

    def demand(self, action: Action, name: str) -> None:
        """Raise PermissionDenied unless it may. The refusal is the same whether the computation exists or not."""
        if not self.may(action, name):
            raise self.denied(action, name)

    def denied(self, action: Action, name: str) -> errors.PermissionDenied:
        """Return the refusal."""
        namespace, plain = parted(name)
        msg = (
            f"{self.principal.name} lacks the permission {action.value} on {plain!r} of the namespace {namespace!r}; "
            f"whoever keeps the access file can add it there"
        )
        facts = {"principal": self.principal.name, "permission": action.value, "computation": name}
        return errors.PermissionDenied(msg, metadata=facts)

    def demand_downstream(self, name: str, names: Iterable[str]) -> None:
        """Raise PermissionDenied unless it may operate on all that begin a new life with one; does not say which those are."""
        if not all(self.may(Action.OPERATE, each) for each in names):
            msg = (
                f"{self.principal.name} may not operate on all that reads {name}, directly or not, and a new life of it is one of them all; "
                "somebody who may has to do it"
            )
            facts = {"principal": self.principal.name, "permission": Action.OPERATE.value, "computation": name}
            raise errors.PermissionDenied(msg, metadata=facts)

    def demand_everything(self) -> None:
        """Raise PermissionDenied unless it may operate on the deployment as a whole."""
        if not self.principal.may_all(Action.OPERATE):
            msg = f'{self.principal.name} may not move computations between shards; that takes operate = ["*"] of the namespace "*"'
            raise errors.PermissionDenied(msg, metadata={"principal": self.principal.name, "permission": "operate"})

    def demand_report(self, name: str) -> None:
        """Raise PermissionDenied unless it may report for a computation, and have the audit say so: what is beside it in a report counts."""
        if not self.may(Action.REPORT, name):
            error = self.denied(Action.REPORT, name)
            self.audit.refused("report", self.principal.name, self.peer, name, error.reason)
            raise error

    def check_ranges(self, name: str, ranges: int) -> None:
        """Raise Overloaded when a claim would divide a computation into more ranges than it may have."""
        most = self.limits.ranges
        if most is not None and ranges > most:
            raise overloaded("ranges", f"{name} would have {ranges} key ranges, and may have {most}", str(most))

    def check_computations(self, name: str, known: Collection[str]) -> None:
        """Raise Overloaded when a new name would be one too many in its namespace. O(computations), for new ones."""
        most = self.limits.computations
        if most is None or name in known:
            return
        namespace, _ = parted(name)
        if sum(parted(each)[0] == namespace for each in known) >= most:
            msg = f"the namespace {namespace!r} has {most} computations, the most it may have"
            raise overloaded("computations", msg, str(most))

    def redacted(self, error: errors.LowwaterError, known: Mapping[str, object]) -> errors.LowwaterError:
        """Return an error without the names of computations that it may know nothing of. O(words)."""

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


CALLER: Final[ContextVar[Caller | None]] = ContextVar("lowwater_caller", default=None)
"""Of the call that this task serves."""


def calling() -> Caller | None:
    """Return who makes the call that is served; None: there is no access control, and anybody may do everything."""
    return CALLER.get()


def permit(name: str) -> Callable[[Iterable[str]], None]:
    """Return what refuses, once it is known which computations begin a new life with one, that the caller may not operate on them all.

    Who calls is looked up now: the rounds in which it becomes known are those of all callers. Raises PermissionDenied.
    """
    caller = CALLER.get()
    return anything if caller is None else lambda names: caller.demand_downstream(name, names)


def anything(names: Iterable[str]) -> None:
    """Permit what nobody asks about."""
    del names


def visible(names: Sequence[str]) -> Sequence[str]:
    """Return which of all names the caller may read."""
    caller = CALLER.get()
    return names if caller is None else [name for name in names if caller.may(Action.READ, name)]


def parted(name: str) -> tuple[str, str]:
    """Return the namespace and the rest of a full name. What can be nobody's name is not made into one.

    >>> parted("flights/hourly"), parted("hourly"), parted("/hourly")
    (('flights', 'hourly'), ('', 'hourly'), ('', '/hourly'))
    """
    namespace, _, plain = name.partition("/")
    return (namespace, plain) if namespace and plain else ("", name)
