"""What of a job's data is brought ahead of it, as its file says."""

from __future__ import annotations

from pydantic import Field

from spotd.domain.preferences import NOT_AHEAD, PrefetchLimits
from spotd.spec.block import Block
from spotd.spec.findings import Findings
from spotd.spec.quantities import Usd


class StageAhead(Block):
    """Its data sets, by the control box, to where the job may go next."""

    regions: int = Field(default=1, ge=1, le=16, description="How many, as placement ranks them")
    max_usd: Usd = Field(description="For all of it: egress, requests, and a month of lying there")


def read_ahead(block: StageAhead | None, sources: list[str], found: Findings) -> PrefetchLimits:
    """`sources` are those of the file mounts."""
    if block is None:
        return NOT_AHEAD
    if not any(source.startswith("dataset://") for source in sources):
        found.refuse(
            ("spotd", "stage_ahead"),
            "is for data sets, and none is in file_mounts",
            "mount one as dataset://NAME, or leave it out",
        )
    return PrefetchLimits(block.regions, block.max_usd)
