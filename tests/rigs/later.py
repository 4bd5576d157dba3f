"""Modules that take seconds to load, where a test that needs one runs: every worker reads every
file of tests, and few run those of one cloud."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """The module of that name, loaded when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # pytest looks at all that a file has
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
