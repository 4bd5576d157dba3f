"""A program that makes no step any more is shown, ended, and begun again; the second time it was
its last on this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from spotd import wire
from tests.trainer.agent.node import Node, wait_until
from trainer.agent.demands import Demands
from trainer.agent.hanging import GLANCE_S, LEAST_S, MIN_REPORTS, StepWatch
from trainer.agent.pace import Pace
from trainer.agent.recall import Recall

PYTHON = shlex.quote(sys.executable)
WORKER = f"{PYTHON} {Path(__file__).with_name('worker.py')}"
TINY = "--layers 1 --width 16 --heads 2 --block 16 --batch 2 --device cpu --threads 1"


def codes(node: Node) -> list[int]:
    return [entry.data["code"] for entry in node.entries(wire.EXITED)]


# --- what counts as hanging


def watch_of(step_s: float, reports: int = 3, *, stepping: bool = True) -> StepWatch:
    past = Recall("boot", False, frozenset(), (), (), (step_s,) * reports, 5)
    return StepWatch(Pace(past, Demands(Path("unused"))), 0.0, stepping=stepping)


def silent_until(watch: StepWatch, until_s: float, begin_s: float = 0.0) -> float | None:
    """When it is found to hang, looked at each half second."""
    moments = (begin_s + 0.5 * n for n in range(int((until_s - begin_s) * 2) + 1))
    return next((now for now in moments if watch.look(now)), None)


@pytest.mark.parametrize(
    ("step_s", "limit_s"), [(0.1, LEAST_S), (20.0, LEAST_S), (30.0, 150.0), (600.0, 3000.0)]
)
def test_it_takes_five_steps_and_two_minutes(step_s: float, limit_s: float) -> None:
    assert silent_until(watch_of(step_s), 4000.0) == limit_s


@pytest.mark.parametrize("watch", [watch_of(1.0, reports=2), watch_of(1.0, stepping=False)])
def test_nothing_is_said_of_a_program_whose_steps_are_not_known(watch: StepWatch) -> None:
    assert silent_until(watch, 10_000.0) is None


def test_every_word_of_the_program_shows_that_it_lives() -> None:
    watch = watch_of(1.0)
    assert silent_until(watch, LEAST_S - 1) is None
    watch.hear(stepped=False)
    assert silent_until(watch, 10_000.0, begin_s=LEAST_S - 1) == pytest.approx(
        2 * LEAST_S - 1, abs=GLANCE_S
    )


def test_a_time_in_which_nobody_looked_is_no_silence() -> None:
    watch = watch_of(1.0)
    assert not watch.look(1.0)
    assert not watch.look(5000.0), "the machine was frozen, and the program with it"
    assert watch.silent_s == 1.0 + GLANCE_S


def test_a_program_that_says_how_long_it_is_busy_has_that_time() -> None:
    watch = watch_of(1.0)
    watch.excuse(600.0)
    assert silent_until(watch, 599.0) is None
    assert silent_until(watch, 700.0, begin_s=599.0) == 600.0
    watch.hear(stepped=True)
    assert silent_until(watch, 10_000.0, begin_s=600.0) == 600.0 + LEAST_S, "for that once"


def test_a_program_that_begins_again_is_left_alone_until_its_first_step() -> None:
    watch = watch_of(1.0)
    watch.forget()
    assert silent_until(watch, 10_000.0) is None
    watch.hear(stepped=True)
    assert silent_until(watch, 20_000.0, begin_s=10_000.0) == 10_000.0 + LEAST_S


# --- a real agent


def test_a_program_that_hangs_begins_again_once(node: Node) -> None:
    node.environ["SPOTD_HANG_S"] = "1"
    node.run()
    node.start(run=f"{WORKER} --hang-at 5", engine="spotd", progress_every_s=0.0)
    assert node.wait_for(wire.EXITED, 60.0).data["code"] == wire.EXIT_HUNG
    first, second = (entry.data for entry in node.entries(wire.UNWELL))
    assert (first["what"], first["again"], first["step"], first["stacks"]) == ("hung", True, 5, 1)
    assert (second["again"], second["code"]) == (False, wire.EXIT_HUNG)
    assert "after step 5" in first["text"]
    assert node.kinds().count(wire.STARTED) == 2
    stacks = re.findall(r'File ".*worker\.py", line \d+ in hang', node.log())
    assert len(stacks) == 2, "where it hangs is in its log"


def test_ranks_on_several_machines_do_not_begin_again_one_by_one(node: Node) -> None:
    node.environ["SPOTD_HANG_S"] = "1"
    node.run()
    spec = {"engine": "spotd", "progress_every_s": 0.0, "num_nodes": 2}
    node.start(run=f"{WORKER} --hang-at 5", **spec)
    assert node.wait_for(wire.EXITED, 60.0).data["code"] == wire.EXIT_HUNG
    assert [entry.data["again"] for entry in node.entries(wire.UNWELL)] == [False]


def test_a_program_that_is_busy_is_left_alone(node: Node) -> None:
    node.environ["SPOTD_HANG_S"] = "1"
    node.run()
    node.start(run=f"{WORKER} --hang-at 5 --busy-s 600", engine="spotd", progress_every_s=0.0)
    node.wait_for_log("hangs")
    node.live_on(3.0)
    assert wire.UNWELL not in node.kinds()


def test_an_agent_that_was_killed_over_it_is_followed_by_one_that_ends_it(node: Node) -> None:
    node.environ["SPOTD_HANG_S"] = "1"
    node.run()
    node.start(run=f"{WORKER} --hang-at 5", engine="spotd", progress_every_s=0.0)
    node.wait_for(wire.UNWELL)
    node.kill_agent()
    assert node.is_program_alive()
    node.run()
    wait_until("the second begin", lambda: node.kinds().count(wire.STARTED) == 2)
    assert node.log().count("hangs") == 1, "the first was ended before"
    assert node.wait_for(wire.EXITED, 60.0).data["code"] == wire.EXIT_HUNG
    assert [entry.data["again"] for entry in node.entries(wire.UNWELL)] == [True, False]


def test_a_stop_of_a_program_that_hangs_is_a_stop(node: Node) -> None:
    node.run()
    node.start(run=f"{WORKER} --hang-at 5", engine="spotd", stop_grace_s=0.5)
    node.wait_for_log("hangs")
    node.send(wire.DRAIN, {"reason": "paused", "deadline_s": 2.0})
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert wire.UNWELL not in node.kinds()


def test_training_whose_ranks_wait_for_one_another_goes_on_after_it(
    node: Node, tmp_path: Path
) -> None:
    """Real ranks in a real collective: one is frozen, and the other waits for it for ever."""
    pytest.importorskip("torch")
    data = tmp_path / "text"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    torchrun = Path(sys.executable).with_name("torchrun")
    run = f"{torchrun} --standalone --nproc-per-node 2 -m trainer.train --data {data}"
    node.environ["SPOTD_HANG_S"] = "8"
    node.run()
    spec = {"engine": "spotd", "progress_every_s": 0.2, "every_steps": 5}
    node.start(run=f"{run} --steps 100000 --step-time-ms 20 {TINY}", **spec)
    node.wait_for(wire.CHECKPOINT, 60.0)
    wait_until("enough reports", lambda: len(node.entries(wire.PROGRESS)) > MIN_REPORTS, 60.0)
    os.kill(_pid_of_rank(node, 1), signal.SIGSTOP)
    unwell = node.wait_for(wire.UNWELL, 60.0)
    assert unwell.data["again"], "it begins again here"
    saved = max(e.data["step"] for e in node.entries(wire.CHECKPOINT) if e.seq < unwell.seq)

    def claims() -> list[int]:
        return [e.data["step"] for e in node.entries(wire.CLAIMED) if e.seq > unwell.seq]

    wait_until("the claim of the new process", claims, 60.0)
    assert claims() == [saved], "from the last checkpoint, under the same generation"
    wait_until(
        "a step after it",
        lambda: any(e.seq > unwell.seq for e in node.entries(wire.PROGRESS)),
        60.0,
    )
    assert re.search(r"in (all_reduce|average|add_up)\b", node.log()), "where the other waited"
    assert codes(node) == []


def _pid_of_rank(node: Node, rank: int) -> int:
    """The training process of that rank, by what torchrun told it."""
    wanted = {f"LOCAL_RANK={rank}".encode(), f"SPOTD_SOCKET={node.places.worker_socket}".encode()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                told = set((folder / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if wanted <= told:
                return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")
