"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True)
class Bug:
    """A mistake that a programmer could make, made from outside of the product's code.

    `seen_as` are the invariants that may tell of it first. It has to be found within `within`
    seeds of `profile`. `without` names the layers above it that would hide it, switched off.
    """

    name: str
    text: str
    seen_as: frozenset[str]
    plant: Plant
    profile: str = "swarm"
    within: int = 20
    without: str = ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While it lasts, the product has it."""
        with ExitStack() as stack:
            self.plant(stack)
            yield


def put(stack: ExitStack, where: object, name: str, what: object, *, create: bool = False) -> None:
    """Replace an attribute of a module or class, which has to exist unless `create` says not."""
    stack.enter_context(patch.object(where, name, what, create=create))
