"""What a job has downloaded is on its next machine before `setup`, on the local cloud."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotd.demo.box import running_box, wait_for
from spotd.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, UP_TIMEOUT_S, Run

JOB = """\
name: cached
resources: {infra: "*", cpus: 1+, use_spot: true}
setup: |
  mkdir -p wheels ~/.cache/model
  [ -e wheels/w ] || echo "of $SPOTD_GENERATION" | tee ~/.cache/model/m > wheels/w
run: |
  [ "$SPOTD_GENERATION" = 1 ] && sleep 300
  grep -qx "of 1" wheels/w && grep -qx "of 1" ~/.cache/model/m
spotd: {cache: [wheels, ~/.cache/model]}
"""


@pytest.mark.e2e
@pytest.mark.xdist_group("kills of others")
def test_a_cache_is_on_the_next_machine(folder: Path, python: Path) -> None:
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(JOB, "cached"), Random(1))

        def said() -> list[str]:
            return [event["text"] for event in box.events(run.job_id) if event["kind"] == "cache"]

        wait_for("both to be kept", lambda: len(said()) == 2, UP_TIMEOUT_S)
        node: dict[str, Any] = next(
            one for one in box.job(run.job_id)["nodes"] if one["state"] == "running"
        )
        run.die(node["instance_id"], "reset")
        ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        told = said()
    assert sum("changed, and is kept: 1 files" in text for text in told) == 2, told
    assert sum("restored: 1 files" in text for text in told) == 2, told
