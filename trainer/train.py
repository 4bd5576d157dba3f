"""Trains a byte-level GPT, and survives whatever happens to the machine.

    python -m trainer.train --steps 1000                          one process
    torchrun --nproc-per-node 2 -m trainer.train --steps 1000     data-parallel

Under spotd the environment says where checkpoints go and how often; started by hand they go to
./checkpoints and running the same command again resumes. SIGUSR1 saves and goes on; SIGTERM saves
and leaves. Exit codes: 0 finished, 75 saved and released, 76 fenced, 1 an error.
"""

# ruff: noqa: E402 - signals first: importing torch takes a second, and must not be killed by one
from __future__ import annotations

from trainer.hook.spotd_hook.stop import Stop

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
from functools import partial
from typing import Any, TypeVar

_BEGAN_S = time.perf_counter()

import torch

_IMPORT_S = time.perf_counter() - _BEGAN_S

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
from trainer.data import Order, load_corpus
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.deadline import Action, Plan
from trainer.hook.spotd_hook.dial import Dial
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.line import AwayError, FencedError, Line, SaverError
from trainer.hook.spotd_hook.link import Link
from trainer.hook.spotd_hook.planning import Planning
from trainer.hook.spotd_hook.progress import Progress
from trainer.model import Shape, make_model
from trainer.numbers import Numbers
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
SAVER_S = 2.0  # for a saver of our own to end: what is to be waited for was waited for before


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
        except AwayError as error:
            link.send(WARNING, {"text": f"{trouble}: {error}"})
        pause(STORE_RETRY_S)


def prepare(
    args: argparse.Namespace, job: Job, world: World, link: Link, dial: Callable[[], Line]
) -> Run:
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
    checkpointer = None
    if world.rank == 0:
        checkpointer = Checkpointer(
            dial,
            job_id=job.job_id,
            generation=job.generation,
            pieces=state.pieces,
            size=state.size,
            report=link.send,
        )
    planning = Planning(job, checkpointer, STOP, link.send, speaks=world.local_rank == 0)
    run = Run(
        args,
        world,
        link,
        corpus,
        order,
        schedule,
        model,
        state,
        checkpointer,
        config,
        job,
        planning,
    )
    run.compute(0)  # the first pass allocates, starts threads and picks kernels
    state.grads.zero_()
    if checkpointer is not None:
        patiently(link, checkpointer.open, "the store cannot be opened yet")
    return run


def take_over(run: Run) -> int:
    """Wait until HEAD may be claimed, claim it, restore; the number of steps already done.

    -1 when the job turns out to be finished. Raises StoppedError, FencedError, and SaverError for
    what waiting does not help. On rank 0 only.
    """
    checkpointer = run.checkpointer
    assert checkpointer is not None  # noqa: S101 - rank 0 has one
    if not run.link.wait_flag(FIRST_WORD_S):
        text = "the agent is silent: HEAD is claimed as it said when it started us"
        run.link.send(WARNING, {"text": text})
    claimed = None
    while claimed is None:
        pause(0)
        claimed = patiently(
            run.link,
            lambda: checkpointer.claim(*run.link.claim_of()),
            "HEAD cannot be claimed yet",
        )
    if claimed["final"]:
        print(f"job {run.job.job_id} is finished: nothing to do", flush=True)
        return -1
    began_s = time.perf_counter()
    found = patiently(
        run.link,
        lambda: checkpointer.restore(run.config, run.state.load),
        "the checkpoint cannot be read yet",
    )
    restore_s = time.perf_counter() - began_s
    if found is not None:
        compute_as_before(run, found.state)
    step, manifest = (found.step, found.ref["manifest"]) if found else (0, "")
    run.link.send(CLAIMED, {"step": step, "manifest": manifest, "restore_s": round(restore_s, 6)})
    source = f" from {' and '.join(checkpointer.sources)}" if checkpointer.sources else ""
    words = f"goes on after step {step}, restored in {restore_s:.3f} s{source}"
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
        checkpointer = run.checkpointer
        claimed = checkpointer is not None and checkpointer.claimed
        outcome = -1 - (release(run) if claimed else EXIT_RELEASED)
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
        per_node=world.per_node,
    )
    numbers = Numbers(run)
    saved_step, saved_at = done, time.monotonic()
    for step in range(done, args.steps):
        started = time.perf_counter()
        loss = run.compute(step)
        alone_s = world.settled_s() - started
        world.average(run.state.grads)
        applied = run.state.update(run.schedule.rate(step), step)
        loss_here = loss.item()
        with contextlib.suppress(StoppedError):
            pause(args.step_time_ms / 1000 - (time.perf_counter() - started))
        busy_s = time.perf_counter() - started

        done = step + 1
        fenced = run.checkpointer is not None and run.checkpointer.fenced is not None
        due = run.planning.is_due(done - saved_step, time.monotonic() - saved_at)
        asked = STOP.take_saves()
        words = run.planning.words(world.rank, world.size, busy_s)
        losses, stops, fences, dues, saves, *said = world.add_up(
            [loss_here, STOP.stopping, fenced, due, asked, *words, *world.one_of_all(alone_s)]
        )
        said, ranks_s = said[: len(words)], said[len(words) :]
        tokens = args.batch * args.block * world.size
        progress.add(done, losses / world.size, tokens, busy_s, data_s=run.data_s, ranks_s=ranks_s)
        run.link.at(done)
        if fences:
            return _leave_fenced(run, progress)
        if not numbers.accept(done, losses, applied=applied):
            return _leave_diverged(progress, done)
        if done == args.steps:
            break
        plan = run.planning.agree(said, done)
        if stops or (plan is not None and plan.leaves):
            return leave(run, progress, done)
        if (dues and numbers.good) or saves:
            progress.flush()  # before the save is durable: no step survives whose loss is unknown
            began = time.perf_counter()
            run.save(done, "asked" if saves else "cadence")
            progress.held_up(time.perf_counter() - began)
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

    When a fresh save cannot make it, the one in flight is finished; when that cannot either, the
    last one that is durable is released.
    """
    progress.flush()
    code = EXIT_RELEASED
    if run.checkpointer is not None:
        plan = run.planning.leave(STOP_GRACE_S, step)
        reason = STOP.reason or "the machine is about to go"
        print(f"stopping after step {step}: {reason}: {plan.action.value}", flush=True)
        saves = plan.action is Action.SAVE
        save = partial(run.save, step, "stop", released=True) if saves else bool
        save()
        left_s = 0.0 if plan.action is Action.RELEASE else run.planning.left_s(STOP_GRACE_S)
        kept = run.checkpointer.drain(left_s - min(RELEASE_S, left_s / 2), again=save)
        kept = run.checkpointer.committed == step if saves else kept
        code = EXIT_FENCED if run.checkpointer.fenced else release(run, plan, kept=kept)
    code = run.world.announce(code)
    run.planning.await_agent()
    return code


def release(run: Run, plan: Plan | None = None, *, kept: bool = False) -> int:
    """Give HEAD away; the exit code. 75 is said only when HEAD says so too. On rank 0 only."""
    checkpointer = run.checkpointer
    assert checkpointer is not None  # noqa: S101 - rank 0 has one
    try:
        said = checkpointer.release()
    except FencedError as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_FENCED
    except (SaverError, OSError) as error:
        run.link.send(WARNING, {"text": f"HEAD could not be released: {error}"})
        return EXIT_ERROR
    if plan is not None:
        run.planning.ended(plan, step=said["step"], manifest=said["manifest"], kept=kept)
    run.link.send(RELEASED, said)
    return EXIT_RELEASED


def finish(run: Run, progress: Progress) -> int:
    """Commit the final manifest: only then is the job done."""
    progress.flush()
    code = EXIT_FINISHED
    run.link.excuse(FINAL_GRACE_S)  # no step comes any more, of any rank
    if run.checkpointer is not None:
        save = partial(run.save, run.args.steps, "final", final=True)
        if not save():
            return run.world.announce(_leave_diverged(progress, run.args.steps))
        if not run.checkpointer.drain(FINAL_GRACE_S, again=save):
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
    code, world, run, dial = EXIT_ERROR, None, None, None
    try:
        job = Job.from_env(os.environ)
        dial = Dial(job, link, os.environ)
        if rank == 0:
            dial.start()
        world = World.join(os.environ, args.device)
        run = prepare(args, job, world, link, dial.line)
        if world.rank == 0:
            ready_s = time.perf_counter() - _BEGAN_S
            print(f"ready in {ready_s:.3f} s, {_IMPORT_S:.3f} s of it to import torch", flush=True)
        if world.local_rank == 0:
            link.send(READY, {"prepared": "model, data and first pass"})
        code = train(run)
    except StoppedError:
        code = EXIT_RELEASED
    except (ValueError, SaverError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        if run is not None and run.checkpointer is not None:
            run.checkpointer.close()
        if dial is not None:
            dial.close(SAVER_S)
        link.close(exit_code=code)
        code = EXIT_ERROR if code == EXIT_DIVERGED else code  # which no process can end with
        if world is not None:
            world.leave()
    return code


if __name__ == "__main__":
    sys.exit(main())
