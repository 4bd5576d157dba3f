"""A machine continues in another generation: nothing runs twice, and nothing is set up twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.cleanup.wipe import wipe
from trainer.agent.main import generation_handover

STAYS = "echo up; while :; do sleep 0.05; done"
DEAF = "trap '' TERM INT; " + STAYS
SETUP = "echo once >> made; pwd > where"


@pytest.fixture
def later(node: Node) -> Iterator[Node]:
    """The same machine, for generation 2."""
    with replace(node, generation=2, token="token-2", followers=[]) as machine:
        yield machine


def begin(node: Node, run: str = STAYS, **changes: object) -> None:
    node.run()
    node.start(run=run, setup=SETUP, engine="spotd", num_nodes=2, **changes)
    node.wait_for_log("up")


def programs(node: Node) -> list[int]:
    pids = node.pids()
    assert pids is not None
    return [pids.program.pid, pids.supervisor.pid]


@pytest.mark.req("ELA-05")
@pytest.mark.parametrize("run", [STAYS, DEAF], ids=["that hangs", "that hears no signal"])
def test_what_runs_ends_before_the_next_generation_says_hello(
    node: Node, later: Node, run: str
) -> None:
    begin(node, run)
    old, agent = programs(node), node.agent_pid
    later.run()
    assert not any(is_running(pid) for pid in [*old, agent])
    assert later.kinds()[0] == wire.HELLO
    later.start(run=STAYS, setup=SETUP, engine="spotd")
    later.wait_for_log("up")


def test_what_an_agent_left_that_is_dead_ends_too(node: Node, later: Node) -> None:
    begin(node)
    old = programs(node)
    node.kill_agent()
    assert is_running(old[0])
    later.run()
    wait_until("nothing of it runs", lambda: not any(is_running(pid) for pid in old))


def test_an_agent_that_does_not_answer_is_killed(
    node: Node, later: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(node)
    old, agent = programs(node), node.agent_pid
    os.kill(agent, signal.SIGSTOP)
    for name in ("REPLY_S", "STOP_S", "EXIT_S"):
        monkeypatch.setattr(generation_handover, name, 0.2)
    later.paths.folder.mkdir(parents=True)
    later.paths.workdir.mkdir()
    generation_handover.take_over_generation(later.paths, "job-1")
    wait_until("it is gone", lambda: not any(is_running(pid) for pid in [*old, agent]))


def test_setup_runs_once_on_a_machine_and_its_folder_keeps_its_name(
    node: Node, later: Node
) -> None:
    begin(node, "cat made where; echo up; exec sleep 60")
    here = str(node.paths.workdir)
    later.run()
    later.start(run="pwd -P; cat made where; echo begun; exec sleep 9", setup=SETUP, engine="spotd")
    later.wait_for_log("begun")
    assert later.log().splitlines() == [here, "once", here, "begun"]
    assert wire.SETUP not in later.kinds()
    with replace(node, generation=3, followers=[]) as third:
        third.run()
        third.start(run="pwd -P; cat made; echo begun", setup=SETUP, engine="spotd")
        third.wait_for_log("begun")
        assert third.log().splitlines() == [here, "once", "begun"]
        assert wipe(third.paths)["failed"] == 0
        assert not Path(here).exists()


def test_a_setup_that_was_cut_short_runs_again(node: Node, later: Node) -> None:
    node.run()
    node.start(run="true", setup="echo up; exec sleep 60", engine="spotd")
    node.wait_for_log("up", "setup")
    later.run()
    later.start(run=STAYS, setup=SETUP, engine="spotd")
    later.wait_for_log("up")
    assert later.wait_for(wire.SETUP)
    assert (later.paths.workdir / "made").read_text() == "once\n"
    assert not later.paths.inherits_workdir


def test_the_same_generation_again_takes_nothing_over_a_second_time(
    node: Node, later: Node
) -> None:
    begin(node)
    later.run()
    later.start(run=STAYS, engine="spotd")
    later.wait_for_log("up")
    later.kill_agent()
    later.run()
    assert later.is_program_alive()
    assert later.paths.inherits_workdir


def test_one_that_waits_for_its_rank_is_set_up_and_runs_nothing(node: Node, later: Node) -> None:
    node.run()
    node.start(run="echo up", setup=SETUP, engine="spotd", hold=True)
    node.wait_for(wire.READY)
    node.live_on(0.7)
    assert wire.STARTED not in node.kinds()
    assert node.kinds().count(wire.READY) == 1
    later.run()
    later.start(run="cat made; echo up", setup=SETUP, engine="spotd")
    later.wait_for_log("up")
    assert later.log() == "once\nup\n"


@pytest.mark.parametrize("regroups", [True, False])
def test_a_disk_that_may_be_needed_is_not_wiped(node: Node, regroups: bool) -> None:
    node.wipe, node.regroups = True, regroups
    begin(node, "echo up; trap 'exit 75' TERM; while :; do sleep 0.05; done")
    assert node.send(wire.RELEASE).ok
    node.wait_for(wire.EXITED)
    if regroups:
        node.live_on(0.5)
        assert wire.WIPED not in node.kinds()
        assert (node.paths.workdir / "made").exists()
    else:
        node.wait_for(wire.WIPED)
