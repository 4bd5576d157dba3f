"""At the end a machine's own disks are wiped, and nothing else."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.base.paths import AgentPaths
from trainer.agent.cleanup import wipe as wiping
from trainer.agent.cleanup.wipe import wipe
from trainer.agent.main import agent, shutdown


@pytest.fixture
def paths(tmp_path: Path) -> AgentPaths:
    """A machine with the remains of a job."""
    found = AgentPaths(tmp_path / "home", tmp_path / "home" / "job" / "g1", tmp_path / "memory")
    for folder in (found.workdir / "deep" / "er", found.logs, found.memory):
        folder.mkdir(parents=True)
    (found.home / "packages").mkdir()
    (found.home / "packages" / "code.tar.gz").write_bytes(b"code")
    (found.workdir / "deep" / "er" / "weights").write_bytes(b"w")
    (found.workdir / "data").write_bytes(b"d")
    found.journal.write_text("{}\n")
    return found


def test_what_the_job_left_is_removed_and_what_is_still_read_stays(paths: AgentPaths) -> None:
    said = wipe(paths)
    assert said == {
        "what": ["workdir", "packages"],
        "how": "removed",
        "left_mounts": [],
        "failed": 0,
    }
    assert not paths.workdir.exists()
    assert not (paths.home / "packages").exists()
    assert paths.journal.exists()
    assert paths.logs.exists()
    assert wipe(paths)["failed"] == 0, "again is the same"


def test_a_link_is_removed_and_never_followed(paths: AgentPaths, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    (paths.workdir / "deep" / "link").symlink_to(elsewhere)
    (paths.workdir / "gone").symlink_to("nowhere")
    assert wipe(paths)["failed"] == 0
    assert (elsewhere / "mine").read_text() == "mine"
    shutil.rmtree(paths.home / "job")
    paths.folder.mkdir(parents=True)
    paths.workdir.symlink_to(elsewhere)
    wipe(paths)
    assert (elsewhere / "mine").exists()


@pytest.mark.parametrize("name", ["bucket", "my bucket", "tab\there"])
def test_a_mounted_bucket_is_its_owners(
    paths: AgentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mount = paths.workdir / "deep" / name
    mount.mkdir()
    (mount / "dataset").write_text("terabytes")
    table = tmp_path / "mountinfo"
    shown = str(mount).replace(" ", "\\040").replace("\t", "\\011")
    table.write_text(
        "22 27 0:20 / /proc rw - proc proc rw\n"
        f"99 27 0:44 / {shown} rw,relatime - fuse.s3fs s3fs rw\n"
    )
    monkeypatch.setattr(wiping, "_MOUNTS", table)
    said = wipe(paths)
    assert said["left_mounts"] == [str(mount)]
    assert said["failed"] == 0
    assert (mount / "dataset").read_text() == "terabytes"
    assert not (paths.workdir / "deep" / "er").exists()
    assert not (paths.workdir / "data").exists()


def test_what_cannot_be_removed_is_counted(
    paths: AgentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, *args: bool) -> None:
        if path.name == "weights":
            raise PermissionError
        unlink(path, *args)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert wipe(paths)["failed"] == 4, "the file, and the three folders above it"
    assert not (paths.workdir / "data").exists(), "the rest goes"


def test_the_system_table_of_mounts_can_be_read() -> None:
    assert Path("/proc") in wiping.mount_points()


# --- a real agent


@pytest.mark.parametrize(("code", "wiped"), [(0, True), (3, False)])
def test_a_job_that_ended_leaves_nothing_unless_somebody_may_want_to_look(
    node: Node, code: int, *, wiped: bool
) -> None:
    node.wipe = True
    node.run()
    node.start(run=f"echo secret > made-here; exit {code}")
    node.wait_for(wire.EXITED)
    if wiped:
        said = node.wait_for(wire.WIPED)
        assert said.seq > node.wait_for(wire.EXITED).seq
        assert not node.paths.workdir.exists()
    else:
        node.live_on(0.5)
        assert wire.WIPED not in node.kinds()
        assert (node.paths.workdir / "made-here").exists()


def test_what_a_container_still_writes_is_wiped_too(node: Node, tmp_path: Path) -> None:
    """Files of its root can be removed only after the engine has removed the container."""
    engine = tmp_path / "engine"
    late = node.paths.workdir / "late"
    engine.write_text(f"#!/bin/sh\nsleep 1; echo secret >{late}\n")
    engine.chmod(0o755)
    node.wipe = True
    node.run()
    node.paths.container.write_text(json.dumps([str(engine)]))
    node.start(run="true")
    said = node.wait_for(wire.WIPED)
    assert not node.paths.container.exists(), "it was removed before"
    assert said.data["failed"] == 0
    assert not node.paths.workdir.exists()


def test_an_agent_that_is_told_to_leave_wipes_first(node: Node, tmp_path: Path) -> None:
    """The removal takes longer than an agent lingers after a stop command."""
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\nsleep {agent.LINGER_STOPPED_S + 2}\n")
    engine.chmod(0o755)
    node.wipe = True
    node.run()
    node.paths.container.write_text(json.dumps([str(engine)]))
    node.start(run="true")
    node.wait_for(wire.EXITED)
    pid = node.agent_pid
    node.send("stop")
    assert wire.WIPED not in node.kinds()
    assert node.wait_for(wire.WIPED).data["failed"] == 0
    assert not node.paths.workdir.exists()
    wait_until("the agent has left", lambda: not is_running(pid))


def test_a_wipe_that_is_cut_short_is_not_on_record(node: Node, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\nsleep 20\n")
    engine.chmod(0o755)
    node.wipe = True
    node.run()
    node.paths.container.write_text(json.dumps([str(engine)]))
    node.start(run="true")
    node.wait_for(wire.EXITED)
    node.kill_agent(signal.SIGTERM)
    assert wire.WIPED not in node.kinds()


def test_an_engine_that_hangs_keeps_nobody_from_wiping(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "REMOVAL_S", 0.2)
    paths = node.paths
    paths.memory.mkdir(parents=True, exist_ok=True)
    paths.container.write_text("[]")
    started = time.monotonic()
    shutdown.wait_container_removed(paths)
    assert time.monotonic() - started >= 0.2


def test_a_machine_that_switches_itself_off_leaves_nothing(node: Node, tmp_path: Path) -> None:
    off = tmp_path / "off"
    node.unattended_s, node.power_off = 2.0, ("touch", str(off))
    node.run()
    pid = node.agent_pid
    wait_until("the machine is off", off.exists)
    wait_until("the agent has left", lambda: not is_running(pid))
    assert not node.paths.workdir.exists()
    assert node.paths.journal.exists(), "where it cannot be switched off, a box may still read it"
