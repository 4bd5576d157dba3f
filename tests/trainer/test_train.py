"""Real training processes, killed, stopped, frozen and resumed: the numbers must not notice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from providers.stores import open_store
from providers.stores.base import ObjectStore
from spotd.demo.bucket import Bucket
from spotd.wire import EXIT_FENCED, EXIT_FINISHED, EXIT_RELEASED, Head
from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.rig import AgentEnd, Trainer
from trainer import train
from trainer.fence import read_head
from trainer.hook.spotd_hook.constants import EXIT_ERROR
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.rates import DEFAULT_UPLOAD_S
from trainer.reference.compare import first_difference
from trainer.saver.reader import read_manifest, read_stream
from trainer.saver.tensors import assemble

STEPS = 40


class Outcome:
    """What an uninterrupted run ends with: its losses and its final state."""

    def __init__(self, trainer: Trainer, losses: dict[int, float]) -> None:
        self.trainer = trainer
        self.losses = losses

    def check(self, trainer: Trainer, losses: dict[int, float]) -> None:
        """The other run must have ended in the same bits."""
        store, own = open_store(trainer.store_url, options_of(trainer)), self.trainer
        difference = first_difference(open_store(own.store_url), own.job_id, store, trainer.job_id)
        assert difference is None
        assert losses == self.losses


def options_of(trainer: Trainer) -> dict[str, str]:
    options: dict[str, str] = json.loads(trainer.env.get("SPOTD_STORE_OPTIONS", "{}"))
    return options


def head_of(trainer: Trainer) -> Head:
    entry = read_head(open_store(trainer.store_url, options_of(trainer)), trainer.job_id)
    assert entry is not None
    return entry[0]


def uninterrupted(folder: Path, ranks: int) -> Outcome:
    trainer = Trainer(folder, steps=STEPS, ranks=ranks)
    with AgentEnd() as agent:
        assert trainer.run(1, agent) == EXIT_FINISHED, trainer.output()
        assert agent.of("checkpoint")[-1]["final"]
        assert sorted(agent.losses()) == list(range(1, STEPS + 1))
        return Outcome(trainer, agent.losses())


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return uninterrupted(tmp_path_factory.mktemp("reference"), ranks=1)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    made = Trainer(tmp_path, steps=STEPS)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.req("CKP-15", "CKP-16", "CKP-17", "CKP-20")
def test_kill_9_at_random_moments(reference: Outcome, trainer: Trainer) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    trainer.arguments = ("--step-time-ms", "10")
    losses: dict[int, float] = {}
    for generation in range(1, 30):
        with AgentEnd() as agent:
            dies = generation < 4
            process = (trainer.held(12 * generation) if dies else trainer).start(generation, agent)
            if dies:
                agent.wait("progress")
                time.sleep(dice.uniform(0, 0.12))
                process.kill()
            code = process.wait(LIMIT_S)
        for step, loss in agent.losses().items():
            assert losses.setdefault(step, loss) == loss, "a repeated step gave another loss"
        if code == EXIT_FINISHED:
            break
        assert code == -signal.SIGKILL, trainer.output()
    reference.check(trainer, losses)


@pytest.mark.req("CKP-16", "CKP-20")
def test_what_is_copied_beside_training_is_of_one_step(
    reference: Outcome, trainer: Trainer
) -> None:
    """The copy of each step's snapshot lasts into the next one, whose update waits for it."""
    trainer.module, trainer.every_steps = "tests.trainer.overlapping", 1
    trainer.env = {"COPY_S": "0.05"}
    with AgentEnd() as agent:
        process = trainer.held(12).start(1, agent)
        agent.wait("checkpoint", lambda data: data["step"] >= 7)
        process.kill()
        process.wait(LIMIT_S)
        saves = agent.of("checkpoint")
        assert min(save["stage_s"] for save in saves) >= 0.05
        first = agent.losses()
    with AgentEnd() as second:
        assert trainer.run(2, second) == EXIT_FINISHED, trainer.output()
        assert 7 <= second.of("claimed")[0]["step"] <= max(first)
        reference.check(trainer, first | second.losses())


@pytest.mark.req("PRE-05")
def test_sigterm_saves_releases_and_leaves(reference: Outcome, trainer: Trainer) -> None:
    with AgentEnd() as agent:
        process = trainer.held(10).start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 7)
        process.terminate()
        assert process.wait(LIMIT_S) == EXIT_RELEASED
        last = max(agent.losses())
        assert agent.of("released")[0]["step"] == last
        assert agent.of("exit") == [{"rank": 0, "pid": process.pid, "code": EXIT_RELEASED}]
        head = head_of(trainer)
        assert head.released
        assert head.current is not None
        assert head.current.step == last
    with AgentEnd() as second:
        assert trainer.run(2, second) == EXIT_FINISHED
        assert second.of("claimed")[0]["step"] == last
        reference.check(trainer, agent.losses() | second.losses())


@pytest.mark.req("CKP-05")
@pytest.mark.parametrize(
    ("every", "steps", "seconds", "due"),
    [
        ((100, 300.0), 99, 118.8, False),  # 1.2 s a step: every 100 steps
        ((100, 300.0), 100, 120.0, True),
        ((100, 300.0), 7, 280.0, False),  # 40 s a step: every 5 minutes
        ((100, 300.0), 8, 320.0, True),
        ((0, 300.0), 10**6, 299.0, False),
        ((0, 300.0), 1, 300.0, True),
        ((100, 0.0), 99, 1e6, False),
        ((0, 0.0), 10**6, 1e6, False),
    ],
)
def test_a_save_is_due_by_steps_or_by_time(
    every: tuple[int, float], steps: int, seconds: float, due: bool
) -> None:
    job = Job.from_env({"SPOTD_EVERY_STEPS": str(every[0]), "SPOTD_EVERY_S": str(every[1])})
    assert job.is_due(steps, seconds) is due


@pytest.mark.req("CKP-05")
def test_any_save_starts_the_cadence_anew(trainer: Trainer) -> None:
    trainer.every_steps = 10
    trainer.arguments = ("--step-time-ms", "30")
    with AgentEnd() as agent:
        held = trainer.held(3)
        process = held.start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 2)
        process.send_signal(signal.SIGUSR1)
        agent.wait("checkpoint")
        held.go_on()
        assert process.wait(LIMIT_S) == EXIT_FINISHED
        asked, due, *_ = agent.of("checkpoint")
        assert (asked["trigger"], due["trigger"]) == ("asked", "cadence")
        # On a slow machine the next one takes the place of one that still waits for its turn.
        assert (due["step"] - asked["step"]) % 10 == 0


@pytest.mark.req("HLT-04")
def test_sigusr1_saves_and_goes_on(reference: Outcome, trainer: Trainer) -> None:
    trainer.every_steps = 0
    with AgentEnd() as agent:
        held = trainer.held(4)
        process = held.start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 3)
        process.send_signal(signal.SIGUSR1)
        asked = agent.wait("checkpoint").data
        assert asked["trigger"] == "asked"
        agent.tell(save=5)
        agent.wait("checkpoint", lambda data: data["step"] > asked["step"])
        held.go_on()
        assert process.wait(LIMIT_S) == EXIT_FINISHED
        reference.check(trainer, agent.losses())
        assert [save["trigger"] for save in agent.of("checkpoint")] == ["asked", "asked", "final"]


def test_a_signal_during_the_imports_is_heard(trainer: Trainer) -> None:
    trainer.fresh = True
    process = trainer.start(1)
    deadline = time.monotonic() + 20
    caught = False
    while not caught and time.monotonic() < deadline:  # until our handler is in place
        time.sleep(0.005)  # torch takes a second
        status = Path(f"/proc/{process.pid}/status").read_text()
        mask = int(status.partition("SigCgt:")[2].split()[0], 16)
        caught = bool(mask >> (signal.SIGTERM - 1) & 1)
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libtorch" not in maps, "the handler has to be there before torch is"
    process.terminate()
    assert process.wait(LIMIT_S) == EXIT_RELEASED
    assert read_head(open_store(trainer.store_url), "job") is None, "HEAD was never ours"


@pytest.mark.req("RPV-16")
def test_a_zombie_commits_nothing(reference: Outcome, trainer: Trainer) -> None:
    trainer.arguments = ("--step-time-ms", "30")
    with AgentEnd() as old, AgentEnd() as new:
        held = trainer.held(7)
        zombie = held.start(1, old)
        old.wait("checkpoint")
        os.kill(zombie.pid, signal.SIGSTOP)
        trainer.arguments = ()
        assert trainer.run(2, new) == EXIT_FINISHED
        head = head_of(trainer)
        held.go_on()
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.wait(LIMIT_S) == EXIT_FENCED
        assert head_of(trainer) == head
        assert head.generation == 2
        assert max(old.losses()) < STEPS, "it must not train on for long"
        reference.check(trainer, old.losses() | new.losses())
    assert "generation 1 is fenced" in trainer.output()


@pytest.mark.req("CKP-25", "CKP-23")
def test_a_broken_newest_checkpoint_is_passed_over(reference: Outcome, trainer: Trainer) -> None:
    with AgentEnd() as agent:
        process = replace(trainer.held(5), every_steps=0).start(1, agent)
        for number in (1, 2, 3):  # each is durable before the next one
            agent.tell(save=number)
            agent.wait("checkpoint", lambda _: len(agent.of("checkpoint")) == number)  # noqa: B023
        process.kill()
        process.wait(LIMIT_S)
        agent.wait_left()  # its saver may commit one more
        losses = agent.losses()
    head = head_of(trainer)
    assert head.current is not None
    newest, older = head.current, head.previous[0]
    shard = Path(trainer.folder, "store", newest.manifest).parent / "r00000-00000"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    torn = Path(trainer.folder, "store", older.manifest).parent / "r00000-00000"
    torn.write_bytes(torn.read_bytes()[:-100])
    with AgentEnd() as second:
        assert trainer.run(2, second) == EXIT_FINISHED
        skipped = second.of("checkpoint_skipped")
        assert [entry["step"] for entry in skipped] == [newest.step, older.step]
        assert "digest" in skipped[0]["error"]
        assert "bytes" in skipped[1]["error"]
        assert second.of("claimed")[0]["step"] == head.previous[1].step
        reference.check(trainer, losses | second.losses())


@pytest.mark.req("RPV-14")
def test_a_hand_over(reference: Outcome, trainer: Trainer) -> None:
    with AgentEnd() as old, AgentEnd(claim="after_release", claim_deadline_s=60.0) as new:
        first = trainer.held(3).start(1, old)  # it is far from done when the next is ready
        old.wait("progress")
        second = trainer.start(2, new)
        new.wait("ready")
        assert new.of("claimed") == []
        old.tell(stop=True, reason="the replacement is ready", deadline_s=20.0)
        old.wait("released")
        assert first.wait(LIMIT_S) == EXIT_RELEASED
        assert second.wait(LIMIT_S) == EXIT_FINISHED
        reference.check(trainer, old.losses() | new.losses())
        assert not set(old.losses()) & set(new.losses()), "no step was made twice"


def test_a_replacement_takes_head_at_the_deadline(trainer: Trainer) -> None:
    trainer.steps = 10_000  # it must not be done before it is told to end
    trainer.arguments = ("--step-time-ms", "150")
    with AgentEnd() as old, AgentEnd(claim="after_release", claim_deadline_s=60.0) as new:
        first = trainer.start(1, old)
        old.wait("checkpoint")
        second = trainer.start(2, new)
        new.wait("ready")
        new.tell(claim_deadline_s=0.2)
        new.wait("claimed")
        assert first.wait(LIMIT_S) == EXIT_FENCED
        second.terminate()
        assert second.wait(LIMIT_S) == EXIT_RELEASED


def test_a_silent_agent_does_not_take_head_from_the_owner(trainer: Trainer) -> None:
    trainer.steps = 4000
    trainer.arguments = ("--step-time-ms", "150")
    with (
        AgentEnd() as old,
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent,
    ):
        first = trainer.start(1, old)
        old.wait("checkpoint")
        silent.bind(f"{folder}/agent.sock")
        silent.listen()
        claim = {"SPOTD_CLAIM": "after_release", "SPOTD_CLAIM_UNTIL": str(time.monotonic() + 600)}
        trainer.env = {"SPOTD_SOCKET": f"{folder}/agent.sock", **claim}
        second = trainer.start(2)
        with silent.accept()[0] as line, line.makefile("rb") as said:
            assert any(b"the agent sends nothing" in text for text in said)
            seen = len(old.of("checkpoint"))
            old.wait("checkpoint", lambda _: len(old.of("checkpoint")) > seen + 1)
            assert first.poll() is None, "it is not fenced"
            old.tell(stop=True, reason="the replacement is ready", deadline_s=20.0)
            assert first.wait(LIMIT_S) == EXIT_RELEASED
            assert any(b'"claimed"' in text for text in said)
            second.terminate()
            assert second.wait(LIMIT_S) == EXIT_RELEASED


def test_stopped_while_it_waits_for_head(trainer: Trainer) -> None:
    trainer.steps = 10_000  # it must not be done before it is told to end
    trainer.arguments = ("--step-time-ms", "150")
    with AgentEnd() as old, AgentEnd(claim="after_release", claim_deadline_s=60.0) as new:
        first = trainer.start(1, old)
        old.wait("checkpoint")
        second = trainer.start(2, new)
        new.wait("ready")
        second.terminate()
        assert second.wait(LIMIT_S) == EXIT_RELEASED
        assert head_of(trainer).generation == 1
        first.kill()
        first.wait(LIMIT_S)


def dies_after_a_checkpoint(trainer: Trainer, agent: AgentEnd) -> None:
    """Generation 1, killed without a word, and its saver has ended; the next one's steps take 20 ms
    as well."""
    trainer.arguments = ("--step-time-ms", "20")
    process = trainer.held(7).start(1, agent)
    agent.wait("checkpoint")
    process.kill()
    process.wait(LIMIT_S)
    agent.wait_left()


@contextlib.contextmanager
def unreadable(trainer: Trainer) -> Iterator[None]:
    """The store has HEAD, and for a while cannot give the checkpoint that it names."""
    head = head_of(trainer)
    assert head.current is not None
    path = Path(trainer.folder, "store", head.current.manifest)
    away = path.rename(path.with_name("away"))
    os.mknod(path, stat.S_IFSOCK | 0o600)  # opening one fails as a dead mount does: with ENXIO
    yield
    away.rename(path)


@pytest.mark.req("CKP-25")
def test_a_store_that_is_away_at_resume_is_waited_for(reference: Outcome, trainer: Trainer) -> None:
    with AgentEnd() as old, AgentEnd() as new:
        dies_after_a_checkpoint(trainer, old)
        with unreadable(trainer):
            second = trainer.start(2, new)
            warned = new.wait("warning").data["text"]
            assert warned.startswith("the checkpoint cannot be read yet: ")
        assert second.wait(LIMIT_S) == EXIT_FINISHED
        assert new.of("checkpoint_skipped") == []
        reference.check(trainer, old.losses() | new.losses())


def test_stopped_while_the_store_is_away_it_gives_head_back(trainer: Trainer) -> None:
    with AgentEnd() as old, AgentEnd() as new:
        dies_after_a_checkpoint(trainer, old)
        with unreadable(trainer):
            before = head_of(trainer).current
            second = trainer.start(2, new)
            new.wait("warning")
            new.tell(stop=True, reason="paused")
            assert second.wait(LIMIT_S) == EXIT_RELEASED
            head = head_of(trainer)
            assert (head.generation, head.released, head.current) == (2, True, before)


def test_75_is_not_said_where_head_could_not_be_released(trainer: Trainer) -> None:
    trainer.every_steps = 0
    with AgentEnd() as agent:
        process = trainer.held(5).start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 3)
        lock = Path(trainer.folder, "store", ".store", "lock")
        lock.unlink()
        os.mknod(lock, stat.S_IFSOCK | 0o600)  # nothing can be written conditionally
        agent.tell(stop=True, reason="paused", deadline_s=0.5)
        assert process.wait(LIMIT_S) == 1
        assert agent.of("released") == []
        warned = agent.wait("warning").data["text"]
        assert warned.startswith("HEAD could not be released: ")
        assert not head_of(trainer).released


def test_when_time_is_short_the_last_durable_checkpoint_is_released(trainer: Trainer) -> None:
    with AgentEnd() as agent:
        process = trainer.held(7).start(1, agent)
        saved = agent.wait("checkpoint").data["step"]
        agent.wait("progress", lambda data: data["to_step"] == saved + 2)
        agent.tell(stop=True, deadline_s=0.0, reason="no time")
        assert process.wait(LIMIT_S) == EXIT_RELEASED
        assert agent.of("released")[0]["step"] == saved
        head = head_of(trainer)
        assert head.released
        assert head.current is not None
        assert head.current.step == saved


def test_the_first_save_is_tried_in_whatever_time_there_is(trainer: Trainer) -> None:
    """Nothing was measured yet, and the guess is longer than the time: no step goes for a guess."""
    trainer.every_steps = 0
    with AgentEnd() as agent:
        process = trainer.held(5).start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 3)
        agent.tell(stop=True, deadline_s=DEFAULT_UPLOAD_S - 1, reason="a notice")
        assert process.wait(LIMIT_S) == EXIT_RELEASED
        last = max(report["to_step"] for report in agent.of("progress"))
        assert agent.of("released")[0]["step"] == last >= 3


def test_a_notice_is_trained_on_up_to_the_last_safe_save(trainer: Trainer) -> None:
    """Nobody tells it to stop: the agent only shows it how long the machine will be there."""
    trainer.arguments, trainer.steps = ("--step-time-ms", "30"), 100_000
    # A machine that stands still when the last save is due leaves no time for it: then the next.
    for generation in range(1, 10):
        with AgentEnd() as agent:
            process = trainer.start(generation, agent)
            agent.wait("checkpoint")
            agent.tell(notice_s=5.0)
            assert process.wait(LIMIT_S) == EXIT_RELEASED, trainer.output()
            plans = agent.of("plan")
            released = agent.of("released")[0]["step"]
            assert released <= max(agent.losses())
            actions = [plan["action"] for plan in plans]
            if actions == ["train", "save", "save"] and plans[-1]["kept"]:
                planned, leaves, ended = plans
                assert (leaves["step"] - planned["step"]) * 0.03 > 0.5, "it trained on"
                assert ended["step"] == leaves["step"]
                assert ended["margin_s"] > 0
                assert released == leaves["step"] == max(agent.losses()), "no step was lost"
                return
    raise AssertionError("the last save never fitted")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: setattr(t, "arguments", ("--lr", "0.5")), "peak = 0.001, this program has 0.5"),
        (lambda t: setattr(t, "arguments", ("--data", __file__)), "was made with data ="),
        (lambda t: setattr(t, "env", {"SPOTD_STORE_URL": "ftp://x"}), "unknown scheme"),
    ],
    ids=["lr", "data", "store"],
)
def test_what_does_not_fit_is_refused_with_words(
    change: Callable[[Trainer], None], text: str, trainer: Trainer, reference: Outcome
) -> None:
    saved = Path(reference.trainer.folder, "store")
    Path(trainer.folder, "store").symlink_to(saved)
    change(trainer)
    head = head_of(reference.trainer)
    assert head.final
    # A finished job is not resumed, so let the claim see one that is not.
    store: ObjectStore = open_store(saved.as_uri())
    key = f"jobs/{reference.trainer.job_id}/HEAD"
    data, tag = store.get(key)
    unfinished = data.replace(b'"final":true', b'"final":false')
    tag = store.put_if(key, unfinished, tag)
    try:
        assert trainer.run(head.generation + 1) == 1
        assert "error: " in trainer.output()
        assert text in trainer.output()
    finally:
        store.put_if(key, data, store.get(key)[1])


def test_a_lost_head_is_no_fresh_start(trainer: Trainer) -> None:
    trainer.env = {"SPOTD_HEAD_GENERATION": "3"}
    assert trainer.run(4) == 1
    assert "error: HEAD of job job is missing in file:" in trainer.output()
    assert read_head(open_store(trainer.store_url), "job") is None


def test_a_finished_job_is_left_alone(trainer: Trainer) -> None:
    trainer.steps = 2
    assert trainer.run(1) == EXIT_FINISHED
    head = head_of(trainer)
    with AgentEnd() as agent:
        assert trainer.run(2, agent) == EXIT_FINISHED
        assert agent.of("progress") == []
    assert head_of(trainer).current == head.current


def test_a_bucket_as_the_store(reference: Outcome, trainer: Trainer, bucket: Bucket) -> None:
    trainer.env = {
        "SPOTD_STORE_URL": f"s3://{bucket.name}/train",
        "SPOTD_STORE_OPTIONS": json.dumps(bucket.options),
    }
    with AgentEnd() as agent:
        process = trainer.held(12).start(1, agent)
        agent.wait("checkpoint", lambda data: data["step"] >= 10)
        process.kill()
        process.wait(LIMIT_S)
        assert trainer.run(2, agent) == EXIT_FINISHED
        reference.check(trainer, agent.losses())


WIDE = ("--threads", "0", "--width", "128", "--block", "64")  # enough to be worth two threads


def final_state(trainer: Trainer) -> dict[str, Any]:
    head = head_of(trainer)
    assert head.current is not None
    return dict(read_manifest(open_store(trainer.store_url), head.current).state)


def cores(number: int) -> dict[str, str]:
    """Where cores are short, threads that spin while they wait take the others' turn."""
    return {"OMP_NUM_THREADS": str(number), "OMP_WAIT_POLICY": "passive"}


@pytest.mark.req("CKP-20")
def test_another_number_of_cores_changes_no_bit(tmp_path: Path) -> None:
    """Begun where torch chooses two threads, ended where it chooses one."""
    names = ("two", "one", "moved")
    runs = {name: Trainer(tmp_path / name, steps=12) for name in names}
    for name, trainer in runs.items():
        trainer.folder.mkdir()
        trainer.arguments = WIDE
        trainer.loaded = cores(1 if name == "one" else 2)
        if name != "moved":
            assert trainer.run(1) == EXIT_FINISHED, trainer.output()
    moved = runs["moved"]
    with AgentEnd() as agent:
        process = moved.held(7).start(1, agent)
        agent.wait("checkpoint")
        process.kill()
        process.wait(LIMIT_S)
    moved.loaded = cores(1)
    assert moved.run(2) == EXIT_FINISHED, moved.output()
    assert final_state(moved)["threads"] == 2
    two, one, ended = (open_store(runs[name].store_url) for name in ("two", "one", "moved"))
    assert first_difference(two, "job", ended, "job") is None
    assert first_difference(one, "job", ended, "job") is not None, "here the number matters"


def test_another_torch_or_device_is_told() -> None:
    class Said:
        def __init__(self) -> None:
            self.texts: list[str] = []

        def send(self, kind: str, data: dict[str, str]) -> None:
            assert kind == "warning"
            self.texts.append(data["text"])

    said = Said()
    world = SimpleNamespace(device=torch.device("cpu"))
    run: Any = SimpleNamespace(args=SimpleNamespace(threads=1), world=world, link=said)
    train.match_numerics(run, {"torch": torch.__version__, "device": "cpu"})
    train.match_numerics(run, {})  # of a checkpoint that does not say
    assert said.texts == []
    train.match_numerics(run, {"torch": "2.0.1", "device": "cuda"})
    assert [text.partition(",")[0] for text in said.texts] == [
        "the checkpoint was made with torch 2.0.1",
        "the checkpoint was made with device cuda",
    ]


@pytest.mark.req("CKP-27")
def test_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "straight").mkdir()
    (tmp_path / "broken").mkdir()
    straight = uninterrupted(tmp_path / "straight", ranks=2)
    trainer = Trainer(tmp_path / "broken", steps=STEPS, ranks=2, every_steps=5)
    trainer.arguments = ("--step-time-ms", "20")
    losses: dict[int, float] = {}
    with AgentEnd() as agent:
        held = trainer.held(14)
        process = held.start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 12)
        worker = next(hello for hello in agent.of("hello") if hello["rank"] == 1)
        os.kill(worker["pid"], signal.SIGTERM)  # any rank may be the one that is told
        held.go_on()
        assert process.wait(LIMIT_S) != EXIT_FINISHED
        assert sorted(entry["code"] for entry in agent.of("exit")) == [EXIT_RELEASED] * 2
        assert len(agent.of("released")) == 1
        losses |= agent.losses()
    with AgentEnd() as agent:
        process = trainer.held(25).start(2, agent)
        assert agent.wait("claimed").data["step"] == max(losses)
        agent.wait("checkpoint")
        worker = next(hello for hello in agent.of("hello") if hello["rank"] == 0)
        os.kill(worker["pid"], signal.SIGKILL)
        assert process.wait(LIMIT_S) != EXIT_FINISHED
        losses |= agent.losses()
    trainer.arguments = ()
    with AgentEnd() as agent:
        assert trainer.run(3, agent) == EXIT_FINISHED, trainer.output()
        straight.check(trainer, losses | agent.losses())


@pytest.mark.req("CKP-27")
def test_another_number_of_ranks_comes_to_the_same_bits(tmp_path: Path) -> None:
    virtual = ("--virtual-ranks", "4", "--batch", "1")
    (tmp_path / "straight").mkdir()
    alone = Trainer(tmp_path / "straight", steps=STEPS, arguments=virtual)
    with AgentEnd() as agent:
        assert alone.run(1, agent) == EXIT_FINISHED, alone.output()
        straight = Outcome(alone, agent.losses())
    (tmp_path / "moved").mkdir()
    moved = Trainer(tmp_path / "moved", steps=STEPS)
    losses: dict[int, float] = {}
    for generation, ranks in enumerate((4, 2, 4, 3), start=1):
        moved.ranks, last = ranks, generation == 4
        more = ("--workers", "2") if ranks < 4 else ()
        moved.arguments = (*virtual, *more) if last else (*virtual, *more, "--step-time-ms", "50")
        with AgentEnd() as agent:
            process = moved.start(generation, agent)
            if not last:
                agent.wait("progress", lambda data: data["to_step"] >= 7 * generation)  # noqa: B023
                worker = next(hello for hello in agent.of("hello") if hello["rank"] == 0)
                os.kill(worker["pid"], signal.SIGTERM)
            assert (process.wait(LIMIT_S) == EXIT_FINISHED) is last, moved.output()
            if generation > 1:
                assert agent.of("claimed")[0]["step"] == max(losses)
            losses |= agent.losses()
    straight.check(moved, losses)


@pytest.mark.timeout(300)  # of eighteen ranks
@pytest.mark.req("ELA-02", "ELA-04")
def test_another_number_of_ranks_is_as_large_a_step_with_shares(tmp_path: Path) -> None:
    """Four ranks without a word of shares, four again to the same bits, then fewer: the same
    samples and the same learning rates, to the last bits of a sum."""
    quick = ("--batch", "2", "--step-time-ms", "0")
    (tmp_path / "straight").mkdir()
    alone = Trainer(tmp_path / "straight", steps=STEPS, ranks=4, arguments=quick)
    with AgentEnd() as agent:
        assert alone.run(1, agent) == EXIT_FINISHED, alone.output()
        wanted = agent.losses()
    (tmp_path / "moved").mkdir()
    moved = Trainer(tmp_path / "moved", steps=STEPS)
    for generation, ranks in enumerate((4, 4, 2), start=1):
        more = ("--shares", "4") if generation > 1 else ()
        moved.ranks, moved.arguments = ranks, (*quick, "--step-time-ms", "50", *more)
        losses = until_told(moved, generation, 7 * generation)
        near = 0.0 if generation <= 2 else 1e-6
        assert losses == {s: pytest.approx(wanted[s], rel=near, abs=0) for s in losses}
    moved.ranks, moved.arguments = 1, quick
    assert moved.run(4) == EXIT_ERROR
    assert "made with world_size = 4, this program has 1" in moved.output()
    assert "add --shares 4" in moved.output(), "what to do about it"
    moved.ranks, moved.arguments = 3, (*quick, "--shares", "4", "--workers", "2")
    assert moved.run(5) == EXIT_FINISHED, moved.output()
    ours, theirs = final_weights(moved), final_weights(alone)
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


def until_told(trainer: Trainer, generation: int, step: int) -> dict[int, float]:
    """The losses up to that step and a little more, when its machine is to go."""
    with AgentEnd() as agent:
        process = trainer.start(generation, agent)
        agent.wait("progress", lambda data: data["to_step"] >= step)
        agent.tell(stop=True, deadline_s=20.0, reason="preempted")
        assert process.wait(LIMIT_S) != EXIT_FINISHED, trainer.output()
        assert head_of(trainer).released
        return agent.losses()


def final_weights(trainer: Trainer) -> torch.Tensor:
    """All in one: a key's bias has a gradient of rounding alone, of which AdamW makes much."""
    store, head = open_store(trainer.store_url), head_of(trainer)
    assert head.final
    assert head.current is not None
    manifest = read_manifest(store, head.current)
    stream = read_stream(store, manifest, 0)
    model = [one for one in manifest.tensors if one.name.startswith("model.")]
    found = [torch.frombuffer(assemble(one, [stream]), dtype=torch.float32) for one in model]
    return torch.cat(found)


@pytest.mark.req("ELA-06")
@pytest.mark.parametrize("shard", [False, True])
def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_the_job_says(
    tmp_path: Path, *, shard: bool
) -> None:
    more = ("--shard",) if shard else ()
    trainer = Trainer(
        tmp_path,
        steps=10_000,
        ranks=2,
        arguments=("--step-time-ms", "20", *more),
        env={"SPOTD_PEER_TIMEOUT_S": "30"},  # its own start, too, on a busy machine
    )
    with AgentEnd() as agent:
        process = trainer.start(1, agent)
        agent.wait("progress")
        first, second = (next(h for h in agent.of("hello") if h["rank"] == r) for r in (0, 1))
        os.kill(second["pid"], signal.SIGSTOP)
        try:
            until(lambda: not Path(f"/proc/{first['pid']}").exists(), LIMIT_S)
        finally:
            os.kill(second["pid"], signal.SIGKILL)
        assert process.wait(LIMIT_S) != EXIT_FINISHED
        assert "imed out" in trainer.output()


def test_more_ranks_than_virtual_ones_are_refused(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, ranks=2, arguments=("--virtual-ranks", "1"))
    assert trainer.run(1) != EXIT_FINISHED
    assert "--virtual-ranks 1 is too few for 2 ranks: give at least 2" in trainer.output()
