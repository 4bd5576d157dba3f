"""A job of two machines under torchrun, its weights divided between them: one of them is taken
away, with a notice and without, and the job ends in the bits of one machine (`make soak-e2e`)."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from random import Random

import pytest

from providers.stores import open_store
from spotd.demo.box import running_box
from spotd.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, SIZE, Run, open_records
from tests.trainer.rig import ROOT
from trainer.compare import first_difference

STEPS = 600
ARGUMENTS = f"--shard --virtual-ranks 2 --steps {STEPS} {SIZE} --threads 1 --device cpu"


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("SPOTD_GANGS"), reason="SPOTD_GANGS is not set")
@pytest.mark.xdist_group("kills of others")
@pytest.mark.parametrize("notice_s", [30.0, 0.0])
def test_a_gang_that_loses_a_machine_ends_in_the_same_bits(
    folder: Path, python: Path, tmp_path: Path, notice_s: float
) -> None:
    torchrun = f"{shlex.quote(str(python))} -m torch.distributed.run"
    job = f"""\
name: gang
num_nodes: 2
resources: {{infra: "*", cpus: 1+, use_spot: true}}
run: {torchrun} --nproc-per-node 1 -m trainer.train {ARGUMENTS} --step-time-ms 50
spotd:
  checkpoint: {{engine: spotd, every: 2s}}
  progress_every: 0.2s
"""
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(job, "gang"), Random(1))
        run.training(100)
        lost = next(node for node in box.job(run.job_id)["nodes"] if node["rank"] == 1)
        if notice_s:
            run.preempt(lost["instance_id"], notice_s)
        else:
            run.die(lost["instance_id"], "reset")
        ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        assert (ended["generation"], ended["failures"]) == (2, 0)
        records = open_records(box)
        try:
            rows = records.progress(run.job_id)
        finally:
            records.close()
        before = max((row for row in rows if row.generation == 1), key=lambda row: row.at_us)
        after = min((row for row in rows if row.generation == 2), key=lambda row: row.at_us)
        without_s = (after.first_at_us - before.last_at_us) / 1e6
        lost_steps = before.to_step + 1 - after.from_step
        assert lost_steps >= 0
        if notice_s:
            assert lost_steps <= 1
        print(f"notice of {notice_s:g} s: lost {lost_steps} steps and {without_s:.2f} s")
        alone = tmp_path / "alone"
        subprocess.run(
            [str(python), "-m", "trainer.train", *ARGUMENTS.split()],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SPOTD_JOB_ID": "job",
                "SPOTD_STORE_URL": alone.as_uri(),
            },
            check=True,
        )
        store, theirs = open_store(box.checkpoints_url), open_store(alone.as_uri())
        assert first_difference(store, run.job_id, theirs, "job") is None
