"""Of a checkpoint, what stays in its machine's region costs no egress, and the rest does."""

from __future__ import annotations

from dataclasses import replace

from spotd.model import CheckpointSpec, S
from spotd.serve.accounts import Window, _egress
from spotd.store.base import CheckpointRow
from tests.spotd.decide.build import job, market, node, offer, spec

GB = 10**9


def test_what_is_kept_beside_the_machine_left_nothing() -> None:
    gcp = replace(offer("c-1a"), cloud="gcp", region="us-central1")
    machine = node(offer=gcp, claimed_at_us=S)
    saving = job(spec=spec(checkpoint=CheckpointSpec("s3://b/x", "spotd")))
    there = market((gcp,), places={"s3://b": ("aws", "us-east-2")}, leaving={"gcp": 120_000})
    rows = [
        CheckpointRow(
            *(saving.id, machine.generation, step, f"m{step}", 100 * GB, "", False, False),
            *(2 * S, 0.1, 0.2, near),
        )
        for step, near in ((1, 100 * GB), (2, 40 * GB), (3, 0))
    ]
    [item], unknown = _egress(saving, [machine], rows, there, Window(0, 9 * S))
    assert unknown == []
    assert (item.quantity, item.cost_microusd) == (160.0, 160 * 120_000)
    assert _egress(saving, [machine], rows[:1], there, Window(0, 9 * S)) == ([], [])
