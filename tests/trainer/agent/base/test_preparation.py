"""Nothing of the job runs before the machine's preparation succeeded; after a failure it is given
up."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"
FATAL = "nvidia-smi shows 7 of 8 GPUs"


@pytest.fixture
def state(node: Node) -> Path:
    """The file in which the preparation records its result."""
    path = node.home / "prepared"
    node.prepared_file = str(path)
    return path


def statuses(node: Node) -> list[str]:
    return [entry.data["status"] for entry in node.entries(wire.PREPARED)]


def test_setup_waits_for_it(node: Node, state: Path) -> None:
    node.run()
    node.start(setup="touch ran", run=WORKER, engine="spotd")
    wait_until("that it is told", lambda: statuses(node) == ["begin"])
    node.live_on(1.0)
    assert wire.SETUP not in node.kinds()
    assert not (node.paths.workdir / "ran").exists()
    state.write_text("ok\n")
    node.wait_for(wire.PROGRESS)
    assert (node.paths.workdir / "ran").exists()
    assert statuses(node) == ["begin", "ok"]
    kinds = node.kinds()
    assert kinds.index(wire.PREPARED) < kinds.index(wire.SETUP) < kinds.index(wire.STARTED)


def test_one_that_is_over_is_not_waited_for(node: Node, state: Path) -> None:
    state.write_text("ok\n")
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    assert statuses(node) == ["ok"]


@pytest.mark.parametrize("started", [True, False])
def test_one_that_failed_gives_the_machine_up(node: Node, state: Path, started: bool) -> None:
    node.run()
    if started:
        node.start(setup="touch ran", run=WORKER, engine="spotd")
        wait_until("that it waits", lambda: statuses(node) == ["begin"])
    state.write_text(f"{FATAL}\nand more\n")
    ended = node.wait_for(wire.EXITED).data
    assert (ended["code"], ended["tail"]) == (wire.EXIT_UNFIT, FATAL)
    unwell = node.wait_for(wire.UNWELL).data
    assert (unwell["what"], unwell["text"], unwell["again"]) == ("machine", FATAL, False)
    assert not (node.paths.workdir / "ran").exists()
    assert wire.STARTED not in node.kinds()
    assert node.kinds().count(wire.UNWELL) == 1


def test_one_that_never_ends_gives_the_machine_up(node: Node, state: Path) -> None:
    node.environ["SPOTD_PREPARED_S"] = "1"
    node.run()
    node.start(run=WORKER, engine="spotd")
    ended = node.wait_for(wire.EXITED).data
    assert ended["code"] == wire.EXIT_UNFIT
    assert ended["tail"] == "the machine's preparation has not finished within 1 s"


@pytest.mark.parametrize("over", [True, False])
def test_an_agent_that_comes_after_goes_on_where_it_was(
    node: Node, state: Path, over: bool
) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    wait_until("that it waits", lambda: statuses(node) == ["begin"])
    if over:
        state.write_text("ok\n")
        node.wait_for(wire.PROGRESS)
    node.kill_agent()
    state.write_text("ok\n")
    node.run()
    node.wait_for(wire.PROGRESS)
    node.live_on(1.0)
    assert statuses(node).count("ok") == 1
    assert node.kinds().count(wire.STARTED) == 1


def test_a_stop_while_it_works_leaves_nothing_to_come(node: Node, state: Path) -> None:
    node.run()
    node.start(setup="touch ran", run=WORKER, engine="spotd")
    wait_until("that it waits", lambda: statuses(node) == ["begin"])
    assert node.send(wire.DRAIN, {"reason": "cancelled"}).ok
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    state.write_text("ok\n")
    node.live_on(1.0)
    assert wire.SETUP not in node.kinds()
    assert wire.UNWELL not in node.kinds()
    assert not (node.paths.workdir / "ran").exists()
