"""Preemption of machines with real processes and connections."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from providers.base import CapacityType, Instance, InstanceState, NoticeKind
from providers.local.cloud import LocalCloud
from providers.local.control import ControlError, RunningCloud
from tests.fixtures.local_cloud import connected, launch_running, run, wait_state
from tests.fixtures.processes import alive, carrying, parent_of, state_of
from tests.fixtures.waiting import LIMIT_S, until

# A daemon as the worst user writes it: forked twice, session of its own, environment wiped.
DETACHED = r"""
python3 - <<'PY'
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2):
            os.close(fd)
        os.execve("/bin/sh", ["sh", "-c", "echo $$ > daemon.pid; while :; do echo x >> beats; sleep 0.02; done"], {"PATH": os.environ["PATH"]})
    os._exit(0)
PY
"""  # noqa: E501


def personality(local: RunningCloud, name: str, deployment: str = "taking") -> LocalCloud:
    return LocalCloud(f"local-{name}", local.url, name, deployment, token_file=local.token_file)


def machine_row(local: RunningCloud, instance: Instance) -> dict[str, Any]:
    rows = local.control.state()["instances"]
    return next(row for row in rows if row["instance_id"] == instance.instance_id)


def notice_row(local: RunningCloud, notice_id: str) -> dict[str, Any]:
    rows = local.control.state()["notices"]
    return next(row for row in rows if row["notice_id"] == notice_id)


def disk(local: RunningCloud, instance: Instance) -> Path:
    return Path(f"/proc/{machine_row(local, instance)['pid']}/cwd").resolve()


def read_pid(path: Path) -> int:
    return until(lambda: int(path.read_text()) if path.exists() and path.read_text() else 0)


def drain(recv: Callable[[int], bytes]) -> str:
    """Read until nothing comes for the time-out ("silence"), or the other side ends ("end")."""
    try:
        while recv(65536):
            pass
    except TimeoutError:
        return "silence"
    except ConnectionResetError:
        pass
    return "end"


def detach(local: RunningCloud, instance: Instance) -> tuple[int, Path]:
    """Start the daemon; return its pid and its heartbeat file.

    Its parent may end a moment after it has begun. If it is stopped before that, the kernel ends it
    by SIGHUP, as it does with a stopped process whose process group becomes an orphan.
    """
    assert run(instance, DETACHED).code == 0
    home = disk(local, instance)
    pid = read_pid(home / "daemon.pid")
    until(lambda: parent_of(pid) == machine_row(local, instance)["pid"])
    return pid, home / "beats"


@pytest.mark.parametrize("mode", ["notice", "reset"])
def test_reclaim_kills_what_detached_itself(local: RunningCloud, mode: str) -> None:
    cloud = personality(local, "aws")
    instance = launch_running(cloud, f"reclaim-{mode}")
    daemon, beats = detach(local, instance)
    pid = machine_row(local, instance)["pid"]
    runtime = run(instance, "echo $XDG_RUNTIME_DIR").out.strip()
    (notice,) = local.control.preempt(instance=instance.instance_id, notice_s=0.4, mode=mode)
    assert alive(daemon)
    gone = wait_state(cloud, instance.token, InstanceState.TERMINATED)
    assert "reclaimed" in gone.error
    assert not alive(daemon)
    assert not alive(pid)
    assert carrying("SPOTD_LOCAL_INSTANCE", instance.instance_id) == []
    assert not beats.parent.exists()
    assert not Path(runtime).exists()
    done = notice_row(local, notice["notice_id"])
    # Neither early nor late: the machine has all of its notice (the wait allows for a busy box).
    assert 0.38e6 <= done["reclaimed_at_us"] - done["published_at_us"] < 2e6


def test_reset_drops_the_connection(local: RunningCloud) -> None:
    instance = launch_running(personality(local, "gcp"), "drop")
    with connected(instance) as transport:
        channel = transport.open_session(timeout=LIMIT_S)
        channel.settimeout(LIMIT_S)
        channel.exec_command("sleep 60")
        local.control.preempt(instance=instance.instance_id, kind="none", mode="reset")
        assert channel.recv(1) == b""
        until(lambda: not transport.is_active())


def test_silent_end_sends_nothing_until_it_is_terminated(begin: Any) -> None:
    local = begin("silent_retention_s = 0.3")
    cloud = personality(local, "aws")
    instance = launch_running(cloud, "silent")
    daemon, _beats = detach(local, instance)
    pid = machine_row(local, instance)["pid"]
    with (
        connected(instance) as transport,
        socket.create_connection((instance.host, instance.port), timeout=LIMIT_S) as raw,
    ):
        assert raw.recv(4) == b"SSH-"
        raw.settimeout(1.0)
        while b"\n" not in raw.recv(4096):
            pass
        channel = transport.open_session(timeout=LIMIT_S)
        channel.exec_command("while :; do echo beat; sleep 0.01; done")
        assert channel.recv(5) == b"beat\n"
        (notice,) = local.control.preempt(instance=instance.instance_id, kind="none", mode="silent")
        assert notice["reclaimed_at_us"] > 0
        assert wait_state(cloud, "silent", InstanceState.TERMINATED)
        assert not alive(daemon)
        until(lambda: state_of(pid) == "T")  # one in a call of the kernel ends that first
        channel.settimeout(0.3)
        assert drain(channel.recv) == "silence"  # what was under way, and no end of the stream
        assert transport.is_active()
        assert drain(raw.recv) == "silence"  # not even a FIN or RST on the bare connection
        cloud.terminate(instance.instance_id)
        until(lambda: not alive(pid))
        raw.settimeout(LIMIT_S)
        assert drain(raw.recv) == "end"


def test_a_frozen_machine_is_silent_and_listed_as_running_until_it_is_terminated(
    local: RunningCloud,
) -> None:
    cloud = personality(local, "gcp")
    instance = launch_running(cloud, "frozen")
    daemon, _beats = detach(local, instance)
    pid = machine_row(local, instance)["pid"]
    with socket.create_connection((instance.host, instance.port), timeout=LIMIT_S) as raw:
        assert raw.recv(4) == b"SSH-"
        (notice,) = local.control.preempt(instance=instance.instance_id, kind="none", mode="frozen")
        assert notice["reclaimed_at_us"] > 0
        until(lambda: state_of(daemon) == state_of(pid) == "T")
        raw.settimeout(0.3)
        assert drain(raw.recv) == "silence"
        (row,) = [row for row in local.control.meter() if row["token"] == "frozen"]
        assert row["ended_at_us"] is None
        assert wait_state(cloud, "frozen", InstanceState.RUNNING)
        cloud.terminate(instance.instance_id)
        gone = wait_state(cloud, "frozen", InstanceState.TERMINATED)
        assert gone.error == ""
        until(lambda: not alive(daemon) and not alive(pid))


def test_a_frozen_machine_may_come_back(local: RunningCloud) -> None:
    cloud = personality(local, "aws")
    instance = launch_running(cloud, "hiccup")
    daemon, beats = detach(local, instance)
    local.control.preempt(
        instance=instance.instance_id, kind="none", mode="frozen", thaw_after_s=0.2
    )
    frozen = beats.stat().st_size if beats.exists() else 0
    until(lambda: state_of(daemon) != "T")
    until(lambda: beats.exists() and beats.stat().st_size > frozen)
    assert run(instance, "echo here").out == "here\n"
    assert wait_state(cloud, "hiccup", InstanceState.RUNNING)


def test_billing_ends_at_reclaim_not_at_terminate(local: RunningCloud) -> None:
    cloud = personality(local, "azure")
    instance = launch_running(cloud, "bill")
    local.control.preempt(instance=instance.instance_id, kind="none", mode="silent")
    wait_state(cloud, "bill", InstanceState.TERMINATED)

    def billed() -> float:
        return next(r["seconds"] for r in local.control.meter() if r["token"] == "bill")

    first = billed()
    cloud.terminate(instance.instance_id)
    time.sleep(0.2)  # time in which a meter that still ran would show it
    assert billed() == first


def test_zombie_runs_again_after_the_cloud_gave_it_up(local: RunningCloud) -> None:
    cloud = personality(local, "aws")
    instance = launch_running(cloud, "zombie")
    daemon, beats = detach(local, instance)
    until(lambda: beats.exists() and beats.stat().st_size > 10)
    (notice,) = local.control.preempt(
        instance=instance.instance_id,
        kind="none",
        mode="silent",
        thaw_after_s=0.6,
        zombie_s=0.8,
    )
    wait_state(cloud, "zombie", InstanceState.TERMINATED)
    assert state_of(daemon) == "T"
    frozen = beats.stat().st_size
    cloud.terminate(instance.instance_id)  # changes nothing for a zombie
    until(lambda: alive(daemon) and state_of(daemon) != "T")
    until(lambda: beats.stat().st_size > frozen)  # our code runs, on a machine that is gone
    assert notice_row(local, notice["notice_id"])["thawed_at_us"] > 0
    assert wait_state(cloud, "zombie", InstanceState.TERMINATED)
    until(lambda: not alive(daemon))
    until(lambda: not beats.parent.exists())


@pytest.mark.req("PRE-03")
def test_withdrawn_notice_takes_nothing(local: RunningCloud) -> None:
    cloud = personality(local, "azure")
    instance = launch_running(cloud, "withdrawn")
    (notice,) = local.control.preempt(instance=instance.instance_id, notice_s=0.5)
    withdrawn = local.control.withdraw(notice["notice_id"])
    assert withdrawn["withdrawn_at_us"] > 0
    time.sleep(0.7)  # past the deadline that was
    assert run(instance, "echo here").out == "here\n"
    with pytest.raises(ControlError, match="too late"):
        local.control.withdraw(notice["notice_id"])


def test_gcp_takes_no_preemption_back(local: RunningCloud) -> None:
    instance = launch_running(personality(local, "gcp"), "firm")
    (notice,) = local.control.preempt(instance=instance.instance_id, notice_s=30)
    with pytest.raises(ControlError, match="never withdraws a preemption"):
        local.control.withdraw(notice["notice_id"])


def test_only_spot_machines_are_preempted_and_rebalance_is_aws(local: RunningCloud) -> None:
    cloud = personality(local, "aws")
    instance = launch_running(cloud, "own", capacity_type=CapacityType.ON_DEMAND)
    with pytest.raises(ControlError, match="on demand"):
        local.control.preempt(instance=instance.instance_id)
    other = launch_running(personality(local, "gcp"), "no-rebalance")
    with pytest.raises(ControlError, match="no rebalance"):
        local.control.rebalance(other.instance_id)
    with pytest.raises(ControlError, match="no running machine"):
        local.control.preempt(instance="i-nothing")
    with pytest.raises(ControlError, match="name an instance"):
        local.control.preempt(notice_s=1)


def test_whole_zone(local: RunningCloud) -> None:
    cloud = personality(local, "azure")
    zone = {"region": "eastus", "zone": "eastus-2"}
    for number in range(3):
        launch_running(cloud, f"zone-{number}", **zone)
    launch_running(cloud, "zone-own", capacity_type=CapacityType.ON_DEMAND, **zone)
    launch_running(cloud, "zone-other")
    notices = local.control.preempt(personality="azure", zone="eastus-2", notice_s=0.1)
    assert sorted(n["token"] for n in notices) == ["zone-0", "zone-1", "zone-2"]
    for number in range(3):
        wait_state(cloud, f"zone-{number}", InstanceState.TERMINATED)
    wait_state(cloud, "zone-own", InstanceState.RUNNING)
    wait_state(cloud, "zone-other", InstanceState.RUNNING)


def test_aws_queue_tells_late_and_once(begin: Any) -> None:
    local = begin("aws_queue_delay_s = 0.3")
    cloud = personality(local, "aws")
    instance = launch_running(cloud, "queued")
    (notice,) = local.control.preempt(instance=instance.instance_id, notice_s=60)
    assert list(cloud.notices()) == []
    (queued,) = until(cloud.notices)
    assert queued.notice_id == notice["notice_id"]
    assert queued.instance_id == instance.instance_id
    assert queued.kind is NoticeKind.PREEMPT
    assert queued.deadline_us == notice["deadline_us"]
    assert list(cloud.notices()) == []
    assert list(personality(local, "aws", "other").notices()) == []


def test_aws_queue_of_a_restarted_cloud_is_read_from_its_beginning(begin: Any) -> None:
    before, after = begin(""), begin("")
    cloud = personality(before, "aws")
    for number in range(2):
        instance = launch_running(cloud, f"before-{number}")
        before.control.preempt(instance=instance.instance_id, notice_s=60)
    until(lambda: cloud._last_notice == 2 or cloud.notices())
    cloud._client = personality(after, "aws")._client  # another server, where the old one was
    instance = launch_running(cloud, "after")
    (notice,) = after.control.preempt(instance=instance.instance_id, notice_s=60)
    (queued,) = until(cloud.notices)
    assert queued.notice_id == notice["notice_id"]
    assert list(cloud.notices()) == []


def test_machine_that_dies_by_itself(local: RunningCloud) -> None:
    """Killing a machine's root process ends the machine, and the cloud reports it."""
    cloud = personality(local, "aws")
    instance = launch_running(cloud, "crash")
    assert run(instance, "setsid sleep 300 </dev/null >/dev/null 2>&1 & sleep 0.1").code == 0
    pid = machine_row(local, instance)["pid"]
    assert len(carrying("SPOTD_LOCAL_INSTANCE", instance.instance_id)) == 1
    assert run(instance, f"kill -9 {pid}").code in (-1, 137)
    gone = wait_state(cloud, "crash", InstanceState.TERMINATED)
    assert "died" in gone.error
    assert carrying("SPOTD_LOCAL_INSTANCE", instance.instance_id) == []


def test_max_run(local: RunningCloud) -> None:
    cloud = personality(local, "gcp")
    launch_running(cloud, "limited", max_run_s=1)
    wait_state(cloud, "limited", InstanceState.TERMINATED)
    (row,) = [r for r in local.control.meter() if r["token"] == "limited"]
    assert row["end_reason"] == "max_run"
    assert 1.0 <= row["seconds"] < 4.0
