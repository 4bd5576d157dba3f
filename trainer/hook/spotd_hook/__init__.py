"""Save and resume training under spotd: all of spotd that a training program imports.

Python >= 3.10, the standard library and torch. The agent puts the package on the program's path.

Use `Run` in your own training loop, `spotd_hook.hf.Callback` and `spotd_hook.lightning.Callback`
with the trainers of those libraries, and `report_results`, which needs no torch, after an
evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import report_results
    from .run import Run

__all__ = ["Run", "report_results"]
_MODULES = {"Run": "run", "report_results": "results", "hf": "hf", "lightning": "lightning"}


def __getattr__(name: str) -> Any:
    """Import torch and other libraries only when they are used."""
    from importlib import import_module  # noqa: PLC0415

    if name not in _MODULES:
        raise AttributeError(f"module 'spotd_hook' has no attribute {name!r}")
    module = import_module(f".{_MODULES[name]}", __name__)
    return getattr(module, name) if name in __all__ else module
