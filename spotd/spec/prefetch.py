"""The `stage_ahead` block: copy data sets to regions where the job may go next."""

from __future__ import annotations

from pydantic import Field

from spotd.domain.preferences import NOT_AHEAD, PrefetchLimits
from spotd.spec.block import Block
from spotd.spec.findings import Findings
from spotd.spec.quantities import Usd


class StageAhead(Block):
    """Limits for copying the job's data sets to places where it may run next."""

    regions: int = Field(
        default=1, ge=1, le=16, description="Number of places, in the order of placement"
    )
    max_usd: Usd = Field(description="Maximum total cost: egress, requests, and a month of storage")


def read_prefetch(
    block: StageAhead | None, sources: list[str], findings: Findings
) -> PrefetchLimits:
    """Return the limits. `sources` are those of the job's file mounts."""
    if block is None:
        return NOT_AHEAD
    if not any(source.startswith("dataset://") for source in sources):
        findings.refuse(
            ("spotd", "stage_ahead"),
            "applies to data sets, but file_mounts has none",
            "mount one as dataset://NAME, or leave it out",
        )
    return PrefetchLimits(block.regions, block.max_usd)
