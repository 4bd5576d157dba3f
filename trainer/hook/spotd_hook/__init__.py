"""What a training program imports of spotd, and all of it: Python >= 3.10, the standard library and
torch. The agent puts it on the program's path.

`Run` is for a loop of one's own; `spotd_hook.hf.Callback` and `spotd_hook.lightning.Callback` for
those libraries' trainers; `report_results`, which needs no torch, for what an evaluation
measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import report_results
    from .run import Run

__all__ = ["Run", "report_results"]
_MODULES = {"Run": "run", "report_results": "results", "hf": "hf", "lightning": "lightning"}


def __getattr__(name: str) -> Any:
    """torch, or a library, is imported by whoever needs it."""
    from importlib import import_module  # noqa: PLC0415

    if name not in _MODULES:
        raise AttributeError(f"module 'spotd_hook' has no attribute {name!r}")
    module = import_module(f".{_MODULES[name]}", __name__)
    return getattr(module, name) if name in __all__ else module
