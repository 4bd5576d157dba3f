"""The `budget` block of a job file: cost and interruptions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spotd.base.errors import suggest
from spotd.domain.preferences import NO_LIMIT, Caps, SpendAlert
from spotd.spec.block import Block
from spotd.spec.findings import Findings
from spotd.spec.quantities import Usd


def _as_texts(value: Any) -> Any:
    """YAML has 50 for a number, and a key of JSON is a text."""
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value


class Budget(Block):
    """What the job may cost, and how often it may be interrupted: each ends it by itself."""

    max_cost_usd: Usd | None = Field(
        default=None, description="Reached, the job is stopped; its last save comes on top"
    )
    max_interruptions: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="It goes on after so many machines were taken away or lost"
    )
    routes: Annotated[dict[Literal["50", "80", "100"], str], BeforeValidator(_as_texts)] = Field(
        default={}, description="Alert routes by percent of max_cost_usd; else those of the job"
    )


def read_caps(budget: Budget, known: Collection[str] | None, found: Findings) -> Caps:
    """`known` are the routes of the configuration, None where they are not known."""
    where: tuple[str, ...] = ("spotd", "budget", "routes")
    if budget.routes and not budget.max_cost_usd:
        found.refuse(where, "are for max_cost_usd, and there is none", "write max_cost_usd: 800")
    for percent, name in budget.routes.items():
        if known is not None and name not in known:
            text = f"no route {name!r} is configured"
            found.refuse((*where, percent), text, suggest(name, known))
    most = NO_LIMIT if budget.max_interruptions is None else budget.max_interruptions
    told = sorted((int(percent), route) for percent, route in budget.routes.items())
    return Caps(most, tuple(SpendAlert(percent, route) for percent, route in told))
