"""`python -m trainer.saver`: saves what the training processes of one machine stage, and outlives
them. The environment says what for, as it does to them (`SPOTD_...`), and where to listen
(`SPOTD_SAVER`). It says "ready" on stdout when it does.

It ends when its stdin does, or with `--stay` at SIGTERM, after what is staged was saved."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from trainer.hook.spotd_hook.agent_client import AgentClient
from trainer.hook.spotd_hook.job import Job
from trainer.saver.client_session import ClientSession
from trainer.saver.service import SaverConfig, SaverService
from trainer.saver.socket_server import SocketServer

AUTOGROUP = Path("/proc/self/autogroup")
NICE = 10
NICE_S = 5.0  # how long the kernel is asked to make our group nice
NICE_EVERY_S = 0.05
DRAIN_S = 600.0
RANK = -1  # by which the agent knows it


def main() -> int:
    """Until it is to end. The exit code: 0 when all that was staged is committed."""
    parser = argparse.ArgumentParser(prog="python -m trainer.saver", description=__doc__)
    parser.add_argument("--stay", action="store_true", help="end at SIGTERM, not with stdin")
    stay = parser.parse_args().stay
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="saver: %(message)s")
    logging.getLogger("trainer.saver.prefetch").setLevel(logging.INFO)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # what is meant for all processes here
    if stay:  # blocked in the threads to come as well, and waited for
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    yield_to_training()
    config = config_from_env()
    link = AgentClient.connect(os.environ, RANK)
    office = SaverService(config, link.send)
    if not int(os.environ.get("SPOTD_RANK", "0")):
        office.begin_prefetch(link.claim_of, int(os.environ.get("SPOTD_NUM_NODES", "1")))
    door = SocketServer(Path(config.socket), lambda: ClientSession(office))
    print("ready", flush=True)
    if stay:
        signal.sigwait({signal.SIGTERM})
    else:
        sys.stdin.buffer.read()
    done = office.drain(DRAIN_S)
    door.close()
    office.close()
    link.close()
    return 0 if done else 1


def yield_to_training() -> None:
    """Training comes first where cores are few. Where Linux groups processes by their session
    (sched_autogroup), niceness counts within a group alone, and ours is not training's: then it is
    the group that has to be nice, unless it is somebody else's. From users who are not root the
    kernel takes one such change in 0.1 s, counted over all of them, and answers EAGAIN else."""
    with suppress(OSError):
        os.nice(NICE)
    if os.getsid(0) != os.getpid():
        return
    end_s = time.monotonic() + NICE_S
    while not _make_group_nice() and time.monotonic() < end_s:
        time.sleep(NICE_EVERY_S)


def _make_group_nice() -> bool:
    """False where the same call may work in a moment."""
    try:
        AUTOGROUP.write_text(str(NICE), encoding="ascii")
    except BlockingIOError:
        return False
    except OSError:
        return True  # there are no such groups here
    return True


def config_from_env() -> SaverConfig:
    """Of the same variables as a training process has. Raises ValueError."""
    job, env = Job.from_env(os.environ), os.environ
    if not env.get("SPOTD_SAVER"):
        raise ValueError("SPOTD_SAVER is not set: it names the socket to listen on")
    return SaverConfig(
        socket=env["SPOTD_SAVER"],
        job_id=job.job_id,
        generation=job.generation,
        token=job.owner,
        store_url=job.store_url,
        store_options=job.store_options,
        head_generation=job.head_generation,
        keep=job.keep,
        keep_every_steps=job.keep_every_steps,
        suspect=job.suspect,
        local=env.get("SPOTD_SAVER_LOCAL", ""),
        shards=job.shards_url,
        others=job.shard_stores,
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads that wait for a store that does not answer hold nobody up
