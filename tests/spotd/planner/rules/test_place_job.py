"""Which of the ranked offers a machine is asked for from."""

from __future__ import annotations

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec
from spotd.domain.queue import Limits
from spotd.planner.core.shard_stores import StorePlace
from tests.spotd.planner.build import market, offer, settle, spec, view

USD = 1_000_000
NEAR, CHEAP = offer("aws-1a", 36), offer("gcp-1a", 35)  # beside its checkpoints, and dearer to save
SAVES = CheckpointSpec("s3://b/x", "spotd", every_s=300.0, size_bytes=100 * 10**9)
PRICED = market(
    (NEAR, CHEAP),
    places={"s3://b": StorePlace("aws", NEAR.region)},
    egress_microusd_per_gb={"gcp": 120_000},
)


@pytest.mark.parametrize(
    ("most", "nodes", "asked"),
    [(0, 1, NEAR), (46, 1, NEAR), (45, 1, CHEAP), (44, 1, NEAR), (80, 2, CHEAP), (82, 2, NEAR)],
    ids=["no limit", "room", "room for the other alone", "room for none", "a gang", "gang's room"],
)
def test_the_best_one_that_has_room_under_the_limit(most: int, nodes: int, asked: object) -> None:
    """$10 an hour run; where none has room the best is asked for, and the commit says no."""
    limited = changed(PRICED, limits=Limits(max_microusd_per_h=most * USD), microusd_per_h=10 * USD)
    job = {"spec": spec(checkpoint=SAVES, num_nodes=nodes)}
    after, _ = settle(view(job=job), limited)
    assert {node.offer for node in after.nodes} == {asked}
