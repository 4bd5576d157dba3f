"""Egress of datasets that a real agent copied from a real server, as `spotctl cost` shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from providers.stores import open_store
from spotd import wire
from spotd.demo.s3 import serving
from spotd.domain.datasets import DataSet
from spotd.observe.budgets import Budgets
from spotd.store.journal import JournalBatch
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl
from tests.trainer.agent.node import Node

SIZE = 20_000_000


def test_copied_dataset_is_billed_once_as_egress(
    rig: Rig, spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two machines in one region: the first fills the copy, the second reads only the copy."""
    copy_url = (tmp_path / "near").as_uri()
    job_id = rig.submit(ago_s=4000, text=JOB_FILE + "file_mounts: {~/data: dataset://corpus}\n")
    with serving() as bucket:
        rig.places = {bucket.url: ("gcp", "us-central1"), copy_url: ("aws", SPOT.region)}
        rig.datasets = {"corpus": DataSet(bucket.url, (copy_url,), 10**9, {"gcp": 120_000})}
        open_store(bucket.url, bucket.options).put("big", bytes(SIZE))
        bucket_spec = wire.Bucket(
            "~/data", bucket.url, bucket.options, copy_url, {}, 120_000, 10**9
        )
        for rank, name in enumerate(("first", "second")):
            row = rig.launch(job_id, SPOT, ago_s=3600, rank=rank)
            with Node(tmp_path / name / "home") as node:
                node.run()
                node.start(buckets=(bucket_spec,), run="wc -c < ~/data/big")
                node.wait_for(wire.EXITED)
                node.wait_for_log(str(SIZE))
                batch = JournalBatch(row.id, tuple(node.journal()), rig.ago(60))
            for _ in range(2):  # as a box that came back hears it again
                rig.store.journal.record([batch])
    before = _carried_microusd(rig, job_id)
    Budgets(list, rig.clock, places=lambda: rig.places).keep(rig.store)
    assert _carried_microusd(rig, job_id) - before == SIZE * 120_000 // 10**9
    assert spotctl(rig, "cost", "report", job_id, "-o", "json") == 0
    items = json.loads(capsys.readouterr().out)["items"]
    [item] = [node for node in items if node["kind"] == "egress"]
    assert item["what"] == "data that machines read out of gcp, list price"
    assert (item["quantity"], item["cost_usd"]) == (0.02, 0.0024)


def _carried_microusd(rig: Rig, job_id: str) -> int:
    """Return the storage and transfer costs that the job's limits count, in micro-USD."""
    view = rig.store.load_view(job_id, rig.clock.now_us())
    assert view is not None
    return view.spent_microusd
