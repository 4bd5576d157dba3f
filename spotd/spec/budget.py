"""The `budget` block of a job file: limits on cost and interruptions, and their alert routes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spotd.base.errors import suggest
from spotd.domain.preferences import NO_LIMIT, Caps, SpendAlert
from spotd.spec.block import Block
from spotd.spec.findings import Findings
from spotd.spec.quantities import Usd


def text_keys(value: Any) -> Any:
    """Convert keys to text: YAML reads 50 as a number, but JSON keys are text."""
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value


class Budget(Block):
    """Limits on a job's cost and interruptions. Reaching either limit ends the job."""

    max_cost_usd: Usd | None = Field(
        default=None,
        description="The job is stopped when its cost reaches this; the final save is extra",
    )
    max_interruptions: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None,
        description="Number of preempted or lost machines that the job survives; the next ends it",
    )
    routes: Annotated[dict[Literal["50", "80", "100"], str], BeforeValidator(text_keys)] = Field(
        default={},
        description="Alert routes by percent of max_cost_usd; the job's own alerts by default",
    )


def read_caps(budget: Budget, known: Collection[str] | None, findings: Findings) -> Caps:
    """Check the block and return the job's limits.

    `known` are the configured alert routes, or None if the configuration is not available.
    """
    path: tuple[str, ...] = ("spotd", "budget", "routes")
    if budget.routes and not budget.max_cost_usd:
        findings.refuse(path, "need max_cost_usd, which is missing", "write max_cost_usd: 800")
    for percent, name in budget.routes.items():
        if known is not None and name not in known:
            message = f"no route {name!r} is configured"
            findings.refuse((*path, percent), message, suggest(name, known))
    max_interruptions = NO_LIMIT if budget.max_interruptions is None else budget.max_interruptions
    routes = sorted((int(percent), route) for percent, route in budget.routes.items())
    return Caps(max_interruptions, tuple(SpendAlert(percent, route) for percent, route in routes))
