"""A training program of a few lines: real steps, losses, saves and hand-overs, without torch.

    python -m tests.rigs.tiny SEED FILE     until there is a file FILE

Its checkpoints are manifests without shards: all of its state is in the JSON part, where a float
keeps its last bit.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from providers.stores import open_store
from spotd.wire import (
    CHECKPOINT,
    CLAIMED,
    EXIT_FINISHED,
    EXIT_RELEASED,
    READY,
    RELEASED,
    Head,
    Manifest,
)
from trainer.fence import Fence
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.link import Link
from trainer.hook.spotd_hook.progress import Progress
from trainer.saver.reading import read_manifest

STEP_S = 0.1
RATE = 0.05
WIDTH = 6


@dataclass(frozen=True)
class State:
    """After so many steps."""

    step: int = 0
    weights: tuple[float, ...] = (0.0,) * WIDTH
    momentum: tuple[float, ...] = (0.0,) * WIDTH


def train(seed: int, state: State) -> tuple[State, float]:
    """The next state, and the loss of the step: it is a function of all steps before it."""
    step = state.step + 1
    inputs = [math.sin((seed + 1) * step * (n + 1)) for n in range(WIDTH)]
    target = math.cos(seed + step)
    error = sum(w * x for w, x in zip(state.weights, inputs, strict=True)) - target
    momentum = tuple(
        0.9 * m + RATE * error * x for m, x in zip(state.momentum, inputs, strict=True)
    )
    weights = tuple(w - m for w, m in zip(state.weights, momentum, strict=True))
    return State(step, weights, momentum), error * error


def uninterrupted(seed: int, steps: int) -> tuple[State, dict[int, float]]:
    """What a run that nobody disturbs ends with: its state, and the loss of every step."""
    state, losses = State(), dict[int, float]()
    while state.step < steps:
        state, loss = train(seed, state)
        losses[state.step] = loss
    return state, losses


def state_of(manifest: Manifest) -> State:
    """What a checkpoint holds."""
    weights, momentum = manifest.state["weights"], manifest.state["momentum"]
    return State(manifest.step, tuple(weights), tuple(momentum))


class Trainer:
    """One generation's run."""

    def __init__(self, seed: int, until: Path) -> None:
        self.seed, self.until = seed, until
        self.job = Job.from_env(os.environ)
        self.link = Link.connect(os.environ)
        self.store = open_store(self.job.store_url, self.job.store_options)
        self.fence = Fence(self.store, self.job.job_id, self.job.generation, self.job.owner)
        self.state = State()
        every_s = self.job.progress_every_s
        self.progress = Progress(self.link.send, every_s=every_s, steps=0)
        self.saved_s = time.monotonic()

    def run(self) -> int:
        """From the claim to the exit code."""
        self.link.send(READY, {"prepared": "nothing"})
        self.link.wait_flag(10.0)
        self.fence.wait_claimable(self.link.claim_of, 0.05)
        self.restore(self.fence.claim())
        saves = self.link.flag.save
        for _ in self.steps():
            flag = self.link.flag
            if flag.stop:
                self.save("stop", released=True)
                return EXIT_RELEASED
            if flag.save > saves or time.monotonic() - self.saved_s > self.job.every_s:
                saves = flag.save
                self.save("cadence")
        self.save("final", final=True)
        return EXIT_FINISHED

    def steps(self) -> Iterator[None]:
        """Train, until the file is there."""
        while not self.until.exists():
            began_s = time.monotonic()
            time.sleep(STEP_S)
            self.state, loss = train(self.seed, self.state)
            self.progress.add(self.state.step, loss, 1, time.monotonic() - began_s)
            yield

    def restore(self, head: Head) -> None:
        """Go on where the generation before was."""
        ref = head.current
        if ref is not None:
            self.state = state_of(read_manifest(self.store, ref))
        where = {"step": self.state.step, "manifest": ref.manifest if ref else ""}
        self.link.send(CLAIMED, where)

    def save(self, trigger: str, *, released: bool = False, final: bool = False) -> None:
        """Commit, and say so; the losses of the steps in it first."""
        self.progress.flush()
        self.saved_s = time.monotonic()
        state = {"weights": self.state.weights, "momentum": self.state.momentum}
        at_us, job = time.time_ns() // 1000, self.job
        manifest = Manifest(
            job.job_id, job.generation, self.state.step, at_us, 1, state=state, final=final
        )
        ref = self.fence.commit(manifest, released=released).current
        assert ref is not None
        where = {"step": ref.step, "manifest": ref.manifest}
        said = {"digest": ref.digest, "bytes": 0, "stage_s": 0.0, "write_s": 0.0}
        ends = {"trigger": trigger, "released": released, "final": final}
        self.link.send(CHECKPOINT, {**where, **said, **ends})
        if released:
            self.link.send(RELEASED, where)


def main(arguments: Sequence[str]) -> int:
    """The exit code says how it ended."""
    trainer = Trainer(int(arguments[0]), Path(arguments[1]))
    code = trainer.run()
    trainer.link.close(exit_code=code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
