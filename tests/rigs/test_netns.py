"""A run that was killed leaves its machines to the next one, which removes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from providers.local.cloud import LocalCloud
from spotd.demo.box import wait_for
from tests.rigs import netns
from tests.rigs.local_cloud import launch_running, run
from tests.rigs.processes import alive

pytestmark = pytest.mark.root

LIMIT_S = 60.0
# A run with one machine that waits to be killed.
_RUN = """
import sys, time
from pathlib import Path
from providers.local.cloud import LocalCloud
from tests.rigs import netns
from tests.rigs.local_cloud import launch_running
with netns.network() as net, netns.RealBox(net, Path(sys.argv[1])) as box:
    box.start_cloud()
    cloud = LocalCloud("local", box.cloud_url, "aws", "d", token_file=box.token_file)
    machine = launch_running(cloud, "t")
    pid = netns.machine_of(box, net, machine.instance_id).pid
    print(net.bridge, pid, box.cloud.pid, flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_of_a_run_that_was_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    with process.stdout:
        bridge, *numbers = process.stdout.readline().split()
    pids = [int(number) for number in numbers]
    assert all(alive(pid) for pid in pids)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with netns.network():  # it sweeps first
        wait_for("its processes to end", lambda: not any(map(alive, pids)), LIMIT_S)
        left = Path(f"/sys/class/net/{bridge}/ifalias")  # or the number is another's by now
        assert not left.exists() or left.read_text().split()[0] != str(process.pid)


def state(box: netns.RealBox) -> dict[str, Any]:
    """The only machine's."""
    [row] = box.ask_cloud("/control/state")["instances"]
    return dict(row)


def test_a_machine_has_an_address_a_disk_and_a_name_of_its_own_and_is_switched_off_from_inside(
    tmp_path: Path,
) -> None:
    with netns.network() as net, netns.RealBox(net, tmp_path, disk="32m") as box:
        gateway = Path(f"/sys/class/net/{net.bridge}/address")
        before = gateway.read_text()
        box.start_cloud()
        cloud = LocalCloud("local", box.cloud_url, "aws", "d", token_file=box.token_file)
        machine = launch_running(cloud, "t")
        wait_for("it to boot", lambda: state(box)["booted_at_us"], LIMIT_S)
        assert gateway.read_text() == before, "machines come and go, and others go on reaching it"
        assert (machine.host, machine.port) == (str(net.network[2]), 22)
        said = run(machine, "hostname; echo mine > /etc/mine; df --output=size -m / | tail -1")
        name, size = said.out.split()
        assert (name, int(size)) == (machine.instance_id, 32)
        assert not Path("/etc/mine").exists()
        url = "http://169.254.169.254/latest/api/token"
        code = (
            f"import urllib.request as u; r = u.Request('{url}', method='PUT',"
            " headers={'X-aws-ec2-metadata-token-ttl-seconds': '60'});"
            " print(u.urlopen(r, timeout=10).status)"
        )
        assert run(machine, f'python3 -c "{code}"').out == "200\n"
        [switch] = cloud.power_off
        run(machine, f"setsid {switch} </dev/null >/dev/null 2>&1 &")

        def reason() -> str:
            return str(box.meter()[0]["end_reason"])

        assert wait_for("it to be off", reason, LIMIT_S) == "powered_off"
