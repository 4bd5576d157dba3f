"""What is done to a running job. Every moment comes out of the run's own random numbers; what the
job is to show in the end, whatever was done, is in verdict.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotd import wire
from spotd.demo.box import BoxError, wait_for
from tests.e2e.rig import POLL_S, UP_TIMEOUT_S, Run
from tests.fixtures.waiting import LIMIT_S

# Clouds warn for half a minute at least. Of AWS's notices whole seconds are told (one may be lost),
# and they are asked for once a second: step and save are to fit in what is left, with the margin of
# two seconds, also where the saves before took five: others use the cores.
NOTICE_S = (20.0, 25.0)


def daemon_killed(run: Run) -> None:
    """kill -9 of the daemon: while the first machine comes up, right after a notice, and while the
    job moves to the next machine."""
    run.pause(0.1, 3.0)
    run.bounce_daemon()
    node = run.training(step=run.random.randint(1, 20))
    run.preempt(node["instance_id"], notice_s=run.random.uniform(*NOTICE_S))
    for _ in range(3):
        run.pause(0.0, 3.0)
        if run.ended():
            break
        run.bounce_daemon()
    run.finish()
    expect(run, generation=2)


def agent_killed(run: Run) -> None:
    """kill -9 of the node agent, at any moment from its first: training must not notice, and the
    daemon must start it again."""
    machine = wait_for("a machine", run.machines, UP_TIMEOUT_S, every_s=POLL_S)[0]
    pid = wait_for("the agent", lambda: run.agent_pid(machine), UP_TIMEOUT_S, POLL_S) or 0
    run.pause(0.0, run.random.choice([0.5, 2.0, 8.0]))
    trainer = run.trainer_pid(machine)
    if run.ended():
        raise BoxError("the job ended before the agent could be killed: make it longer")
    run.agents_killed += 1
    run.shoot(pid, f"the agent of {machine}")
    new = wait_for("a new agent", lambda: _again(run, machine), 30.0, every_s=POLL_S)
    run.note(f"agent: {new}; training is process {trainer}")
    run.finish()
    expect(run, generation=1)
    starts = sum(event["kind"] == "started" for event in run.box.events(run.job_id))
    if starts != 1:
        raise BoxError(f"the program was started {starts} times")


def _again(run: Run, machine: str) -> str:
    """The new agent's process; or that there is nothing left for one to do."""
    return "the job has ended" if run.ended() else str(run.agent_pid(machine) or "")


def trainer_killed(run: Run) -> None:
    """kill -9 of the training program: it is started again elsewhere, and charged to the job."""
    node = run.training(step=1)
    run.pause(0.0, 3.0)
    pid = run.trainer_pid(node["instance_id"])
    if pid is None:
        raise BoxError("the program ended before it could be killed: make it longer")
    run.shoot(pid, "the training program")
    run.finish()
    job = expect(run, generation=2)
    if job["failures"] != 1:
        raise BoxError(f"the crash was charged {job['failures']} times")


def box_dead(run: Run) -> None:
    """A notice while the control box is dead: the node saves and releases by itself."""
    node = run.training(step=run.random.randint(1, 20))
    machine = node["instance_id"]
    run.kill_daemon()
    run.pause(0.0, 1.0)
    run.preempt(machine, notice_s=run.random.uniform(*NOTICE_S))
    trained, released, plans = _watch_release(run, machine)
    run.note(f"it trained to step {trained} and released step {released}; its plans: {plans}")
    if released != trained:
        raise BoxError(f"step {released} was released and step {trained} trained")
    wait_for("the machine to be gone", lambda: not _runs(run, machine), 60.0, every_s=POLL_S)
    run.pause(0.0, 4.0)
    run.start_daemon()
    run.finish()
    expect(run, generation=2)
    said = [event["text"] for event in run.box.events(run.job_id) if event["kind"] == "claimed"]
    if not said[-1].endswith(f"step {released}"):
        raise BoxError(f"it did not resume at step {released}: {said[-1]}")


def silent_death(run: Run) -> None:
    """The machine stops and is cut off, without a word."""
    node = run.training(step=run.random.randint(20, 60))
    run.die(node["instance_id"], "silent")
    run.finish()
    expect(run, generation=2)


def death_with_reset(run: Run) -> None:
    """The machine dies and its connections are reset."""
    node = run.training(step=run.random.randint(20, 60))
    run.die(node["instance_id"], "reset")
    run.finish()
    expect(run, generation=2)


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "daemon": daemon_killed,
    "agent": agent_killed,
    "trainer": trainer_killed,
    "box": box_dead,
    "silent": silent_death,
    "reset": death_with_reset,
}


def expect(run: Run, *, generation: int) -> dict[str, Any]:
    """The job as it ended: with success, and on as many machines as it should have needed."""
    job = run.look()
    if job is None or job["phase"] != "succeeded":
        raise BoxError(f"the job did not succeed: {job and (job['outcome_text'] or job['phase'])}")
    if job["generation"] != generation:
        raise BoxError(f"it needed {job['generation']} generations, not {generation}")
    return job


def _runs(run: Run, machine: str) -> bool:
    row = next(row for row in run.meter() if row["instance_id"] == machine)
    return not row["ended_at_us"]


def _watch_release(run: Run, machine: str) -> tuple[int, int, list[dict[str, Any]]]:
    """Return the last step trained, the step released, and the program's plans for its end.

    They are read from the node's own journal, which is deleted with the machine.
    """

    last: list[tuple[str, dict[str, Any]]] = []

    def ask() -> tuple[int, int, list[dict[str, Any]]] | None:
        nonlocal last
        path = run.state_file(machine, "journal.jsonl")
        entries = _journal(path) if path else []
        last = entries or last
        ends = [data for kind, data in entries if kind == wire.EXITED]
        if not ends:
            return None
        if ends[0]["code"] != wire.EXIT_RELEASED:
            raise BoxError(f"the program ended with code {ends[0]['code']}")
        steps = [data["to_step"] for kind, data in entries if kind == wire.PROGRESS]
        releases = [data["step"] for kind, data in entries if kind == wire.RELEASED]
        plans = [data for kind, data in entries if kind == wire.PLAN]
        return steps[-1], releases[-1], plans

    try:
        return wait_for("the node to release", ask, LIMIT_S, every_s=0.02) or (0, 0, [])
    except BoxError as error:
        said = [(kind, data) for kind, data in last if kind != wire.PROGRESS][-6:]
        raise BoxError(f"{error}; the last that its journal said: {said}") from None


def _journal(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Kind and data of every whole line."""
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        entry = json.loads(line)
        entry = entry.get("journal", entry)
        found.append((entry["kind"], entry["data"]))
    return found
