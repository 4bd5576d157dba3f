"""The `stage_ahead` block: copy data sets to regions where the job may go next."""

from __future__ import annotations

from pydantic import Field

from spotd.domain.preferences import NOT_AHEAD, PrefetchLimits
from spotd.spec.block import Block
from spotd.spec.findings import Findings
from spotd.spec.quantities import Usd


class StageAhead(Block):
    """Limits for data sets that the daemon copies to where the job may go next."""

    regions: int = Field(default=1, ge=1, le=16, description="How many, as placement ranks them")
    max_usd: Usd = Field(description="For all of it: egress, requests, and a month of lying there")


def read_prefetch(
    block: StageAhead | None, sources: list[str], findings: Findings
) -> PrefetchLimits:
    """Return the limits. `sources` are those of the job's file mounts."""
    if block is None:
        return NOT_AHEAD
    if not any(source.startswith("dataset://") for source in sources):
        findings.refuse(
            ("spotd", "stage_ahead"),
            "is for data sets, and none is in file_mounts",
            "mount one as dataset://NAME, or leave it out",
        )
    return PrefetchLimits(block.regions, block.max_usd)
