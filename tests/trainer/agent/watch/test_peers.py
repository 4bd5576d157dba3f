"""How long ranks wait for other machines, and the warning before they give up."""

from __future__ import annotations

import os
import sys
import time
import zlib

import pytest

from spotd import wire
from spotd.wire import AgentConfig, StartDocument
from tests.fixtures.forks import TORCH, Fork, nursery
from tests.fixtures.ports import free_port
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.agent.node import Node
from trainer.agent.base.paths import AgentPaths
from trainer.agent.run.prepare import build_env
from trainer.agent.watch.hang_detector import MAX_GAP_S
from trainer.agent.watch.peers import PEERS, PeerMonitor

WAITS_S = 100.0


def told_at(watch: PeerMonitor, begin_s: float, end_s: float, timeout_s: float = WAITS_S) -> float:
    """Return when the warning comes, with a check every half second; -1 for never."""
    moments = (begin_s + 0.5 * n for n in range(int((end_s - begin_s) * 2) + 1))
    return next((now for now in moments if watch.check(now, timeout_s, 7)), -1.0)


def test_it_is_told_once_in_time_before_they_give_up() -> None:
    watch = PeerMonitor(0.0)
    assert told_at(watch, 0.0, 79.5) == -1
    remark = watch.check(80.0, WAITS_S, 7)
    assert remark is not None
    assert remark.verdict == PEERS
    assert remark.text.startswith("no rank here has made a step after step 7 for 80 s")
    assert "they give up in 20 s (spotd.peer_timeout)" in remark.text
    assert told_at(watch, 80.5, 500.0) == -1, "once a silence"
    watch.reset()
    assert told_at(watch, 500.5, 700.0) == 580.0


def test_of_a_program_that_has_made_no_step_yet() -> None:
    watch = PeerMonitor(0.0)
    told_at(watch, 0.0, 79.5)
    remark = watch.check(80.0, WAITS_S, 0)
    assert remark is not None
    assert "no rank here has made a step since it was started" in remark.text


def test_nothing_is_told_while_nobody_waits_and_that_is_no_silence() -> None:
    watch = PeerMonitor(0.0)
    assert told_at(watch, 0.0, 300.0, timeout_s=0.0) == -1
    assert told_at(watch, 300.5, 500.0) == pytest.approx(380.0, abs=MAX_GAP_S)


def test_a_time_in_which_nobody_looked_is_no_silence() -> None:
    watch = PeerMonitor(0.0)
    watch.check(5000.0, WAITS_S, 0)
    assert told_at(watch, 5000.5, 5077.0) == -1


def environment(start: StartDocument, node: Node, rank: int = 1) -> dict[str, str]:
    # A name of its own, for the port where they meet follows from it.
    config = AgentConfig("d", f"job{zlib.crc32(str(node.home).encode())}", 2, rank, "token", "none")
    return build_env(
        os.environ, config, start, AgentPaths(node.home, node.home, node.home), claim_until=0.0
    )


def torchruns(node: Node, ranks: int, wait_s: float, *more: str) -> list[Fork]:
    """Start so many torchruns of a gang of two, each in the environment from its machine's
    agent."""
    start = node.start_document(
        num_nodes=2, node_ips=("127.0.0.1", "127.0.0.1"), peer_timeout_s=wait_s
    )
    told = 'echo "rank $RANK of $WORLD_SIZE"'
    words = [*more, "--nproc-per-node", "1", "--no-python", "bash", "-c", told]
    place = nursery(*TORCH, "torch.distributed.launcher.api")
    log = node.home / "torchrun.log"
    node.home.mkdir(exist_ok=True)
    return [
        place.fork("torch.distributed.run", words, environment(start, node, rank), node.home, log)
        for rank in range(ranks)
    ]


def by_c10d() -> tuple[str, ...]:
    """A command with its own rendezvous options."""
    endpoint = f"127.0.0.1:{free_port()}"
    return ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "own")


@pytest.mark.req("ELA-03")
@pytest.mark.parametrize("own", [False, True])
def test_torchruns_meet_by_what_the_agents_say_or_as_their_command_does(
    node: Node, *, own: bool
) -> None:
    more = by_c10d() if own else ()
    assert [one.wait(LIMIT_S) for one in torchruns(node, 2, 60.0, *more)] == [0, 0]
    said = sorted((node.home / "torchrun.log").read_text().splitlines())
    assert [line for line in said if line.startswith("rank")] == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.req("ELA-06")
@pytest.mark.parametrize("own", [False, True])
def test_torchrun_gives_up_when_the_other_machine_does_not_come_in_time(
    node: Node, *, own: bool
) -> None:
    more = by_c10d() if own else ()
    began_s = time.monotonic()
    [alone] = torchruns(node, 1, 3.0, *more)
    assert alone.wait(LIMIT_S) != 0
    assert time.monotonic() - began_s >= 3.0
    said = (node.home / "torchrun.log").read_text().lower()
    assert "timed out" in said or "timeout" in said


def test_the_programs_own_collectives_are_told_as_well(node: Node) -> None:
    given = environment(node.start_document(peer_timeout_s=1500.0), node)
    assert given["SPOTD_PEER_TIMEOUT_S"] == "1500"
    older = environment(node.start_document(num_nodes=2), node)
    assert older["SPOTD_PEER_TIMEOUT_S"] == ""
    assert "PET_RDZV_CONF" not in older, "of a box that does not say"


@pytest.mark.req("ELA-06")
def test_a_gang_whose_other_machine_does_not_come_is_told_of(node: Node) -> None:
    node.run()
    waits = f"{sys.executable} -c 'import time; time.sleep(60)'"
    node.start(run=waits, engine="spotd", num_nodes=2, peer_timeout_s=3.0)
    warning = node.wait_for(wire.WARNING)
    assert warning.data["verdict"] == PEERS
    assert warning.data["about"]["timeout_s"] == 3.0
    assert node.is_program_alive(), "it is told while they still wait"


def test_of_a_program_of_its_own_nobody_knows(node: Node) -> None:
    node.run()
    node.start(run="sleep 60", engine="none", num_nodes=2, peer_timeout_s=1.0)
    node.wait_for(wire.STARTED)
    node.live_on(2.0)
    assert wire.WARNING not in node.kinds()
