"""Images on a rig's record, as if bakes had made them."""

from __future__ import annotations

from dataclasses import replace

from spotd.store.images import ImageRow
from tests.spotd.api.rig import Rig


def image(rig: Rig, name: str = "torch", ago_s: float = 7_230, **fields: object) -> ImageRow:
    """One that is there, in aws."""
    at_us = rig.ago(ago_s)
    row = ImageRow(
        node_id=f"jold-{name}",
        job_id="jold",
        name=name,
        provider="aws",
        region="us-east-1",
        vendor_name=f"spotd-{name}-k2j4",
        setup="0123456789abcdef" * 2,
        version="0.1",
        asked_at_us=at_us,
        image_id=f"ami-{name}",
        size_gib=200,
        made_at_us=at_us,
    )
    row = replace(row, **fields)  # type: ignore[arg-type]
    rig.store.images.adopt(row)
    return row


def bake_one(rig: Rig) -> None:
    """Two of one name, in two clouds, of which one has no price that is known."""
    image(rig)
    image(
        rig,
        node_id="jold-gcp",
        provider="gcp",
        region="",
        image_id="projects/p/global/images/spotd-torch-x7y2",
        vendor_name="spotd-torch-x7y2",
        base="projects/p/global/images/base",
    )
