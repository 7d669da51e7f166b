"""Other parts in the place of parts of the product: bugs to plant, and what stands for what is not there. One function puts all of them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

Part = Any
"""A part of the product: a function, a method, a property or a module; None for an attribute that only objects have."""


def replace_parts(patch: pytest.MonkeyPatch, swaps: Iterable[tuple[object, str, Part]]) -> None:
    for where, name, part in swaps:
        patch.setattr(where, name, part, raising=False)


@contextmanager
def instead(*swaps: tuple[object, str, Part]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        replace_parts(patch, swaps)
        yield


class Bug:
    """Parts of the product, and what makes the wrong one from the right one. It is called to plant all of them."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.swaps: list[tuple[object, str, Callable[[Part], Part]]] = []

    def __call__(self, planted: pytest.MonkeyPatch) -> None:
        for where, name, wrong in self.swaps:
            # A module has all of its parts, so one that it lacks was moved or renamed.
            right = vars(where)[name] if isinstance(where, ModuleType) else getattr(where, name, None)
            replace_parts(planted, [(where, name, wrong(right))])

    def also(self, name: str, *places: object) -> Callable[[Callable[[Part], Part]], Bug]:
        """Add what the decorated function makes of the part ``name`` of each of some places."""

        def add(wrong: Callable[[Part], Part]) -> Bug:
            self.swaps += [(where, name, wrong) for where in places]
            return self

        return add

    def includes(self, other: Bug) -> None:
        self.swaps += other.swaps


def bug(name: str, *places: object) -> Callable[[Callable[[Part], Part]], Bug]:
    return lambda wrong: Bug(wrong.__name__).also(name, *places)(wrong)
