"""A local machine can be switched off from inside, without affecting anything else."""

from __future__ import annotations

import shutil
from typing import Any

from providers.base import InstanceState
from providers.local.cloud import LocalCloud
from providers.local.control import RunningCloud
from tests.fixtures.local_cloud import launch_running, run, wait_state
from tests.fixtures.processes import carrying
from tests.fixtures.waiting import until


def test_it_ends_with_all_that_runs_on_it_and_its_cloud_knows_why(local: RunningCloud) -> None:
    cloud = LocalCloud("local", local.url, "aws", "power", token_file=local.token_file)
    machine, other = launch_running(cloud, "off"), launch_running(cloud, "on")
    run(machine, "setsid sleep 300 </dev/null >/dev/null 2>&1 & true")
    [switch] = cloud.power_off
    run(machine, f"setsid {switch} </dev/null >/dev/null 2>&1 & true")
    wait_state(cloud, "off", InstanceState.TERMINATED)
    until(lambda: not carrying("SPOTD_LOCAL_INSTANCE", machine.instance_id))

    def row(token: str) -> dict[str, Any]:
        rows = local.control.meter()
        return next(row for row in rows if row["token"] == token)

    assert row("off")["end_reason"] == "powered_off"
    assert run(other, "true").code == 0
    cloud.terminate(other.instance_id)


def test_no_computer_has_a_program_of_that_name() -> None:
    [switch] = LocalCloud.power_off
    assert shutil.which(switch) is None
    assert "spotd-local" in switch
