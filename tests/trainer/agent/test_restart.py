"""The agent is killed and restarted: training does not notice, and nothing is reported twice."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.base.paths import write_private

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).with_name('worker.py')}"


def numbered_without_a_gap(node: Node) -> bool:
    seqs = [entry.seq for entry in node.journal()]
    return seqs == list(range(1, len(seqs) + 1))


def test_training_survives_and_its_exit_code_is_known(node: Node) -> None:
    node.run()
    node.start(run="echo up; until [ -e go ]; do sleep 0.02; done; echo bye; exit 7")
    node.wait_for_log("up")
    node.kill_agent()
    assert node.is_program_alive()
    assert node.run()["started"] is True
    assert node.is_program_alive()
    (node.paths.workdir / "go").touch()
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == 7
    assert exited["tail"] == "up\nbye\n"
    assert numbered_without_a_gap(node)
    assert node.kinds().count(wire.HELLO) == node.kinds().count(wire.STARTED) == 1


def test_what_ended_meanwhile_is_found(node: Node) -> None:
    node.run()
    node.start(run="echo up; until [ -e go ]; do sleep 0.02; done")
    node.wait_for_log("up")
    node.kill_agent()
    (node.paths.workdir / "go").touch()
    wait_until("the script has ended", lambda: not node.is_program_alive())
    node.run()
    assert node.wait_for(wire.EXITED).data["code"] == 0
    head = node.head()
    assert head is not None
    assert head.final, "a new agent takes up the claim of the old one"


def test_a_store_that_is_away_ends_no_running_script(node: Node) -> None:
    node.run()
    node.start(run="echo up; until [ -e go ]; do sleep 0.02; done")
    node.wait_for_log("up")
    node.kill_agent()
    away = node.store_root.rename(node.store_root.with_name("away"))
    node.store_root.symlink_to(node.store_root)  # not even opened can it be
    node.run()
    (node.paths.workdir / "go").touch()
    wait_until("the script has ended", lambda: not node.is_program_alive())
    log = node.paths.agent_log
    wait_until("an attempt", lambda: "store does not answer" in log.read_text())
    assert wire.EXITED not in node.kinds()
    node.store_root.unlink()
    away.rename(node.store_root)
    assert node.wait_for(wire.EXITED).data["code"] == 0
    head = node.head()
    assert head is not None
    assert head.final


def test_a_shell_that_an_earlier_agent_held_begins_no_line(node: Node) -> None:
    saver = "import signal, time; signal.signal(15, lambda *_: print('asked', flush=True))"
    script = f"{saver}; print('up', flush=True)\nwhile not __import__('os').path.exists('go'):"
    (node.home / "saver.py").write_text(f"{script}\n    time.sleep(0.01)\n")
    node.run()
    run = f"bash -c '{shlex.quote(sys.executable)} {node.home}/saver.py; echo LINE'\necho LINE"
    node.start(run=run, stop_grace_s=300.0)
    node.wait_for_log("up")
    node.send(wire.RELEASE)
    node.wait_for_log("asked")
    node.kill_agent()
    (node.paths.workdir / "go").touch()
    node.run()
    assert node.wait_for(wire.EXITED).data["ranks"] == {"0": 128 + signal.SIGTERM}
    assert "LINE" not in node.log()


def test_a_worker_comes_back_and_nothing_is_lost(node: Node) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    node.send(wire.SAVE)
    node.wait_for(wire.CHECKPOINT)
    node.kill_agent()
    time.sleep(0.3)  # steps are taken meanwhile
    node.run()
    seen = len(node.entries(wire.PROGRESS))
    wait_until("progress goes on", lambda: len(node.entries(wire.PROGRESS)) > seen + 20)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    steps = [entry.data["to_step"] for entry in node.entries(wire.PROGRESS)]
    # The link sends again what it had not sent; a line in flight at the kill may be lost.
    assert steps == sorted(set(steps))
    assert len(steps) >= steps[-1] - 3
    assert node.log().count("save") == 1, "the count of saves asked for is remembered"
    assert numbered_without_a_gap(node)


@pytest.mark.parametrize("when", ["unpacking", "setup", "claiming"])
def test_killed_at_any_stage_it_takes_up_the_thread(node: Node, when: str) -> None:
    node.run()
    setup = {"unpacking": "", "setup": "echo setup; sleep 0.7", "claiming": "echo setup"}[when]
    claim = {"claim": "after_release", "claim_deadline_s": 2.0}
    if when == "claiming":
        other = node.start_document().storage.store_url
        from providers.stores import open_store
        from trainer.fence import Fence

        Fence(open_store(other), "job-1", 0, "old").claim()
    node.start(setup=setup, run="echo ran", **claim)
    if when == "setup":
        node.wait_for_log("setup", "setup")
    if when == "claiming":
        node.wait_for(wire.READY)
    node.kill_agent()
    node.run()
    assert node.wait_for(wire.EXITED).data["code"] == 0
    assert node.log() == "ran\n"
    assert node.log("setup").count("setup") == (0 if when == "unpacking" else 1)
    assert node.kinds().count(wire.READY) == node.kinds().count(wire.CLAIMED) == 1
    assert numbered_without_a_gap(node)


def test_many_kills_in_a_row(node: Node) -> None:
    node.run()
    node.start(run=f"{WORKER} --steps 150", engine="spotd")
    pause_s = 0.15
    while wire.EXITED not in node.kinds():
        node.kill_agent()
        node.run()
        time.sleep(pause_s)
        pause_s *= 1.1  # however slow this machine is, one of them has the time
    assert node.entries(wire.EXITED)[0].data["code"] == 0
    assert node.kinds().count(wire.EXITED) == node.kinds().count(wire.STARTED) == 1
    assert numbered_without_a_gap(node)


def test_a_notice_is_remembered(node: Node) -> None:
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.train_and_save(f"{WORKER} --save-s 1")
            deadline_us = int(time.time() + 9.0) * 1_000_000
            service.publish("preempt", deadline_us)
            node.wait_for(wire.NOTICE)
            node.kill_agent()
            service.fault("error_503")  # the new agent cannot ask
            node.run()
            released = node.wait_for(wire.RELEASED)
            # Asked 4.3 s before the deadline, 1 + 1.3 x 1 + 2, and it takes a second.
            assert 0 < (deadline_us - released.at_us) / 1e6 <= 3.4
            assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
            assert node.kinds().count(wire.NOTICE) == 1


def test_a_stop_under_way_is_carried_on(node: Node) -> None:
    node.run()
    node.start(
        run="trap '' TERM; echo up; while :; do sleep 0.05; done",
        stop_grace_s=2.0,
    )
    node.wait_for_log("up")
    node.send(wire.RELEASE)
    node.wait_for(wire.DRAINING)
    node.kill_agent()
    node.run()
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert node.wait_for(wire.RELEASED)


def test_sigterm_ends_the_agent_and_leaves_training_alone(node: Node) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    node.kill_agent(signal.SIGTERM)
    assert node.is_program_alive()
    text = node.entries(wire.WARNING)[-1].data["text"]
    assert "training continues without it" in text
    time.sleep(0.5)
    assert node.is_program_alive()
    assert "stop" not in node.log()


def test_a_supervisor_that_is_killed_ends_its_script(node: Node) -> None:
    node.run()
    node.start(run="echo up; sleep 1000")
    node.wait_for_log("up")
    pids = node.pids()
    assert pids is not None
    os.kill(pids.supervisor.pid, signal.SIGKILL)
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == 137
    assert "was killed" in exited["tail"]
    wait_until("the script is gone", lambda: not is_running(pids.program.pid))


def test_an_agent_killed_between_order_and_start_does_not_run_it_twice(node: Node) -> None:
    """A live supervisor is recorded, and the script is not there yet."""
    node.run()
    node.kill_agent()
    sleeper = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
    try:
        from trainer.agent.process.processes import identify

        supervisor = identify(sleeper)
        assert supervisor is not None
        mark = f"[{supervisor.pid},{supervisor.started}]"
        write_private(node.paths.memory / "run.ordered", mark.encode())
        node.run()
        node.start(run="echo ran")
        node.live_on(1.5)
        assert node.log() == "", "that supervisor may still start it"
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)
    assert node.wait_for(wire.EXITED).data["code"] == 0
    assert node.log() == "ran\n"


def test_after_a_restart_of_the_machine_it_begins_anew(node: Node) -> None:
    node.run()
    node.start(run="echo ran; exit 3")
    node.wait_for(wire.EXITED)
    node.kill_agent()
    journal = node.paths.journal
    hello = node.entries(wire.HELLO)[0].data["boot_id"].encode()
    journal.write_bytes(journal.read_bytes().replace(hello, b"another-boot"))
    for left in node.paths.memory.iterdir():
        left.unlink()
    node.run()
    assert node.kinds().count(wire.HELLO) == 2
    node.start(run="echo again; exit 4")
    wait_until("the second exit", lambda: len(node.entries(wire.EXITED)) == 2)
    assert node.entries(wire.EXITED)[1].data["code"] == 4
    assert numbered_without_a_gap(node)
