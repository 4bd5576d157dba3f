"""Trains a byte-level GPT, and survives whatever happens to the machine.

    python -m trainer.train --steps 1000                          one process
    torchrun --nproc-per-node 2 -m trainer.train --steps 1000     data-parallel

Under spotd the environment says where checkpoints go and how often; started by hand they go to
./checkpoints and running the same command again resumes. SIGUSR1 saves and goes on; SIGTERM saves
and leaves. Exit codes: 0 finished, 75 saved and released, 76 fenced, 1 an error.
"""

# ruff: noqa: E402 - signals first: importing torch takes a second, and must not be killed by one
from __future__ import annotations

from trainer.stop import Stop

STOP = Stop()
if __name__ == "__main__":
    STOP.install()

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

_BEGAN_S = time.perf_counter()

import torch

_IMPORT_S = time.perf_counter() - _BEGAN_S

from providers.stores import open_store
from providers.stores.base import StoreError, StoreUnavailableError
from spotd.wire import (
    CLAIMED,
    EXIT_DIVERGED,
    EXIT_FENCED,
    EXIT_FINISHED,
    EXIT_RELEASED,
    READY,
    RELEASED,
    WARNING,
)
from trainer.arguments import parse_arguments
from trainer.checkpoint import Checkpointer, MismatchError, UnusableError
from trainer.data import Order, load_corpus
from trainer.fence import Fence, FencedError
from trainer.job import Job
from trainer.link import Link
from trainer.model import Shape, make_model
from trainer.numbers import Numbers
from trainer.progress import Progress
from trainer.run import Run
from trainer.state import Schedule, TrainState
from trainer.world import World

T = TypeVar("T")
EXIT_ERROR = 1
FIRST_WORD_S = 10.0  # how long the agent may take to say how HEAD is to be claimed now
STORE_RETRY_S = 2.0
STOP_GRACE_S = 25.0  # how long a save may take when nobody gave a deadline
RELEASE_S = 1.0  # kept of the time to stop, for a release without the save that overran
FINAL_GRACE_S = 600.0  # how long to try to commit the final manifest


class StoppedError(Exception):
    """Asked to stop before the first step: there is nothing to save."""


def pause(seconds: float) -> None:
    """Sleep, unless we are to stop."""
    until = time.monotonic() + seconds
    while not STOP.stopping and (left_s := until - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.02))
    if STOP.stopping:
        raise StoppedError


def patiently(link: Link, call: Callable[[], T], trouble: str) -> T:
    """`call()`, again and again while the store does not answer: an outage is not our crash.

    Raises StoppedError, and what else `call` raises.
    """
    while True:
        try:
            return call()
        except StoreUnavailableError as error:
            link.send(WARNING, {"text": f"{trouble}: {error}"})
        pause(STORE_RETRY_S)


def prepare(args: argparse.Namespace, job: Job, world: World, link: Link) -> Run:
    """Everything that can be done before we know where to resume, first touches included."""
    if args.threads:
        torch.set_num_threads(args.threads)
    shape = Shape(args.layers, args.heads, args.width, args.block, args.dropout)
    schedule = Schedule(args.lr, args.warmup, args.steps)
    order = Order(args.seed, args.block, args.batch, world.size)
    corpus = load_corpus(args.data)
    model = make_model(shape, args.seed).to(world.device)
    state = TrainState(model, world.device)
    config = {**asdict(shape), **asdict(schedule), **asdict(order), "data": corpus.digest}
    store = patiently(
        link, lambda: open_store(job.store_url, job.store_options), "the store cannot be opened yet"
    )
    fence = Fence(
        store, job.job_id, job.generation, job.owner, known_generation=job.head_generation
    )
    checkpointer = None
    if world.rank == 0:
        checkpointer = Checkpointer(
            fence, state.layout, world_size=world.size, keep=job.keep, report=link.send
        )
    run = Run(
        args, world, link, corpus, order, schedule, model, state, fence, checkpointer, config, job
    )
    run.compute(0)  # the first pass allocates, starts threads and picks kernels
    state.grads.zero_()
    return run


def take_over(run: Run) -> int:
    """Wait until HEAD may be claimed, claim it, restore; the number of steps already done.

    -1 when the job turns out to be finished. Raises StoppedError, FencedError, MismatchError,
    UnusableError and store errors that last. On rank 0 only.
    """
    checkpointer = run.checkpointer
    assert checkpointer is not None  # noqa: S101 - rank 0 has one
    if not run.link.wait_flag(FIRST_WORD_S):
        text = "the agent is silent: HEAD is claimed as it said when it started us"
        run.link.send(WARNING, {"text": text})
    pause(0)
    poll_s = 0.05 if run.job.store_url.startswith("file:") else 0.2
    run.fence.wait_claimable(run.link.claim_of, poll_s, pause)
    head = patiently(run.link, run.fence.claim, "HEAD cannot be claimed yet")
    if head.final:
        print(f"job {run.job.job_id} is finished: nothing to do", flush=True)
        return -1
    began_s = time.perf_counter()
    restored = patiently(
        run.link,
        lambda: checkpointer.restore(head, run.config, run.state.load),
        "the checkpoint cannot be read yet",
    )
    restore_s = time.perf_counter() - began_s
    ref = restored[0] if restored else None
    if restored:
        compute_as_before(run, restored[1].state)
    step = ref.step if ref else 0
    manifest = ref.manifest if ref else ""
    run.link.send(CLAIMED, {"step": step, "manifest": manifest, "restore_s": round(restore_s, 6)})
    words = f"goes on after step {step}, restored in {restore_s:.3f} s"
    print(f"generation {run.job.generation} {words}", flush=True)
    return step


def compute_as_before(run: Run, before: Mapping[str, Any]) -> None:
    """Take over the number of threads, on which the last bits of parallel sums depend. That torch
    or the kind of device is another one can only be told."""
    if not run.args.threads and before.get("threads"):
        torch.set_num_threads(before["threads"])
    now = {"torch": torch.__version__, "device": run.world.device.type}
    for name, value in now.items():
        if before.get(name, value) != value:
            text = f"the checkpoint was made with {name} {before[name]}, and here it is {value}"
            run.link.send(WARNING, {"text": f"{text}: results may differ in their last bits"})


def begin(run: Run) -> int:
    """`take_over` on rank 0, its result and the restored state on all. Negative: -1 - exit code."""
    outcome = -1 - EXIT_ERROR
    try:
        if run.world.rank == 0:
            outcome = take_over(run)
    except StoppedError:
        # Before the claim there is nothing to release.
        outcome = -1 - (EXIT_RELEASED if run.fence.head is None else release(run))
    except FencedError as error:
        print(error, file=sys.stderr, flush=True)
        outcome = -1 - EXIT_FENCED
    finally:
        outcome = run.world.follow(outcome)
    if outcome >= 0:  # whatever machines the other ranks are on
        torch.set_num_threads(run.world.follow(torch.get_num_threads()))
    if outcome > 0:
        run.world.spread(run.state.flats())
    return outcome


def train(run: Run) -> int:
    """The loop, from the claim to the exit code."""
    done = begin(run)
    if done < 0:
        return -1 - done
    args, world = run.args, run.world
    progress = Progress(
        run.link.send,
        every_s=run.job.progress_every_s,
        steps=args.steps,
        silent=world.rank > 0,
    )
    numbers = Numbers(run)
    saved_step, saved_at = done, time.monotonic()
    for step in range(done, args.steps):
        started = time.perf_counter()
        loss = run.compute(step)
        world.average(run.state.grads)
        applied = run.state.update(run.schedule.rate(step), step)
        loss_here = loss.item()
        with contextlib.suppress(StoppedError):
            pause(args.step_time_ms / 1000 - (time.perf_counter() - started))
        busy_s = time.perf_counter() - started

        done = step + 1
        fenced = run.checkpointer is not None and run.checkpointer.fenced is not None
        due = world.rank == 0 and run.job.is_due(done - saved_step, time.monotonic() - saved_at)
        asked = STOP.take_saves()
        losses, stops, fences, dues, saves = world.add_up(
            [loss_here, STOP.stopping, fenced, due, asked]
        )
        progress.add(done, losses / world.size, args.batch * args.block * world.size, busy_s)
        if fences:
            return _leave_fenced(run, progress)
        if not numbers.accept(done, losses, applied=applied):
            return _leave_diverged(progress, done)
        if done == args.steps:
            break
        if stops:
            return leave(run, progress, done)
        if (dues and numbers.good) or saves:
            progress.flush()  # before the save is durable: no step survives whose loss is unknown
            run.save(done, "asked" if saves else "cadence")
            saved_step, saved_at = done, time.monotonic()
    return finish(run, progress)


def _leave_fenced(run: Run, progress: Progress) -> int:
    if run.checkpointer is not None:
        print(run.checkpointer.fenced, file=sys.stderr, flush=True)
    progress.flush()
    return EXIT_FENCED


def _leave_diverged(progress: Progress, step: int) -> int:
    print(f"error: training has diverged for good at step {step}", file=sys.stderr, flush=True)
    progress.flush()
    return EXIT_DIVERGED


def leave(run: Run, progress: Progress, step: int) -> int:
    """Save and release within the time that is left, then exit 75.

    When a fresh save cannot make it, the last one that is durable is released.
    """
    progress.flush()
    code = EXIT_RELEASED
    if run.checkpointer is not None:
        print(f"stopping after step {step}: {STOP.reason}", flush=True)
        left_s = STOP_GRACE_S if STOP.left_s is None else STOP.left_s
        if left_s > run.checkpointer.cost_s:
            run.save(step, "stop", released=True)
        if not run.checkpointer.drain(left_s - min(RELEASE_S, left_s / 2)):
            run.checkpointer.give_up()
        code = EXIT_FENCED if run.checkpointer.fenced else release(run)
    return run.world.announce(code)


def release(run: Run) -> int:
    """Give HEAD away; the exit code. 75 is said only when HEAD says so too."""
    try:
        head = run.fence.release()
    except FencedError as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_FENCED
    except StoreError as error:
        run.link.send(WARNING, {"text": f"HEAD could not be released: {error}"})
        return EXIT_ERROR
    ref = head.current
    said = {"step": ref.step if ref else 0, "manifest": ref.manifest if ref else ""}
    run.link.send(RELEASED, said)
    return EXIT_RELEASED


def finish(run: Run, progress: Progress) -> int:
    """Commit the final manifest: only then is the job done."""
    progress.flush()
    code = EXIT_FINISHED
    if run.checkpointer is not None:
        run.link.excuse(FINAL_GRACE_S)  # no step comes any more
        if not run.save(run.args.steps, "final", final=True):
            return run.world.announce(_leave_diverged(progress, run.args.steps))
        if not run.checkpointer.drain(FINAL_GRACE_S):
            code = EXIT_FENCED if run.checkpointer.fenced else EXIT_ERROR
            print(
                run.checkpointer.fenced or "the final checkpoint could not be committed",
                file=sys.stderr,
                flush=True,
            )
    return run.world.announce(code)


def main() -> int:
    """Run, report how it ended, and return the exit code."""
    args, rank = parse_arguments(__doc__ or ""), int(os.environ.get("RANK", "0"))
    link = Link.connect(os.environ, rank)
    STOP.listen(link)
    code, world, run = EXIT_ERROR, None, None
    try:
        world = World.join(os.environ, args.device)
        run = prepare(args, Job.from_env(os.environ), world, link)
        if world.rank == 0:
            ready_s = time.perf_counter() - _BEGAN_S
            print(f"ready in {ready_s:.3f} s, {_IMPORT_S:.3f} s of it to import torch", flush=True)
        if world.local_rank == 0:
            link.send(READY, {"prepared": "model, data and first pass"})
        code = train(run)
    except StoppedError:
        code = EXIT_RELEASED
    except (ValueError, MismatchError, UnusableError, StoreError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        idle = run is None or run.checkpointer is None or run.checkpointer.close()
        link.close(exit_code=code)
        code = EXIT_ERROR if code == EXIT_DIVERGED else code  # which no process can end with
        if world is not None:
            world.leave()
    if not idle:  # its thread must not come back from the store while Python is being taken down
        sys.stdout.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
