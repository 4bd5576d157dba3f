"""Read a pickle without executing it.

Numbers, text and lists are returned as they are. Every other object is returned as a record of the
function that would be called and its arguments; nothing is imported, constructed or called.
torch.distributed.checkpoint stores its index as a pickle and in no other format.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_VALUE_OPCODES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"}
)
_NO_OP_OPCODES = frozenset({"PROTO", "FRAME"})
_TUPLE_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class SafePickleError(ValueError):
    """The data is not a pickle, or uses an opcode that is not supported."""


@dataclass(frozen=True)
class GlobalName:
    """A global of a module, as "module name", for example "torch float32"."""

    text: str


@dataclass(eq=False)
class ReducedObject:
    """An object that would be made by calling `function` with `args` and setting `state`."""

    function: Any
    args: Any
    state: Any = None


@dataclass(eq=False)
class Pairs:
    """A dictionary as a list of items. Keys are not hashed, because hashing may never end."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def text_keys(self) -> dict[str, Any]:
        """Return the items whose keys are text."""
        return {key: value for key, value in self.items if isinstance(key, str)}


def read_pickle(data: bytes) -> Any:
    """Return the pickled value. Raises SafePickleError."""
    reader = _PickleReader()
    try:
        for code, argument, _ in pickletools.genops(data):
            if code.name == "STOP":
                return reader.stack.pop()
            reader.execute(code.name, argument)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise SafePickleError(f"it cannot be read: {error}") from None
    raise SafePickleError("it has no end")


class _PickleReader:
    """A pickle machine. A malformed pickle raises LookupError, ValueError, TypeError and others."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._push_opcodes: dict[str, Callable[[], Any]] = {
            "MARK": lambda: _MARK,
            "NONE": lambda: None,
            "NEWTRUE": lambda: True,
            "NEWFALSE": lambda: False,
            "EMPTY_TUPLE": tuple,
            "EMPTY_LIST": list,
            "EMPTY_SET": list,
            "EMPTY_DICT": Pairs,
            "TUPLE": lambda: tuple(self._pop_to_mark()),
            "STACK_GLOBAL": self._pop_global,
            "REDUCE": self._pop_reduce,
            "NEWOBJ": self._pop_reduce,
            "BINPERSID": lambda: ReducedObject("persistent", self.stack.pop()),
        }
        self._update_opcodes: dict[str, Callable[[], None]] = {
            "APPEND": lambda: self._extend([self.stack.pop()]),
            "APPENDS": lambda: self._extend(self._pop_to_mark()),
            "ADDITEMS": lambda: self._extend(self._pop_to_mark()),
            "SETITEM": lambda: self._set_items([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda: self._set_items(self._pop_to_mark()),
            "BUILD": self._build,
        }

    def execute(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self._memo
        if name in _VALUE_OPCODES:
            stack.append(argument)
        elif name in self._push_opcodes:
            stack.append(self._push_opcodes[name]())
        elif name in self._update_opcodes:
            self._update_opcodes[name]()
        elif name in _TUPLE_SIZES:
            stack[-_TUPLE_SIZES[name] :] = [tuple(self._peek(_TUPLE_SIZES[name]))]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(GlobalName(str(argument)))
        elif name not in _NO_OP_OPCODES:
            raise SafePickleError(f"{name} is not known here")

    def _peek(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("nothing is left")
        return self.stack[-count:]

    def _pop_to_mark(self) -> list[Any]:
        """Pop and return the values above the last mark."""
        values: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _pop_global(self) -> GlobalName:
        module, name = self.stack.pop(-2), self.stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise SafePickleError("a name is not text")
        return GlobalName(f"{module} {name}")

    def _pop_reduce(self) -> ReducedObject:
        return ReducedObject(self.stack.pop(-2), self.stack.pop())

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise SafePickleError("items are appended to something that is not a list")
        self.stack[-1] += values

    def _set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, ReducedObject):
            return  # an OrderedDict or similar; its items are not needed
        target.items += list(zip(values[::2], values[1::2], strict=True))

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], ReducedObject):
            raise SafePickleError("a state is set on something that is not an object")
        self.stack[-1].state = state
