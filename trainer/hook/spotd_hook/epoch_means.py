"""The values that Lightning's `self.log(..., on_epoch=True)` has collected in this epoch.

Lightning's own checkpoints have nothing of it: after a resume its means of an epoch are of the
batches since then. Metrics of torchmetrics are left out; only the program knows their states.

Needs lightning 2.5 or 2.6, Python >= 3.10.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultMetric,
    _Sync,
)

_STATES = ("value", "cumulated_batch_size")
_SETTINGS = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "add_dataloader_idx")
# Over ranks. A group of ranks that the program gives is not kept: it is all of them then.
_SYNC = ("_should", "rank_zero_only")


class EpochMeans:
    """The collected values of a fit loop on this rank, to be saved and completed after a resume."""

    def __init__(self, fit_loop: Any) -> None:
        self._results = fit_loop.epoch_loop._results  # noqa: SLF001
        self._reduce = fit_loop.trainer.strategy.reduce
        self._restored: dict[str, Any] = {}  # until there is a value of the same name

    def collect(self) -> dict[str, Any]:
        """Return the values, as a state dict."""
        self.merge()
        return {
            **self._restored,
            **{
                key: {
                    "states": {name: getattr(metric, name, None) for name in _STATES},
                    "settings": {name: getattr(metric.meta, name) for name in _SETTINGS},
                    "reduce": metric.meta.reduce_fx.__name__,
                    "sync": {name: getattr(metric.meta.sync, name) for name in _SYNC},
                }
                for key, metric in self._results.items()
                if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._restored = dict(state)

    def merge(self) -> None:
        """Add what was restored to the values that there are by now."""
        for key in self._restored.keys() & self._results.keys():
            metric, states = self._results[key], self._restored.pop(key)["states"]
            value = states["value"].to(metric.value.device)
            if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
                metric.value = metric.meta.reduce_fx(value, metric.value)
            else:
                metric.value = value + metric.value
            if states["cumulated_batch_size"] is not None:
                batches = states["cumulated_batch_size"].to(metric.value.device)
                metric.cumulated_batch_size = batches + metric.cumulated_batch_size

    def insert(self) -> list[str]:
        """Insert the values that have no others since the resume; return their keys."""
        inserted = list(self._restored)
        for key, saved in self._restored.items():
            meta = _Metadata(**saved["settings"], reduce_fx=getattr(torch, saved["reduce"]))
            meta.sync = _Sync(fn=self._reduce, **saved["sync"])
            self._results[key] = metric = _ResultMetric(meta, is_tensor=True)
            metric._update_count = 1  # noqa: SLF001 - else it warns that it is empty
        self.merge()
        return inserted

    def remove(self, keys: list[str]) -> None:
        """Remove inserted values: the program gives them settings of its own."""
        for key in keys:
            self._results.pop(key, None)
