"""Trains a byte-level GPT, and survives whatever happens to the machine.

    python -m trainer.train --steps 1000                          one process
    torchrun --nproc-per-node 2 -m trainer.train --steps 1000     data-parallel

Under spotd the environment says where checkpoints go and how often; started by hand they go to
./checkpoints and running the same command again resumes. SIGUSR1 saves and goes on; SIGTERM saves
and leaves. Exit codes: 0 finished, 75 saved and released, 76 fenced, 1 an error.
"""

# ruff: noqa: E402 - signals first: importing torch takes a second, and must not be killed by one
from __future__ import annotations

from trainer.hook.spotd_hook.stop import StopRequests

STOP = StopRequests()
if __name__ == "__main__":
    STOP.install()

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

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
    WARNING,
)
from trainer.hook.spotd_hook.agent_client import AgentClient
from trainer.hook.spotd_hook.checkpointer import Checkpointer, RankGroup
from trainer.hook.spotd_hook.constants import EXIT_ERROR
from trainer.hook.spotd_hook.head_ownership import FINAL_GRACE_S, HeadOwnership, StoppedError
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.multi_rank_saver import MultiRankSaver
from trainer.hook.spotd_hook.progress import Progress
from trainer.hook.spotd_hook.ranks import Ranks
from trainer.hook.spotd_hook.save_planner import SavePlanner
from trainer.hook.spotd_hook.saver_client import FencedError, SaverClient, SaverError
from trainer.hook.spotd_hook.saver_connect import SaverConnector
from trainer.hook.spotd_hook.tensor_copy import pin
from trainer.reference.arguments import parse_arguments
from trainer.reference.data import Order, load_corpus
from trainer.reference.model import Gpt, Shape, make_model
from trainer.reference.numbers import Numbers
from trainer.reference.run import Run
from trainer.reference.state import Schedule, TrainState
from trainer.reference.virtual_ranks import shares_of
from trainer.reference.world import World

if TYPE_CHECKING:
    from trainer.reference.sharded import ShardedState

SAVER_S = 2.0  # for a saver of our own to end: what is to be waited for was waited for before


def prepare(
    args: argparse.Namespace, job: Job, world: World, link: AgentClient, dial: SaverConnector
) -> Run:
    """Everything that can be done before we know where to resume, first touches included."""
    if args.threads:
        torch.set_num_threads(args.threads)
    shape = Shape(args.layers, args.heads, args.width, args.block, args.dropout)
    schedule = Schedule(args.lr, args.warmup, args.steps)
    parts = args.virtual_ranks or args.shares or world.size
    option = "--shares" if args.shares else "--virtual-ranks"
    shares_of(world.rank, world.size, parts, option)  # or this cannot be
    order = Order(args.seed, args.block, args.batch, parts)
    corpus = load_corpus(args.data)
    model = make_model(shape, args.seed).to(world.device)
    state = make_state(args, model, world)
    config = {**asdict(shape), **asdict(schedule), **asdict(order), "data": corpus.digest}
    ranks = Ranks.join() if args.shard else None
    checkpointer = None
    if world.rank == 0 or ranks is not None:
        seat, line = (
            (RankGroup(), dial.line) if ranks is None else take_seat(job, ranks, link, dial)
        )
        checkpointer = Checkpointer(
            line,
            job_id=job.job_id,
            generation=job.generation,
            pieces=state.pieces,
            size=state.size,
            report=link.send,
            seat=replace(seat, pin=partial(pin, say=complain(link))),
        )
    saver = None if world.rank else checkpointer  # whose times count: it waits for all of them
    planning = SavePlanner(job, saver, STOP, link.send, speaks=world.local_rank == 0)
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
    run.compute(0, world.rank)  # the first pass allocates, starts threads and picks kernels
    state.clear()
    if checkpointer is not None:
        save = run.save
        if ranks is not None and not isinstance(state, TrainState):
            load = partial(state.load, checkpointer)
            run.together = MultiRankSaver(ranks, checkpointer, load, run.save, complain(link))
            save = run.together.save
        tenure = HeadOwnership(link, STOP, checkpointer, planning, save)
        tenure.patiently(checkpointer.open, "the store cannot be opened yet")
        run.tenure = None if world.rank else tenure
    return run


def make_state(args: argparse.Namespace, model: Gpt, world: World) -> TrainState | ShardedState:
    """On every rank all of it, or its shards."""
    if not args.shard:
        return TrainState(model, world.device)
    from trainer.reference.sharded import ShardedState  # noqa: PLC0415 - a second to load

    return ShardedState(model, world, ordered=bool(args.virtual_ranks))


def take_seat(
    job: Job, ranks: Ranks, link: AgentClient, dial: SaverConnector
) -> tuple[RankGroup, Callable[[], SaverClient]]:
    """Where each rank saves its own part: by its machine's saver. Raises ValueError, by hand on
    several machines."""
    size, per_node = ranks.size, ranks.per_node or ranks.size
    name, socket = ranks.follow([secrets.token_hex(6), dial.socket])
    if not os.environ.get("SPOTD_SAVER"):
        if per_node < size:
            raise ValueError(
                "--shard saves on each of several machines, and none of them has a node agent: "
                "submit the job with spotctl run, or start all ranks on one machine"
            )
        if ranks.rank:
            dial = SaverConnector(job, link, {"SPOTD_SAVER": socket}, alone=False)
    first = ranks.rank - ranks.local_rank
    return RankGroup(ranks.rank, tuple(range(first, first + per_node)), size, name), dial.line


def complain(link: AgentClient) -> Callable[[str], None]:
    """Says it to whoever reads the log, and to the agent."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        link.send(WARNING, {"text": text})

    return say


def take_over(run: Run) -> int:
    """Wait until HEAD may be claimed, claim it, restore; the number of steps already done.

    -1 when the job turns out to be finished. Raises StoppedError, FencedError, and SaverError for
    what waiting does not help. On rank 0 only.
    """
    checkpointer = run.checkpointer
    tenure = run.tenure
    assert checkpointer is not None and tenure is not None  # noqa: S101, PT018 - rank 0 has both
    if tenure.claim()["final"]:
        print(f"job {run.job.job_id} is finished: nothing to do", flush=True)
        return -1
    began_s = time.perf_counter()
    found = tenure.patiently(run.restore, "the checkpoint cannot be read yet")
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
        held = run.tenure if claimed else None
        outcome = -1 - (EXIT_RELEASED if held is None else held.release())
    except FencedError as error:
        print(error, file=sys.stderr, flush=True)
        outcome = -1 - EXIT_FENCED
    finally:
        outcome = run.hear(outcome)
    if outcome >= 0:  # whatever machines the other ranks are on
        torch.set_num_threads(run.world.follow(torch.get_num_threads()))
    if outcome > 0:
        run.spread()
    return outcome


def train(run: Run) -> int:
    """The loop, from the claim to the exit code."""
    done = begin(run)
    if done < 0:
        return -1 - done
    args, world, parts = run.args, run.world, run.order.world_size
    progress = Progress(
        run.link.send,
        every_s=run.job.progress_every_s,
        steps=args.steps,
        silent=world.rank > 0,
        per_node=world.per_node,
    )
    numbers = Numbers(run)
    run.load_ahead(done)
    saved_step, saved_at = done, time.monotonic()
    for step in range(done, args.steps):
        started = time.perf_counter()
        losses_here, alone_s = run.learn(step)
        applied = run.update(step)
        STOP.sleep(args.step_time_ms / 1000 - (time.perf_counter() - started))
        busy_s = time.perf_counter() - started - run.held_s

        done = step + 1
        fenced = run.checkpointer is not None and run.checkpointer.fenced is not None
        due = run.planning.is_due(done - saved_step, time.monotonic() - saved_at)
        asked = STOP.take_saves()
        words = run.planning.words(world.rank, world.size, busy_s)
        stops, fences, dues, saves, *said = world.add_up(
            [STOP.stopping, fenced, due, asked, *words, *losses_here, *world.one_of_all(alone_s)]
        )
        said, heard = said[: len(words)], said[len(words) :]
        losses, ranks_s = sum(heard[: len(losses_here)]), heard[len(losses_here) :]
        tokens = args.batch * args.block * parts
        progress.waited(run.data_s)
        progress.add(done, losses / parts, tokens, busy_s, ranks_s=ranks_s)
        progress.held_up(run.held_s)
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
    """Save and release within the time that is left, then exit 75."""
    progress.flush()
    code = run.conclude(lambda: run.tenure.leave(step) if run.tenure else EXIT_RELEASED)
    run.planning.await_agent()
    return code


def finish(run: Run, progress: Progress) -> int:
    """Commit the final manifest: only then is the job done."""
    progress.flush()
    run.link.excuse(FINAL_GRACE_S)  # no step comes any more, of any rank

    def end() -> int:
        if run.tenure is None:
            return EXIT_FINISHED
        code = run.tenure.finish(run.args.steps)
        return _leave_diverged(progress, run.args.steps) if code is None else code

    return run.conclude(end)


def main() -> int:
    """Run, report how it ended, and return the exit code."""
    args, rank = parse_arguments(__doc__ or ""), int(os.environ.get("RANK", "0"))
    link = AgentClient.connect(os.environ, rank)
    STOP.listen(link)
    code, world, run, dial = EXIT_ERROR, None, None, None
    try:
        job = Job.from_env(os.environ)
        dial = SaverConnector(
            job, link, os.environ, alone=not (args.shard and os.environ.get("SPOTD_SAVER"))
        )
        if rank == 0:
            dial.start()
        timeout_s = job.peer_timeout_s
        world = World.join(os.environ, args.device, group=args.shard, timeout_s=timeout_s)
        run = prepare(args, job, world, link, dial)
        if world.rank == 0:
            ready_s = time.perf_counter() - _BEGAN_S
            print(f"ready in {ready_s:.3f} s, {_IMPORT_S:.3f} s of it to import torch", flush=True)
        if world.local_rank == 0:
            link.send(READY, {"prepared": "model, data and first pass", "plans": True})
        code = train(run)
    except StoppedError:
        code = EXIT_RELEASED
    except (ValueError, SaverError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        if run is not None and run.loading is not None:
            run.loading.close()
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
