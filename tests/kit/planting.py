"""Bugs to plant: a wrong part of the product for the right one, put in by one function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Part = Any
"""A part of the product: a function, a method, a property or a module; None for an attribute that only objects have."""


class Bug:
    """Parts of the product, and what makes the wrong one from the right one. It is called to plant all of them."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.swaps: list[tuple[object, str, Callable[[Part], Part]]] = []

    def __call__(self, planted: pytest.MonkeyPatch) -> None:
        for where, name, wrong in self.swaps:
            planted.setattr(where, name, wrong(getattr(where, name, None)), raising=False)

    def also(self, name: str, *places: object) -> Callable[[Callable[[Part], Part]], Bug]:
        """Add what the decorated function makes of the part ``name`` of each of some places."""

        def add(wrong: Callable[[Part], Part]) -> Bug:
            self.swaps += [(where, name, wrong) for where in places]
            return self

        return add

    def includes(self, other: Bug) -> None:
        """Plant another bug too."""
        self.swaps += other.swaps


def bug(name: str, *places: object) -> Callable[[Callable[[Part], Part]], Bug]:
    """Make a bug: the decorated function makes the wrong part from the right one."""
    return lambda wrong: Bug(wrong.__name__).also(name, *places)(wrong)
