"""Ask the clouds about their readiness, all at once and within a time limit."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait

import structlog

from providers.base import Provider
from providers.readiness import CapacityNeed, Finding, ReadinessChecker, failed

log = structlog.get_logger(__name__)

PATIENCE_S = 30.0


def examine(
    providers: Mapping[str, Provider],
    needs: Mapping[str, Sequence[CapacityNeed]],
    patience_s: float = PATIENCE_S,
) -> dict[str, list[Finding]]:
    """Return each cloud's findings. One slower than `patience_s` is reported as such."""
    asked = {
        name: _begin(name, provider, needs.get(name, ()))
        for name, provider in providers.items()
        if isinstance(provider, ReadinessChecker)
    }
    wait(asked.values(), patience_s)
    return {name: _answer(answer, patience_s) for name, answer in asked.items()}


def _begin(
    name: str, provider: ReadinessChecker, needs: Sequence[CapacityNeed]
) -> Future[Sequence[Finding]]:
    """Start the check on a thread that does not keep the process from exiting."""
    answer: Future[Sequence[Finding]] = Future()

    def run() -> None:
        try:
            answer.set_result(provider.check_readiness(needs))
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            answer.set_exception(error)

    threading.Thread(target=run, name=f"examine-{name}", daemon=True).start()
    return answer


def _answer(answer: Future[Sequence[Finding]], patience_s: float) -> list[Finding]:
    if not answer.done():
        text = f"not all checks were answered within {patience_s:.0f} s"
        return [
            failed("answers", text, "check that this box can reach the cloud's API, and try again")
        ]
    error = answer.exception()
    if error is not None:
        log.error("examining", error=repr(error))
        return [failed("answers", f"{type(error).__name__}: {error}", "see the daemon's log")]
    return [*answer.result()]
