"""Train a byte-level GPT that survives preemption of its machine.

    python -m trainer.train --steps 1000                          one process
    torchrun --nproc-per-node 2 -m trainer.train --steps 1000     data-parallel

Under spotd environment variables set where checkpoints go and how often. Started by hand they go to
./checkpoints, and running the same command again resumes. SIGUSR1 saves and continues, SIGTERM
saves and exits. Exit codes: 0 finished, 75 saved and released, 76 fenced, 1 error.
"""

# ruff: noqa: E402 - install signal handlers first: importing torch takes a second
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

_STARTED_S = time.perf_counter()

import torch

_IMPORT_S = time.perf_counter() - _STARTED_S

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
from trainer.reference.numbers import DivergenceGuard
from trainer.reference.run import Run
from trainer.reference.state import Schedule, TrainState
from trainer.reference.virtual_ranks import shares_of
from trainer.reference.world import World

if TYPE_CHECKING:
    from trainer.reference.sharded import ShardedState

SAVER_S = 2.0  # time for a saver that we started to exit; saves have been waited for before


def prepare(
    args: argparse.Namespace, job: Job, world: World, link: AgentClient, connector: SaverConnector
) -> Run:
    """Prepare everything that does not depend on the resume point, including a warm-up pass."""
    if args.threads:
        torch.set_num_threads(args.threads)
    shape = Shape(args.layers, args.heads, args.width, args.block, args.dropout)
    schedule = Schedule(args.lr, args.warmup, args.steps)
    parts = args.virtual_ranks or args.shares or world.size
    option = "--shares" if args.shares else "--virtual-ranks"
    shares_of(world.rank, world.size, parts, option)  # raises if there are too few shares
    order = Order(args.seed, args.block, args.batch, parts)
    corpus = load_corpus(args.data)
    model = make_model(shape, args.seed).to(world.device)
    state = make_state(args, model, world)
    config = {**asdict(shape), **asdict(schedule), **asdict(order), "data": corpus.digest}
    ranks = Ranks.join() if args.shard else None
    checkpointer = None
    if world.rank == 0 or ranks is not None:
        group, connect = (
            (RankGroup(), connector.connect)
            if ranks is None
            else join_rank_group(job, ranks, link, connector)
        )
        checkpointer = Checkpointer(
            connect,
            job_id=job.job_id,
            generation=job.generation,
            pieces=state.pieces,
            size=state.size,
            report=link.send,
            group=replace(group, pin=partial(pin, warn=make_warner(link))),
        )
    # Rank 0 measures the save times because it waits for all ranks.
    saver = None if world.rank else checkpointer
    planner = SavePlanner(job, saver, STOP, link.send, reports=world.local_rank == 0)
    run = Run(
        args=args,
        world=world,
        link=link,
        corpus=corpus,
        order=order,
        schedule=schedule,
        model=model,
        state=state,
        checkpointer=checkpointer,
        config=config,
        job=job,
        save_planner=planner,
    )
    run.compute(0, world.rank)  # warm-up: allocates memory, starts threads, selects kernels
    state.clear_gradients()
    if checkpointer is not None:
        _set_up_saving(run, checkpointer, ranks)
    return run


def _set_up_saving(run: Run, checkpointer: Checkpointer, ranks: Ranks | None) -> None:
    """Open the store, waiting while it is unavailable, and prepare claiming and saving."""
    save = run.save
    if ranks is not None and not isinstance(run.state, TrainState):
        load, warn = partial(run.state.load, checkpointer), make_warner(run.link)
        run.multi_rank_saver = MultiRankSaver(ranks, checkpointer, load, run.save, warn)
        save = run.multi_rank_saver.save
    ownership = HeadOwnership(run.link, STOP, checkpointer, run.save_planner, save)
    ownership.retry_while_away(checkpointer.open, "the store cannot be opened yet")
    run.head_ownership = None if run.world.rank else ownership


def make_state(args: argparse.Namespace, model: Gpt, world: World) -> TrainState | ShardedState:
    """The training state: complete on every rank, or with --shard this rank's shards."""
    if not args.shard:
        return TrainState(model, world.device)
    from trainer.reference.sharded import ShardedState  # noqa: PLC0415 - a second to load

    return ShardedState(model, world, ordered=bool(args.virtual_ranks))


def join_rank_group(
    job: Job, ranks: Ranks, link: AgentClient, connector: SaverConnector
) -> tuple[RankGroup, Callable[[], SaverClient]]:
    """The rank group for saving shards by the saver of each machine, and a function that connects
    to that saver. Raises ValueError on several machines without a node agent."""
    size, per_node = ranks.size, ranks.per_node or ranks.size
    name, socket = ranks.broadcast([secrets.token_hex(6), connector.socket])
    if not os.environ.get("SPOTD_SAVER"):
        if per_node < size:
            raise ValueError(
                "--shard saves on each of several machines, and none of them has a node agent: "
                "submit the job with spotctl run, or start all ranks on one machine"
            )
        if ranks.rank:
            connector = SaverConnector(job, link, {"SPOTD_SAVER": socket}, may_spawn=False)
    first = ranks.rank - ranks.local_rank
    return RankGroup(
        ranks.rank, tuple(range(first, first + per_node)), size, name
    ), connector.connect


def make_warner(link: AgentClient) -> Callable[[str], None]:
    """A function that prints a warning and reports it to the agent."""

    def warn(message: str) -> None:
        print(message, file=sys.stderr, flush=True)
        link.send(WARNING, {"text": message})

    return warn


def claim_and_restore(run: Run) -> int:
    """Wait until HEAD may be claimed, claim it and restore; return the number of steps done.

    Returns -1 if the job is finished already. Call on rank 0 only. Raises StoppedError,
    FencedError, and SaverError for errors that retries cannot solve.
    """
    checkpointer = run.checkpointer
    ownership = run.head_ownership
    assert checkpointer is not None and ownership is not None  # noqa: S101, PT018 - rank 0 has both
    if ownership.claim()["final"]:
        print(f"job {run.job.job_id} is finished: nothing to do", flush=True)
        return -1
    restore_started_s = time.perf_counter()
    checkpoint = ownership.retry_while_away(run.restore, "the checkpoint cannot be read yet")
    restore_s = time.perf_counter() - restore_started_s
    if checkpoint is not None:
        match_numerics(run, checkpoint.state)
    step, manifest = (checkpoint.step, checkpoint.ref["manifest"]) if checkpoint else (0, "")
    run.link.send(CLAIMED, {"step": step, "manifest": manifest, "restore_s": round(restore_s, 6)})
    source = f" from {' and '.join(checkpointer.sources)}" if checkpointer.sources else ""
    message = f"continues after step {step}, restored in {restore_s:.3f} s{source}"
    print(f"generation {run.job.generation} {message}", flush=True)
    return step


def match_numerics(run: Run, saved_state: Mapping[str, Any]) -> None:
    """Use the checkpoint's number of threads, on which the last bits of parallel sums depend. Warn
    if the torch version or the device type differs."""
    if not run.args.threads and saved_state.get("threads"):
        torch.set_num_threads(saved_state["threads"])
    current = {"torch": torch.__version__, "device": run.world.device.type}
    for name, value in current.items():
        if saved_state.get(name, value) != value:
            message = (
                f"the checkpoint was made with {name} {saved_state[name]}, and here it is {value}"
            )
            run.link.send(WARNING, {"text": f"{message}: results may differ in their last bits"})


def resume(run: Run) -> int:
    """Claim and restore on rank 0, and share the state and the number of steps done with all ranks.

    A negative result is -1 - exit code.
    """
    outcome = -1 - EXIT_ERROR
    try:
        if run.world.rank == 0:
            outcome = claim_and_restore(run)
    except StoppedError:
        # Before the claim there is nothing to release.
        checkpointer = run.checkpointer
        claimed = checkpointer is not None and checkpointer.claimed
        ownership = run.head_ownership if claimed else None
        outcome = -1 - (EXIT_RELEASED if ownership is None else ownership.release())
    except FencedError as error:
        print(error, file=sys.stderr, flush=True)
        outcome = -1 - EXIT_FENCED
    finally:
        outcome = run.sync_outcome(outcome)
    if outcome >= 0:  # the same on all machines, whatever their size
        torch.set_num_threads(run.world.broadcast(torch.get_num_threads()))
    if outcome > 0:
        run.broadcast_state()
    return outcome


def train(run: Run) -> int:
    """Run the training loop, from the claim to the exit code."""
    done = resume(run)
    if done < 0:
        return -1 - done
    args, world, parts = run.args, run.world, run.order.world_size
    progress = Progress(
        run.link.send,
        every_s=run.job.progress_every_s,
        steps=args.steps,
        disabled=world.rank > 0,
        per_node=world.ranks_per_node,
    )
    guard = DivergenceGuard(run)
    run.start_batch_loader(done)
    saved_step, saved_at = done, time.monotonic()
    for step in range(done, args.steps):
        started = time.perf_counter()
        local_losses, alone_s = run.compute_gradients(step)
        applied = run.update(step)
        STOP.sleep(args.step_time_ms / 1000 - (time.perf_counter() - started))
        busy_s = time.perf_counter() - started - run.copy_wait_s

        done = step + 1
        fenced = run.checkpointer is not None and run.checkpointer.fenced is not None
        due = run.save_planner.is_due(done - saved_step, time.monotonic() - saved_at)
        flags = [STOP.stopping, fenced, due, STOP.take_save_requests()]
        words = run.save_planner.rank_values(world.rank, world.size, busy_s)
        numbers = [*flags, *words, *local_losses, *world.rank_vector(alone_s)]
        stops, fences, dues, saves, *sums = world.sum_numbers(numbers)
        plan_sums, sums = sums[: len(words)], sums[len(words) :]
        losses, ranks_s = sum(sums[: len(local_losses)]), sums[len(local_losses) :]
        tokens = args.batch * args.block * parts
        progress.add_data_wait(run.data_s)
        progress.add(done, losses / parts, tokens, busy_s, ranks_s=ranks_s)
        progress.add_save_time(run.copy_wait_s)
        run.link.set_step(done)
        if fences:
            return _exit_fenced(run, progress)
        if not guard.accept(done, losses, applied=applied):
            return _exit_diverged(progress, done)
        if done == args.steps:
            break
        plan = run.save_planner.plan_for(plan_sums, done)
        if stops or (plan is not None and plan.ends_training):
            return save_and_release(run, progress, done)
        if (dues and guard.is_finite) or saves:
            progress.flush()  # so that the loss of every saved step is known
            save_started = time.perf_counter()
            run.save(done, "asked" if saves else "cadence")
            progress.add_save_time(time.perf_counter() - save_started)
            saved_step, saved_at = done, time.monotonic()
    return finish(run, progress)


def _exit_fenced(run: Run, progress: Progress) -> int:
    if run.checkpointer is not None:
        print(run.checkpointer.fenced, file=sys.stderr, flush=True)
    progress.flush()
    return EXIT_FENCED


def _exit_diverged(progress: Progress, step: int) -> int:
    print(f"error: training has diverged permanently at step {step}", file=sys.stderr, flush=True)
    progress.flush()
    return EXIT_DIVERGED


def save_and_release(run: Run, progress: Progress, step: int) -> int:
    """Save and release HEAD within the remaining notice time; returns the exit code."""
    progress.flush()
    code = run.finish_all(
        lambda: run.head_ownership.save_and_release(step) if run.head_ownership else EXIT_RELEASED
    )
    run.save_planner.wait_for_agent()
    return code


def finish(run: Run, progress: Progress) -> int:
    """Commit the final manifest, which completes the job; returns the exit code."""
    progress.flush()
    run.link.report_busy(FINAL_GRACE_S)  # the watchdog must expect no more steps

    def end() -> int:
        if run.head_ownership is None:
            return EXIT_FINISHED
        code = run.head_ownership.finish(run.args.steps)
        return _exit_diverged(progress, run.args.steps) if code is None else code

    return run.finish_all(end)


def main() -> int:
    """Run the training, report its end to the agent, and return the exit code."""
    args, rank = parse_arguments(__doc__ or ""), int(os.environ.get("RANK", "0"))
    link = AgentClient.connect(os.environ, rank)
    STOP.listen(link)
    code, world, run, connector = EXIT_ERROR, None, None, None
    try:
        job = Job.from_env(os.environ)
        connector = SaverConnector(
            job, link, os.environ, may_spawn=not (args.shard and os.environ.get("SPOTD_SAVER"))
        )
        if rank == 0:
            connector.start()
        timeout_s = job.peer_timeout_s
        world = World.join(os.environ, args.device, group=args.shard, timeout_s=timeout_s)
        run = prepare(args, job, world, link, connector)
        if world.rank == 0:
            ready_s = time.perf_counter() - _STARTED_S
            print(f"ready in {ready_s:.3f} s, {_IMPORT_S:.3f} s of it to import torch", flush=True)
        if world.local_rank == 0:
            link.send(READY, {"prepared": "model, data and first pass", "plans": True})
        code = train(run)
    except StoppedError:
        code = EXIT_RELEASED
    except (ValueError, SaverError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        if run is not None and run.batch_loader is not None:
            run.batch_loader.close()
        if run is not None and run.checkpointer is not None:
            run.checkpointer.close()
        if connector is not None:
            connector.close(SAVER_S)
        link.close(exit_code=code)
        # EXIT_DIVERGED is outside the range of process exit codes.
        code = EXIT_ERROR if code == EXIT_DIVERGED else code
        if world is not None:
            world.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
