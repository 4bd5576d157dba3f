"""What a pickle says, without doing it: numbers, texts and lists as they are, everything else as a
record of what would be called with what. Nothing is imported, made or called.

torch.distributed.checkpoint keeps its index in this format alone.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"}
)
_NOTHING = frozenset({"PROTO", "FRAME"})
_COUNTS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class SafePickleError(ValueError):
    """It is no pickle, or has what is not known here."""


@dataclass(frozen=True)
class GlobalName:
    """Something of a module: "torch float32"."""

    text: str


@dataclass(eq=False)
class ReducedObject:
    """An object that would be made by calling `of` with `args`, and given `state`."""

    of: Any
    args: Any
    state: Any = None


@dataclass(eq=False)
class Pairs:
    """A dictionary; keys are not hashed, which could take forever."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def named(self) -> dict[str, Any]:
        """Those with texts as keys."""
        return {key: value for key, value in self.items if isinstance(key, str)}


def read_inert(data: bytes) -> Any:
    """Raises InertError."""
    reading = _PickleReader()
    try:
        for code, argument, _ in pickletools.genops(data):
            if code.name == "STOP":
                return reading.stack.pop()
            reading.take(code.name, argument)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise SafePickleError(f"it cannot be read: {error}") from None
    raise SafePickleError("it has no end")


class _PickleReader:
    """Raises what an unsound pickle leads to."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._made: dict[str, Callable[[], Any]] = {
            "MARK": lambda: _MARK,
            "NONE": lambda: None,
            "NEWTRUE": lambda: True,
            "NEWFALSE": lambda: False,
            "EMPTY_TUPLE": tuple,
            "EMPTY_LIST": list,
            "EMPTY_SET": list,
            "EMPTY_DICT": Pairs,
            "TUPLE": lambda: tuple(self._marked()),
            "STACK_GLOBAL": self._name,
            "REDUCE": self._record,
            "NEWOBJ": self._record,
            "BINPERSID": lambda: ReducedObject("persistent", self.stack.pop()),
        }
        self._done: dict[str, Callable[[], None]] = {
            "APPEND": lambda: self._extend([self.stack.pop()]),
            "APPENDS": lambda: self._extend(self._marked()),
            "ADDITEMS": lambda: self._extend(self._marked()),
            "SETITEM": lambda: self._set([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda: self._set(self._marked()),
            "BUILD": self._build,
        }

    def take(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self._memo
        if name in _VALUES:
            stack.append(argument)
        elif name in self._made:
            stack.append(self._made[name]())
        elif name in self._done:
            self._done[name]()
        elif name in _COUNTS:
            stack[-_COUNTS[name] :] = [tuple(self._last(_COUNTS[name]))]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(GlobalName(str(argument)))
        elif name not in _NOTHING:
            raise SafePickleError(f"{name} is not known here")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("nothing is left")
        return self.stack[-count:]

    def _marked(self) -> list[Any]:
        """What came since the last mark."""
        found: list[Any] = []
        while (one := self.stack.pop()) is not _MARK:
            found.append(one)
        return found[::-1]

    def _name(self) -> GlobalName:
        module, name = self.stack.pop(-2), self.stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise SafePickleError("a name is no text")
        return GlobalName(f"{module} {name}")

    def _record(self) -> ReducedObject:
        return ReducedObject(self.stack.pop(-2), self.stack.pop())

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise SafePickleError("what is added to is no list")
        self.stack[-1] += values

    def _set(self, values: list[Any]) -> None:
        one = self.stack[-1]
        if isinstance(one, ReducedObject):
            return  # an OrderedDict or the like: of no interest
        one.items += list(zip(values[::2], values[1::2], strict=True))

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], ReducedObject):
            raise SafePickleError("a state is given to what is no object")
        self.stack[-1].state = state
