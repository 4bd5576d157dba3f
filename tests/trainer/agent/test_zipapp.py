"""The agent as deployed: one file, run by the system's own Python with nothing installed."""

from __future__ import annotations

import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from spotd.act.bundle import build_bundle
from spotd.wire import Heartbeat
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node

PYTHON = "/usr/bin/python3"


@pytest.fixture
def bare(node: Node) -> Node:
    """A machine with an empty home, the system's Python in isolated mode, and our one file."""
    assert shutil.which(PYTHON), "these tests need the system's Python, as a rented machine has it"
    path = node.home / "spot-node.pyz"
    path.write_bytes(build_bundle().data)
    return replace(node, program=(PYTHON, "-I", str(path)), environ={"PYTHONPATH": "/nowhere"})


def test_it_imports_nothing_but_itself_and_the_standard_library(bare: Node) -> None:
    names = "print(' '.join({name.partition('.')[0] for name in [*sys.modules, *more]}))"
    known = f"import sys; more = sys.stdlib_module_names; {names}"
    ours = (
        f"import sys; more = []; sys.path.insert(0, {bare.program[-1]!r})\n"
        "import trainer.node, providers.aws.notice, providers.gcp.notice, providers.azure.notice\n"
        f"{names}"
    )
    assert imported(ours) - imported(known) == {"providers", "spotd", "trainer"}


def imported(code: str) -> set[str]:
    done = subprocess.run(
        [PYTHON, "-I", "-c", code], capture_output=True, check=True, text=True, cwd="/"
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_the_whole_life_of_a_node(bare: Node, cloud: str) -> None:
    with serve_metadata(cloud) as service:
        machine = replace(bare, watcher=cloud, metadata_base=service.url)
        with machine:
            assert machine.run()["started"] is True
            assert machine.run()["started"] is False
            machine.start(
                setup="echo ready > ready",
                run="cat ready; trap 'exit 0' TERM; while :; do sleep 0.05; done",
            )
            machine.wait_for_log("ready")
            machine.kill_agent(signal.SIGKILL)
            machine.run()
            following = machine.follow()
            wait_until("a heartbeat", lambda: following.of(Heartbeat))
            service.publish("preempt", 1_000_000)
            machine.wait_for(wire.NOTICE)
            machine.send(wire.RELEASE)
            assert machine.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
            head = machine.head()
            assert head is not None
            assert head.released
            wait_until("it was followed", lambda: following.lines()[-1] is not None)
            assert list(machine.home.glob("**/__pycache__")) == []


def test_on_a_read_only_file(bare: Node) -> None:
    Path(bare.program[-1]).chmod(0o400)
    assert bare.run()["started"] is True
