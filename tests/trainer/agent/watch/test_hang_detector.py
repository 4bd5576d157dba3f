"""A hung program is reported, ended and restarted; the second time the machine is given up."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.surroundings import path_without
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.run.journal_replay import JournalReplay
from trainer.agent.run.timing_stats import TimingStats
from trainer.agent.watch.hang_detector import MAX_GAP_S, MIN_REPORTS, MIN_SILENT_S, HangDetector
from trainer.agent.watch.ranks import RankProgress

PYTHON = shlex.quote(sys.executable)
WORKER = f"{PYTHON} {Path(__file__).parents[1] / 'worker.py'}"
TINY = "--layers 1 --width 16 --heads 2 --block 16 --batch 2 --device cpu --threads 1"


def codes(node: Node) -> list[int]:
    return [entry.data["code"] for entry in node.entries(wire.EXITED)]


# --- what counts as hanging


def watch_of(step_s: float, reports: int = 3, *, stepping: bool = True) -> HangDetector:
    past = JournalReplay("boot", False, frozenset(), (), (), (step_s,) * reports, 5)
    return HangDetector(TimingStats(past, DesiredState(Path("unused"))), 0.0, stepping=stepping)


def silent_until(watch: HangDetector, until_s: float, begin_s: float = 0.0) -> float | None:
    """Return when it is found to hang, with a check every half second."""
    moments = (begin_s + 0.5 * n for n in range(int((until_s - begin_s) * 2) + 1))
    return next((now for now in moments if watch.check(now)), None)


@pytest.mark.parametrize(
    ("step_s", "limit_s"),
    [(0.1, MIN_SILENT_S), (20.0, MIN_SILENT_S), (30.0, 150.0), (600.0, 3000.0)],
)
def test_it_takes_five_steps_and_two_minutes(step_s: float, limit_s: float) -> None:
    assert silent_until(watch_of(step_s), 4000.0) == limit_s


@pytest.mark.parametrize("watch", [watch_of(1.0, reports=2), watch_of(1.0, stepping=False)])
def test_nothing_is_said_of_a_program_whose_steps_are_not_known(watch: HangDetector) -> None:
    assert silent_until(watch, 10_000.0) is None


def test_every_word_of_the_program_shows_that_it_lives() -> None:
    watch = watch_of(1.0)
    assert silent_until(watch, MIN_SILENT_S - 1) is None
    watch.on_message(stepped=False)
    assert silent_until(watch, 10_000.0, begin_s=MIN_SILENT_S - 1) == pytest.approx(
        2 * MIN_SILENT_S - 1, abs=MAX_GAP_S
    )


def test_a_time_in_which_nobody_looked_is_no_silence() -> None:
    watch = watch_of(1.0)
    assert not watch.check(1.0)
    assert not watch.check(5000.0), "the machine was frozen, and the program with it"
    assert watch.silent_s == 1.0 + MAX_GAP_S


def test_a_program_that_says_how_long_it_is_busy_has_that_time() -> None:
    watch = watch_of(1.0)
    watch.allow_silence(600.0)
    assert silent_until(watch, 599.0) is None
    assert silent_until(watch, 700.0, begin_s=599.0) == 600.0
    watch.on_message(stepped=True)
    assert silent_until(watch, 10_000.0, begin_s=600.0) == 600.0 + MIN_SILENT_S, "for that once"


def test_a_program_that_begins_again_is_left_alone_until_its_first_step() -> None:
    watch = watch_of(1.0)
    watch.reset()
    assert silent_until(watch, 10_000.0) is None
    watch.on_message(stepped=True)
    assert silent_until(watch, 20_000.0, begin_s=10_000.0) == 10_000.0 + MIN_SILENT_S


def test_one_rank_that_makes_no_step_hangs_whatever_the_others_say() -> None:
    watch = watch_of(1.0)
    for second in range(int(MIN_SILENT_S)):
        assert not watch.check(float(second))
        watch.on_message(stepped=True)
        watch.on_rank_step(0, second, float(second))
        watch.on_rank_step(1, min(second, 7), float(second))
    assert silent_until(watch, MIN_SILENT_S + 20.0, begin_s=MIN_SILENT_S) == pytest.approx(
        MIN_SILENT_S + 7.0, abs=1
    )
    assert watch.ranks.text == "rank 1 after step 7 and rank 0 after step 119"


def test_the_others_wait_for_one_that_is_busy() -> None:
    watch = watch_of(1.0)
    watch.on_rank_step(0, 5, 0.0)
    watch.on_rank_step(1, 5, 0.0)
    watch.allow_silence(600.0)
    assert silent_until(watch, 590.0) is None
    watch.on_message(stepped=False)  # it is done, and none of them has made a step since
    assert silent_until(watch, 2000.0, begin_s=590.0) == pytest.approx(590.0 + MIN_SILENT_S, abs=1)


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    watch = watch_of(1.0)
    watch.on_rank_step(1, 5, 0.0)
    watch.ranks.remove(1)
    for second in range(300):
        watch.on_message(stepped=True)
        assert not watch.check(float(second))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ({}, ""),
        ({3: 7}, ""),
        ({0: 7, 1: 7}, "all 2 ranks stopped after step 7"),
        ({0: 8, 1: 8, 2: 7, 3: 8}, "rank 2 after step 7 and ranks 0, 1, 3 after step 8"),
        ({n: 8 + n // 9 for n in range(10)}, "9 ranks after step 8 and rank 9 after step 9"),
    ],
)
def test_who_stopped_where(steps: dict[int, int], text: str) -> None:
    ranks = RankProgress()
    for rank, step in steps.items():
        ranks.on_step(rank, step, 0.0)
    assert ranks.text == text


def test_how_long_a_step_takes_is_known_from_the_second_word_on() -> None:
    ranks = RankProgress()
    assert ranks.on_step(0, 100, 1.0) is None
    assert ranks.on_step(0, 104, 3.0) == 0.5
    assert ranks.on_step(0, 104, 9.0) is None, "no step"
    assert ranks.on_step(0, 3, 10.0) is None, "it began again"


# --- a real agent


@pytest.fixture(autouse=True)
def no_py_spy(node: Node, tmp_path: Path) -> None:
    """Hide py-spy, which would be tried first; see test_stack_dump.py."""
    node.environ["PATH"] = path_without(tmp_path / "path", ["py-spy"])


def test_a_program_that_hangs_begins_again_once(node: Node) -> None:
    node.environ["SPOTD_HANG_S"] = "1"
    node.run()
    node.start(run=f"{WORKER} --hang-at 5", engine="spotd", progress_every_s=0.0)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_HUNG
    first, second = (entry.data for entry in node.entries(wire.UNWELL))
    assert (first["what"], first["again"], first["step"], first["stacks"]) == ("hung", True, 5, 1)
    assert (second["again"], second["code"]) == (False, wire.EXIT_HUNG)
    assert "after step 5" in first["text"]
    assert node.kinds().count(wire.STARTED) == 2
    stacks = re.findall(r'File ".*worker\.py", line \d+ in hang', node.log())
    assert len(stacks) == 2, "where it hangs is in its log"


def test_the_rank_that_hangs_is_named_with_the_function_it_hangs_in(node: Node) -> None:
    """Rank 0 continues to step; the stacks of both are taken before either is ended."""
    node.environ["SPOTD_HANG_S"] = "3"
    node.run()
    both = f"RANK=0 {WORKER} --rank 0 & RANK=1 {WORKER} --rank 1 --hang-at 150 & wait"
    node.start(run=both, engine="spotd", progress_every_s=0.0)
    unwell = node.wait_for(wire.UNWELL, LIMIT_S)
    data = unwell.data
    assert (data["what"], data["stacks"], data["ranks"]["1"]) == ("hung", 2, 150)
    assert "rank 1 after step 150 and rank 0 after step" in data["text"]
    first, second = data["dumps"]
    assert [(one["rank"], one["how"]) for one in data["dumps"]] == [
        (0, "faulthandler"),
        (1, "faulthandler"),
    ]
    assert re.search(r'File ".*worker\.py", line \d+ in hang', second["text"])
    assert "in hang" not in first["text"]
    assert "in main" in first["text"]


def test_a_program_that_goes_on_while_it_is_looked_at_is_not_ended(
    node: Node, tmp_path: Path
) -> None:
    """Taking stacks may take seconds, and may be what wakes the program."""
    goes_on = tmp_path / "goes-on"
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\ntouch {goes_on}\nsleep 1\necho stacks\n")
    spy.chmod(0o700)
    node.environ |= {"SPOTD_HANG_S": "2", "PATH": f"{tmp_path}:{node.environ['PATH']}"}
    node.run()
    node.start(run=f"{WORKER} --hang-at 5 --until {goes_on}", engine="spotd", progress_every_s=0.0)
    warning = node.wait_for(wire.WARNING, LIMIT_S)
    assert warning.data["text"].startswith("no step for 2 s after step 5")
    assert warning.data["text"].endswith("; then it continued")
    assert node.is_program_alive()
    assert wire.UNWELL not in node.kinds()


def test_a_machine_without_rank_0_tells_and_ends_nobody(node: Node) -> None:
    """Rank 0 may be in a long operation that is unknown on this machine."""
    node.environ["SPOTD_HANG_S"] = "3"
    node.rank = 1
    node.run()
    run = f"RANK=4 {WORKER} --rank 4 --hang-at 250"
    node.start(run=run, engine="spotd", progress_every_s=0.0, num_nodes=2)
    warning = node.wait_for(wire.WARNING, LIMIT_S)
    assert warning.data["verdict"] == "hung_here"
    (stacks,) = warning.data["about"]["stacks"]
    assert stacks["rank"] == 4
    assert "in hang" in stacks["text"]
    assert node.is_program_alive()
    assert wire.UNWELL not in node.kinds()


def test_ranks_on_several_machines_do_not_begin_again_one_by_one(node: Node) -> None:
    node.environ["SPOTD_HANG_S"] = "1"
    node.run()
    spec = {"engine": "spotd", "progress_every_s": 0.0, "num_nodes": 2}
    node.start(run=f"{WORKER} --hang-at 5", **spec)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_HUNG
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
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_HUNG
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
    """Real ranks in a real collective: one is frozen, and the other waits for it forever."""
    data = tmp_path / "text"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    torchrun = Path(sys.executable).with_name("torchrun")
    run = f"{torchrun} --standalone --nproc-per-node 2 -m trainer.train --data {data}"
    node.environ["SPOTD_HANG_S"] = "8"
    node.run()
    spec = {"engine": "spotd", "progress_every_s": 0.2, "every_steps": 5}
    node.start(run=f"{run} --steps 100000 --step-time-ms 20 {TINY}", **spec)
    node.wait_for(wire.CHECKPOINT, LIMIT_S)
    wait_until("enough reports", lambda: len(node.entries(wire.PROGRESS)) > MIN_REPORTS)
    os.kill(_pid_of_rank(node, 1), signal.SIGSTOP)
    unwell = node.wait_for(wire.UNWELL, LIMIT_S)
    assert unwell.data["again"], "it begins again here"
    saved = max(e.data["step"] for e in node.entries(wire.CHECKPOINT) if e.seq < unwell.seq)

    def claims() -> list[int]:
        return [e.data["step"] for e in node.entries(wire.CLAIMED) if e.seq > unwell.seq]

    wait_until("the claim of the new process", claims)
    assert claims() == [saved], "from the last checkpoint, under the same generation"
    wait_until(
        "a step after it",
        lambda: any(e.seq > unwell.seq for e in node.entries(wire.PROGRESS)),
        60.0,
    )
    assert re.search(r"in (all_reduce|average|add_up)\b", node.log()), "where the other waited"
    assert codes(node) == []


def _pid_of_rank(node: Node, rank: int) -> int:
    """Return the training process of that rank, by torchrun's environment."""
    wanted = {f"LOCAL_RANK={rank}".encode(), f"SPOTD_SOCKET={node.paths.worker_socket}".encode()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                told = set((folder / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if wanted <= told:
                return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")
