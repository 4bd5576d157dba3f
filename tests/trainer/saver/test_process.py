"""The saver as a process that is killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from spotd.wire import AgentConfig, parse_start, pin_folder
from tests.fixtures.forks import Fork, nursery
from tests.fixtures.processes import state_of
from tests.fixtures.sockets import accepts
from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.saver.rig import CONFIG, PIECES, SIZE, fill, head_of, stored_steps
from trainer.agent.base.paths import AgentPaths
from trainer.agent.run.prepare import build_env
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.engine import FoundCheckpoint
from trainer.hook.spotd_hook.saver_client import SaverClient
from trainer.hook.spotd_hook.spawned import SpawnedSaver
from trainer.saver import __main__ as program_of_saver
from trainer.saver.__main__ import NICE, config_from_env

KILLS = int(os.environ.get("SPOTD_KILLS", "100"))
STAGINGS = 100
TEARS = KILLS // 10  # of them, after which one is killed that has staged half


class Program:
    """Rank 0 of a training program, and the savers that it starts one after the other."""

    def __init__(self, folder: Path, generation: int = 1, **more: str) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "SPOTD_JOB_ID": "job",
            "SPOTD_GENERATION": str(generation),
            "SPOTD_TOKEN": "token",
            "SPOTD_STORE_URL": (folder / "store").as_uri(),
            "SPOTD_KEEP": "3",
            **more,
        }
        self.savers: list[Fork] = []
        self.reports: list[Any] = []
        self.checkpointer = Checkpointer(
            self.connect,
            job_id="job",
            generation=generation,
            pieces=PIECES,
            size=SIZE,
            report=lambda kind, data: self.reports.append((kind, data)),
        )

    def connect(self) -> SaverClient:
        path = self.folder / f"{len(self.savers)}.sock"
        env = {**self.env, "SPOTD_SAVER": str(path)}
        log = self.folder / "saver.log"
        self.savers.append(nursery().fork("trainer.saver", ["--stay"], env, self.folder, log))
        until(path.exists, LIMIT_S)
        give_up_at = time.monotonic() + LIMIT_S
        while True:
            try:
                return SaverClient(str(path))
            except OSError:
                assert time.monotonic() < give_up_at
                time.sleep(0.005)

    def restore(self) -> FoundCheckpoint | None:
        loaded: list[bytes] = []
        found = self.checkpointer.restore(CONFIG, lambda memory: loaded.append(bytes(memory)))
        if found is not None:
            expected = bytearray(SIZE)
            fill(memoryview(expected), found.step)
            assert loaded == [bytes(expected)]
        return found

    def save(self, step: int) -> None:
        state = {"config": CONFIG}
        self.checkpointer.save(step, lambda memory, _: fill(memory, step), state, trigger="test")

    def end(self) -> None:
        self.checkpointer.close()
        for saver in self.savers:
            saver.kill()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.end()


def test_a_saver_is_nicer_than_training_in_whatever_session(tmp_path: Path) -> None:
    env = {"SPOTD_JOB_ID": "job", "SPOTD_STORE_URL": (tmp_path / "store").as_uri()}
    saver = SpawnedSaver(env)
    try:
        saver.wait_ready()
        assert os.getpriority(os.PRIO_PROCESS, saver.pid) >= NICE
        group = Path(f"/proc/{saver.pid}/autogroup")
        if group.exists() and group.read_text():  # else nothing goes by sessions here
            assert group.read_text().endswith(f" nice {NICE}\n")
    finally:
        saver.close(10.0)


def test_a_kernel_that_takes_no_such_change_now_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the kernel answers users other than root: one change per 0.1 s for all of them."""
    answers = iter([BlockingIOError(), BlockingIOError(), None])

    class Group:
        def write_text(self, text: str, encoding: str) -> None:
            assert (text, encoding) == (str(NICE), "ascii")
            if error := next(answers):
                raise error

    monkeypatch.setattr(program_of_saver, "AUTOGROUP", Group())
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    program_of_saver.lower_priority()
    assert list(answers) == []


@pytest.mark.req("CKP-16")
@pytest.mark.timeout(max(300, 3 * KILLS))
def test_a_saver_that_is_killed_at_any_moment_costs_no_commit(program: Program) -> None:
    """kill -9 repeatedly: training goes on; HEAD names an intact checkpoint, never an older one."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    rng, store = random.Random(seed), open_store((program.folder / "store").as_uri())
    assert program.checkpointer.claim("now", 0.0) is not None
    assert program.restore() is None
    step = newest = 0
    for _ in range(KILLS):
        for _ in range(rng.randrange(1, 4)):
            step += 1
            program.save(step)
        time.sleep(rng.uniform(0, 0.02))
        program.savers[-1].kill()
        program.savers[-1].wait(LIMIT_S)
        current = head_of(store).current
        if current is not None:
            assert newest <= current.step <= step
            newest = current.step
    program.save(step + 1)
    assert program.checkpointer.drain(20, save_again=lambda: program.save(step + 1))
    found = program.restore()
    assert found is not None
    assert found.step == step + 1
    assert {kind for kind, _ in program.reports} == {"checkpoint_failed"}
    assert all("another one is started" in data["error"] for _, data in program.reports)


def test_a_saver_outlives_the_program_and_ends_when_it_is_told(program: Program) -> None:
    assert program.checkpointer.claim("now", 0.0) is not None
    program.save(7)
    program.checkpointer.close()
    saver = program.savers[0]
    saver.send_signal(signal.SIGUSR1)  # what is meant for all training processes
    saver.terminate()
    assert saver.wait(LIMIT_S) == 0
    current = head_of(open_store((program.folder / "store").as_uri())).current
    assert current is not None
    assert current.step == 7


@pytest.mark.req("CKP-15")
@pytest.mark.timeout(max(300, 3 * KILLS))
def test_what_a_program_had_staged_when_it_was_killed_is_kept_and_nothing_half(
    program: Program,
) -> None:
    """Programs run one after the other with one saver; each resumes from the last one's save."""
    path, log = program.folder / "one.sock", program.folder / "doomed.log"
    env = {**program.env, "SPOTD_SAVER": str(path)}
    saver = nursery().fork("trainer.saver", ["--stay"], env, program.folder, program.folder / "log")
    program.savers.append(saver)
    until(lambda: accepts(path))
    expected, last = [], 0
    for number in range(STAGINGS):
        torn = number % (STAGINGS // TEARS) == 0
        for words in ([str(last + 1)], [str(last + 2), "--torn"])[: 1 + torn]:
            expected.append(last)
            last = int(words[0]) if len(words) == 1 else last
            doomed = nursery().fork("tests.trainer.saver.doomed", words, env, program.folder, log)
            assert doomed.wait(LIMIT_S) == -signal.SIGKILL, log.read_text()
    output = [client.split() for client in log.read_text().splitlines()]
    assert [int(words[1]) for words in output if words[0] == "from"] == expected
    assert len(expected) == STAGINGS + TEARS
    store = open_store((program.folder / "store").as_uri())
    until(lambda: head_of(store).current.step == STAGINGS)  # type: ignore[union-attr]


def test_what_the_box_says_of_a_suspect_and_of_milestones_reaches_the_saver(
    program: Program, tmp_path: Path
) -> None:
    """From the start document on the wire, through the agent's environment."""
    store = open_store((tmp_path / "store").as_uri())
    assert program.checkpointer.claim("now", 0.0) is not None
    for step in (10, 20):
        program.save(step)
        assert program.checkpointer.drain(LIMIT_S)
    current = head_of(store).current
    assert current is not None
    data = {
        "job_name": "j",
        "num_nodes": 1,
        "node_ips": [],
        "accelerators_per_node": 0,
        "setup": "",
        "run": "",
        "envs": {},
        "secrets": {},
        "packages": [],
        "store_url": "x",
        "store_options": {},
        "engine": "spotd",
        "claim": "now",
        "claim_deadline_s": 0.0,
        "every_steps": 1,
        "every_s": 0.0,
        "keep": 1,
        "stop_grace_s": 1.0,
        "progress_every_s": 1.0,
        "head_generation": 1,
        "keep_every_steps": 15,
        "suspect": current.manifest,
    }
    config = AgentConfig("d", "job", 2, 0, "token", "none")
    paths = AgentPaths(tmp_path, tmp_path, tmp_path)
    agent_env = build_env({}, config, parse_start(data), paths, claim_until=0.0)
    env = {name: agent_env[name] for name in ("SPOTD_SUSPECT", "SPOTD_KEEP", "SPOTD_KEEP_EVERY")}
    resumed = Program(tmp_path, 2, **env)
    resumed.savers.extend(program.savers)  # for the names of their sockets
    try:
        assert resumed.checkpointer.claim("now", 0.0) is not None
        found = resumed.restore()
        assert found is not None
        assert found.step == 10
        for step in (12, 17, 23):
            resumed.save(step)
            assert resumed.checkpointer.drain(LIMIT_S)
        pins = pin_folder("job")
        until(lambda: {f"{pins}step-17", f"{pins}suspect-20"} == {i.key for i in store.list(pins)})
        until(lambda: stored_steps(store) == [17, 20, 23])
    finally:
        resumed.end()


def test_a_rank_that_resumed_from_an_older_one_stays_behind_it(
    program: Program, tmp_path: Path
) -> None:
    """The next saver must not commit after the damaged checkpoint that was skipped."""
    store = open_store((tmp_path / "store").as_uri())
    assert program.checkpointer.claim("now", 0.0) is not None
    for step in (10, 20):
        program.save(step)
        assert program.checkpointer.drain(LIMIT_S)
    current = head_of(store).current
    assert current is not None
    (tmp_path / "store" / current.manifest).unlink()
    resumed = Program(tmp_path, generation=2)
    resumed.savers.extend(program.savers)  # for the names of their sockets
    try:
        assert resumed.checkpointer.claim("now", 0.0) is not None
        found = resumed.restore()
        assert found is not None
        assert found.step == 10
        resumed.savers[-1].kill()
        resumed.savers[-1].wait(LIMIT_S)
        resumed.save(15)
        assert resumed.checkpointer.drain(LIMIT_S)
        head = head_of(store)
        assert head.current is not None
        assert (head.current.step, [ref.step for ref in head.previous]) == (15, [10])
    finally:
        resumed.end()


def test_one_of_its_own_ends_with_the_program(tmp_path: Path) -> None:
    env = {"SPOTD_STORE_URL": (tmp_path / "store").as_uri(), "SPOTD_JOB_ID": "job"}
    saver = SpawnedSaver(env)
    saver.wait_ready()
    client = SaverClient(saver.socket)
    client.join(0, [0], 1, SIZE, 2, PIECES)
    assert client.request("claim", claim="now", left_s=0.0, wait_s=5.0)["final"] is False
    client.close()
    assert saver.alive
    assert saver.close()
    assert not saver.alive


def test_one_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = SpawnedSaver({"SPOTD_GENERATION": "none"})
    with pytest.raises(OSError, match="the saver did not start"):
        saver.wait_ready()
    monkeypatch.delenv("SPOTD_SAVER", raising=False)
    with pytest.raises(ValueError, match="SPOTD_SAVER is not set"):
        config_from_env()


def test_a_saver_that_is_stopped_does_not_stop_training(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and never replies. Each save reports that, in bounded time."""
    assert program.checkpointer.claim("now", 0.0) is not None
    assert program.restore() is None
    program.save(1)
    assert program.checkpointer.drain(LIMIT_S)
    saver = program.savers[0]
    monkeypatch.setattr(
        program.checkpointer, "_connect", lambda: SaverClient(str(program.folder / "0.sock"))
    )
    os.kill(saver.pid, signal.SIGSTOP)
    until(lambda: state_of(saver.pid) == "T")  # a thread on another core may answer until then
    monkeypatch.setattr("trainer.hook.spotd_hook.saver_client.REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr("trainer.hook.spotd_hook.engine.REPLY_TIMEOUT_S", 0.2)
    try:
        program.save(2)
        assert not program.checkpointer.drain(0.1)
        program.save(3)
    finally:
        os.kill(saver.pid, signal.SIGCONT)
    agent_env = [data["error"] for kind, data in program.reports if kind == "checkpoint_failed"]
    assert "no answer to begin" in agent_env[0]
    assert [data["step"] for _, data in program.reports][-1] == 3
    monkeypatch.setattr("trainer.hook.spotd_hook.saver_client.REPLY_TIMEOUT_S", 20.0)
    monkeypatch.setattr("trainer.hook.spotd_hook.engine.REPLY_TIMEOUT_S", 20.0)
    program.save(4)
    assert program.checkpointer.drain(LIMIT_S)
    assert program.checkpointer.committed == 4
