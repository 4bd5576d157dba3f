"""On the local cloud: what a job has downloaded is on its next machine before `setup`, and what it
has in a bucket on each, copied or mounted."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from providers.stores import open_store
from spotd.demo.box import running_box, wait_for
from spotd.demo.s3 import serving
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, UP_TIMEOUT_S, Run

JOB = """\
name: cached
resources: {{infra: "*", cpus: 1+, use_spot: true}}
file_mounts:
  ~/data: "{url}"
  ~/mounted: {{source: "{url}"}}
  ~/cached:
    {{source: "{url}", mode: MOUNT_CACHED, config: {{mount_cached: {{vfs_cache_max_size: 1MB}}}}}}
setup: |
  set -e
  grep -qx words ~/data/corpus/a.txt
  grep -qx words ~/mounted/corpus/a.txt
  if touch ~/mounted/new; then exit 9; fi
  mkdir -p wheels ~/.cache/model
  [ -e wheels/w ] || echo "of $SPOTD_GENERATION" | tee ~/.cache/model/m > wheels/w
run: |
  [ "$SPOTD_GENERATION" = 1 ] && sleep 300
  grep -qx words ~/cached/corpus/a.txt &&
  grep -qx "of 1" wheels/w && grep -qx "of 1" ~/.cache/model/m
spotd: {{cache: [wheels, ~/.cache/model]}}
"""


@pytest.mark.e2e
@pytest.mark.xdist_group("kills of others")
def test_a_cache_is_on_the_next_machine(folder: Path, python: Path) -> None:
    with (
        serving() as bucket,
        running_box(folder, SCENARIO, bucket.settings(folder / "key"), python) as box,
    ):
        open_store(bucket.url, bucket.options).put("corpus/a.txt", b"words\n")
        run = Run(box, box.submit(JOB.format(url=bucket.url), "cached"), Random(1))

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
        wait_for("its machines to be gone", lambda: mounts_below(folder) == [], UP_TIMEOUT_S)
    assert sum("changed, and is stored: 1 files" in text for text in told) == 2, told
    assert sum("restored: 1 files" in text for text in told) == 2, told


def mounts_below(folder: Path) -> list[str]:
    """A bucket's, on machines of the box."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "fuse.rclone" in line and str(folder) in line]
