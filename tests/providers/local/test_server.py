"""The server: what survives its end and what must not, and many machines at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from providers.base import Instance, InstanceState, OfferRequest, UnknownOutcome
from providers.local.cloud import LocalCloud
from providers.local.control import ControlError, RunningCloud, start
from tests.fixtures.local_cloud import attach, find, launch_request, launch_running, run, running
from tests.fixtures.processes import alive, below, carrying, parent_of
from tests.fixtures.waiting import LIMIT_S, until


def cloud_of(local: RunningCloud, personality: str = "aws") -> LocalCloud:
    return LocalCloud("local", local.url, personality, "server", token_file=local.token_file)


def busy_machines(local: RunningCloud) -> list[Instance]:
    """A plain machine, one with a detached daemon, a silently stopped one, and a future zombie."""
    cloud = cloud_of(local)
    machines = [launch_running(cloud, f"busy-{n}") for n in range(4)]
    for machine in machines:
        command = "setsid sleep 300 </dev/null >/dev/null 2>&1 & sleep 300 >/dev/null 2>&1 & true"
        run(machine, command)
    local.control.preempt(instance=machines[2].instance_id, kind="none", mode="silent")
    local.control.preempt(
        instance=machines[3].instance_id, kind="none", mode="silent", thaw_after_s=600
    )
    return machines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_server_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as local:
        machines = busy_machines(local)
        processes = below(local.process.pid)
        # The fork server, the machines, and the sleepers of all but the silent one.
        assert len(processes) >= 1 + 4 + 2 * 3
        os.kill(local.process.pid, number)
        local.process.wait(LIMIT_S)
        until(lambda: not any(alive(pid) for pid in processes))
        for machine in machines:
            assert carrying("SPOTD_LOCAL_INSTANCE", machine.instance_id) == []
        until(lambda: list((tmp_path / "instances").iterdir()) == [])


def test_the_end_of_the_fork_server_ends_everything(tmp_path: Path) -> None:
    with running(tmp_path) as local:
        busy_machines(local)
        processes = below(local.process.pid)
        fork_server = next(p for p in processes if parent_of(p) == local.process.pid)
        os.kill(fork_server, signal.SIGKILL)
        assert local.process.wait(LIMIT_S) == 1
        until(lambda: not any(alive(pid) for pid in processes))
        assert "fork server died" in (tmp_path / "server.log").read_text()


def test_meter_and_tokens_survive_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as local:
        cloud = cloud_of(local)
        request = launch_request(cloud, "before")
        cloud.launch(request)
        ended = launch_running(cloud, "ended")
        cloud.terminate(ended.instance_id)
        until(lambda: find(cloud, "ended").state is InstanceState.TERMINATED)  # type: ignore[union-attr]
        time.sleep(0.3)  # some time to be billed
        (before,) = [r for r in local.control.meter() if r["token"] == "ended"]
        local.process.kill()
        local.process.wait(LIMIT_S)
        with running(tmp_path) as again:
            back_us = time.time_ns() // 1000
            cloud = cloud_of(again)
            rows = {r["token"]: r for r in again.control.meter()}
            assert rows["ended"] == before
            lost = rows["before"]
            assert lost["end_reason"] == "server_gone"
            assert lost["launched_at_us"] < lost["ended_at_us"] <= back_us
            assert find(cloud, "before").state is InstanceState.TERMINATED  # type: ignore[union-attr]
            cloud.launch(request)  # the same token still means the same machine, which has ended
            assert find(cloud, "before").state is InstanceState.TERMINATED  # type: ignore[union-attr]
            launch_running(cloud, "after")


def test_a_torn_ledger_is_repaired(tmp_path: Path) -> None:
    with running(tmp_path) as local:
        launch_running(cloud_of(local), "torn")
    with (tmp_path / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"launch": {"instance_id": "i-half')
    with running(tmp_path) as local:
        launch_running(cloud_of(local), "next")
    for line in (tmp_path / "ledger.jsonl").read_text().splitlines():
        json.loads(line)


def test_meter_counts_what_the_machine_ran(tmp_path: Path) -> None:
    with running(tmp_path) as local:
        cloud = cloud_of(local, "gcp")
        instance = launch_running(cloud, "metered")
        started_s = time.monotonic()
        time.sleep(0.5)
        cloud.terminate(instance.instance_id)
        until(lambda: find(cloud, "metered").state is InstanceState.TERMINATED)  # type: ignore[union-attr]
        elapsed_s = time.monotonic() - started_s
        (row,) = local.control.meter()
        assert 0.5 <= row["seconds"] <= elapsed_s + 0.3
        assert row["ended_at_us"] - row["launched_at_us"] == pytest.approx(row["seconds"] * 1e6)
        assert (row["deployment"], row["capacity_type"]) == ("server", "spot")


def test_twenty_launches_at_once(local: RunningCloud) -> None:
    cloud = cloud_of(local, "azure")
    failures: list[BaseException] = []

    def launch(number: int) -> None:
        try:
            instance = launch_running(cloud, f"parallel-{number}")
            assert run(instance, f"echo {number}").out == f"{number}\n"
        except BaseException as error:  # noqa: BLE001  handed to the test below
            failures.append(error)

    threads = [threading.Thread(target=launch, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failures == []
    hosts = {i.host for i in cloud.list() if i.token.startswith("parallel-")}
    assert len(hosts) == 20
    for instance in cloud.list():
        cloud.terminate(instance.instance_id)
    until(lambda: all(i.state is InstanceState.TERMINATED for i in cloud.list()))


def test_only_loopback_is_bound(local: RunningCloud) -> None:
    instance = launch_running(cloud_of(local), "loopback")
    run(instance, "true")
    inodes = set()
    for pid in [local.process.pid, *below(local.process.pid)]:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            target = str(fd.readlink()) if fd.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    bound = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            row = line.split()
            if row[9] in inodes:
                bound.append((table, row[1]))
    assert len(bound) >= 3
    # Addresses are printed in the machine's byte order: 127.x.y.z ends in 7F.
    assert all(table == "tcp" and address.split(":")[0].endswith("7F") for table, address in bound)


def test_folder_is_for_one_server(local: RunningCloud, tmp_path: Path) -> None:
    with running(tmp_path), pytest.raises(ControlError, match="another local cloud uses"):
        start(tmp_path)


def test_bad_scenario_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('visibility = 3\n[[zone]]\npersonality = "awz"\n')
    completed = subprocess.run(
        [
            sys.executable,
            "-m",
            "providers.local.server",
            "--dir",
            str(tmp_path / "d"),
            "--scenario",
            str(path),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert completed.returncode == 2
    assert "did you mean 'visibility_s'" in completed.stderr
    assert "one of aws, gcp, azure" in completed.stderr
    assert "'region' is missing" in completed.stderr


def test_busy_port_is_told(local: RunningCloud, tmp_path: Path) -> None:
    port = int(local.url.rsplit(":", 1)[1])
    with pytest.raises(ControlError, match="cannot start"):
        start(tmp_path, port=port)


def test_dead_cloud_is_an_unknown_outcome(tmp_path: Path) -> None:
    with running(tmp_path) as local:
        cloud = cloud_of(local)
        request = launch_request(cloud, "dead")
    for call in (
        lambda: cloud.launch(request),
        lambda: cloud.terminate("i-1"),
        cloud.list,
        cloud.notices,
        lambda: cloud.offers(OfferRequest()),
    ):
        with pytest.raises(UnknownOutcome, match="no answer"):
            call()


def test_bad_calls_are_refused_in_words(local: RunningCloud) -> None:
    client = local.control
    for verb, body, text in (
        ("preempt", {"instance": "i-1", "notise_s": 3}, "did you mean 'notice_s'"),
        ("preempt", {"zone": "us-east-2a", "nth": 1}, "for scenario files"),
        ("fault", {"operation": "lunch", "kind": "quota"}, "one of launch, terminate"),
        ("price", {"usd_per_hour": 0}, "above 0"),
        ("price", {"usd_per_hour": "1"}, "a number of 0 or more"),
        ("capacity", {"count": -1}, "whole number"),
        ("metadata", {"instance": "i-1", "kind": "down"}, "no running machine"),
        ("withdraw", {"notice_id": "x"}, "no notice"),
        ("nonsense", {}, "no such call"),
    ):
        with pytest.raises(ControlError, match=text):
            client._post(verb, body)


def test_launch_requests_are_checked(local: RunningCloud) -> None:
    cloud = cloud_of(local)
    good: dict[str, Any] = {**vars(launch_request(cloud, "checked"))}
    good |= {"capacity_type": "spot", "tags": {"spotd-deployment": "x"}}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"token": ""}, "token is empty"),
        ({"tags": {}}, "tag spotd-deployment"),
        ({"tags": {"a": 1}}, "'tags'"),
        ({"capacity_type": "block"}, "'capacity_type'"),
        ({"disk_gib": "10"}, "'disk_gib'"),
        ({"zone": "nowhere"}, "no zone us-east-2/nowhere"),
        ({"host_private_key": "none"}, "SSH key"),
        ({"ssh_public_key": "none"}, "SSH key"),
        ({"host_public_key": good["ssh_public_key"]}, "not the public half"),
        ({"surprise": 1}, "unknown field 'surprise'"),
    ]
    for change, text in wrong:
        answer = local.control._client.call("POST", "/v1/aws/launch", body={**good, **change})
        assert answer.status == 400
        assert answer.document["error"]["code"] == "rejected"
        assert text in answer.document["error"]["text"]
    assert (
        find(LocalCloud("x", local.url, "aws", "x", token_file=local.token_file), "checked") is None
    )


def test_found_by_its_folder_and_shut_down_by_word(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no local cloud runs"):
        attach(tmp_path)
    with running(tmp_path) as local:
        instance = launch_running(cloud_of(local), "found")
        control = attach(tmp_path)
        (row,) = control.state()["instances"]
        assert row["instance_id"] == instance.instance_id
        assert row["local"]
        control.shutdown()
        assert local.process.wait(LIMIT_S) == 0
        assert not alive(row["pid"])
        with pytest.raises(ControlError, match="no local cloud runs"):
            attach(tmp_path)
