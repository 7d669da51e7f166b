"""Names of computations and of their slices, and the identities by which slices claim."""

from __future__ import annotations

import re
from typing import Final

CUT: Final = "~"
"""Separator between the name of a cut computation and the number of one of its slices.

No name that can be registered contains this character, so no registration can name a slice."""

NAME: Final = re.compile(r"(?:[A-Za-z0-9_.-]{1,128}/)?[A-Za-z0-9_.-]{1,128}")
"""Name of a computation: [namespace/]name."""

SLICE: Final = re.compile(rf"({NAME.pattern}){CUT}[0-9]{{1,3}}")
"""Name of a slice."""


def name_parts(name: str) -> tuple[str, str]:
    """Return the namespace and the rest of the name of a computation or a slice.

    The namespace is empty where the name has none. A malformed name is not repaired:

    >>> name_parts("flights/hourly~3"), name_parts("hourly"), name_parts("/hourly")
    (('flights', 'hourly~3'), ('', 'hourly'), ('', '/hourly'))
    >>> name_parts("a/b/c")
    ('a', 'b/c')
    """
    namespace, _, plain = name.partition("/")
    return (namespace, plain) if namespace and plain else ("", name)


def namespace_of(name: str) -> str:
    """Return the namespace of a computation or a slice; empty where the name has none."""
    return name_parts(name)[0]


def slice_name(root: str, number: int) -> str:
    """Return the name of a slice of a computation.

    >>> slice_name("ns/hourly", 12)
    'ns/hourly~12'
    """
    return f"{root}{CUT}{number}"


def whole(name: str) -> str:
    """Return the root of a slice; the name itself when it is no slice's.

    >>> whole("ns/hourly~12"), whole("hourly")
    ('ns/hourly', 'hourly')
    """
    match = SLICE.fullmatch(name)
    return name if match is None else match[1]


def slicing(name: str, incarnation: int = 0, identity: str | None = None) -> str:
    """Return the identity by which a slice of a computation claims its range at the root.

    ``identity`` is the one by which a worker claims in the slice, in an incarnation. It binds the
    whole computation: workers of all slices must have this identity.
    """
    return f"{name}{CUT}" if identity is None else f"{name}{CUT}{incarnation}:{identity}"


def is_slicing(name: str, identity: str) -> bool:
    """Return True for an identity by which slices of a computation claim.

    >>> [is_slicing("hourly", identity) for identity in ("hourly~", slicing("hourly", 2, "job"))]
    [True, True]
    >>> [is_slicing("hourly", identity) for identity in ("hourly", "job", "daily~")]
    [False, False, False]
    """
    root, cut, rest = identity.partition(CUT)
    number, colon, _ = rest.partition(":")
    return bool(cut) and root == name and (not rest or (bool(colon) and number.isdecimal()))


def carried(name: str, incarnation: int, identity: str) -> str | None:
    """Return the worker's identity inside of a slice's one.

    None: there is no worker's identity in it, or it is one of another incarnation.

    >>> carried("hourly", 2, slicing("hourly", 2, "job")), carried("hourly", 2, "hourly~")
    ('job', None)
    >>> carried("hourly", 3, slicing("hourly", 2, "job"))
    """
    prefix = slicing(name, incarnation, "")
    return identity.removeprefix(prefix) if identity.startswith(prefix) else None
