"""Count what only this process knows: its rounds and its calls to clouds.

The counts restart with the process. All other metrics come from the database
(spotd/api/metrics/exposition.py).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
)

from providers.base import Provider, ProviderError

ROUND_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
CALL_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
VERBS = ("offers", "launch", "terminate", "list", "notices")  # the port's

ROUND = "spotd_reconcile_round_seconds"
CALLS = "spotd_provider_calls_total"
CALL = "spotd_provider_call_seconds"

disable_created_metrics()  # type: ignore[no-untyped-call]


class ProcessMetrics:
    """The counters; `registry` has them. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rounds = Histogram(ROUND, HELP[ROUND], buckets=ROUND_S, registry=self.registry)
        labels = ("provider", "verb", "outcome")
        self._calls = Counter(CALLS, HELP[CALLS], labels, registry=self.registry)
        self._took = Histogram(
            CALL, HELP[CALL], ("provider", "verb"), buckets=CALL_S, registry=self.registry
        )

    def note_round(self, seconds: float) -> None:
        """A round of the loop that decided about some job."""
        self._rounds.observe(seconds)

    def watch(self, provider: Provider) -> Provider:
        """Count the calls of the provider from now on and return it.

        It is not wrapped: optional abilities of an adapter are found by its type
        (`ImageMaker`, `SerialConsole`), and a wrapper would hide that.
        """
        for verb in VERBS:
            setattr(provider, verb, self._counted(provider.name, verb, getattr(provider, verb)))
        return provider

    def _counted(self, name: str, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        self._calls.labels(name, verb, "ok")  # 0 is known from the start

        @functools.wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            began_s, outcome = time.monotonic(), "ok"
            try:
                return call(*args, **kwargs)
            except ProviderError as error:
                outcome = type(error).__name__
                raise
            except Exception:
                outcome = "bug"
                raise
            finally:
                self._calls.labels(name, verb, outcome).inc()
                self._took.labels(name, verb).observe(time.monotonic() - began_s)

        return counted


HELP = {
    ROUND: "Duration of one round of the reconcile loop that decided about at least one job.",
    CALLS: "Calls to a cloud by outcome: ok, or the kind of error.",
    CALL: "Duration of calls to a cloud, whatever their outcome.",
}
