"""Run the saver process: upload the snapshots that one machine's training processes stage.

It outlives the training processes, so that whatever they staged is committed even if they are
killed. Its configuration comes from the same environment variables as theirs (`SPOTD_...`);
`SPOTD_SAVER` names the unix socket to listen on. It prints "ready" on stdout once it listens.

It ends when its stdin is closed, or with `--stay` at SIGTERM, after committing what is staged. With
SIGUSR2 instead the program has ended well, and the saver records that the job is done.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from providers.stores.base import StoreError, StoreUnavailableError
from spotd.wire import WireError
from trainer.fence import FencedError
from trainer.hook.spotd_hook.agent_client import AgentClient
from trainer.hook.spotd_hook.job import Job
from trainer.saver.client_session import ClientSession
from trainer.saver.reader import CorruptError
from trainer.saver.service import SaverConfig, SaverService
from trainer.saver.socket_server import SocketServer

_LOG = logging.getLogger(__name__)
AUTOGROUP = Path("/proc/self/autogroup")
NICE = 10
NICE_S = 5.0  # how long to retry making our group nice
NICE_EVERY_S = 0.05
DRAIN_S = 600.0
FINISH_S = 60.0
RETRY_S = 1.0
FINISH_SIGNAL = signal.SIGUSR2
RANK = -1  # identifies the saver to the agent


def main() -> int:
    """Run until ordered to stop; return 0 if every staged snapshot was committed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m trainer.saver", description=__doc__)
    parser.add_argument("--stay", action="store_true", help="end at SIGTERM, not with stdin")
    stay = parser.parse_args().stay
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="saver: %(message)s")
    logging.getLogger("trainer.saver.prefetch").setLevel(logging.INFO)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # sent to all processes of the job
    if stay:  # blocked in later threads too; sigwait receives them
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, FINISH_SIGNAL})
    lower_priority()
    config = config_from_env()
    link = AgentClient.connect(os.environ, RANK)
    service = SaverService(config, link.send)
    if not int(os.environ.get("SPOTD_RANK", "0")):
        service.start_prefetch(link.current_claim, int(os.environ.get("SPOTD_NUM_NODES", "1")))
    server = SocketServer(Path(config.socket), lambda: ClientSession(service))
    print("ready", flush=True)
    finishes = False
    if stay:
        finishes = signal.sigwait({signal.SIGTERM, FINISH_SIGNAL}) == FINISH_SIGNAL
    else:
        sys.stdin.buffer.read()
    drained = service.drain(DRAIN_S)
    if finishes:
        finish_job(service)
    server.close()
    service.close()
    link.close()
    return 0 if drained else 1


def finish_job(service: SaverService) -> None:
    """Record that the job is done, if its last training has ended; retried for FINISH_S."""
    until_s = time.monotonic() + FINISH_S
    while (error := _try_to_finish(service)) is not None:
        if not isinstance(error, StoreUnavailableError) or time.monotonic() >= until_s:
            _LOG.warning("the end of the job is not recorded: %s", error)
            return
        time.sleep(RETRY_S)


def _try_to_finish(service: SaverService) -> Exception | None:
    """Return the error, or None."""
    try:
        service.finish_job()
    except (StoreError, FencedError, CorruptError, WireError) as error:
        return error
    return None


def lower_priority() -> None:
    """Let training processes win where cores are scarce.

    Where Linux groups processes by session (sched_autogroup), niceness counts only within a group
    and the saver's group is not training's, so the group itself must be made nice, unless the
    session belongs to another process. For users other than root the kernel accepts one such change
    per 0.1 s, counted over all of them, and answers EAGAIN otherwise.
    """
    with suppress(OSError):
        os.nice(NICE)
    if os.getsid(0) != os.getpid():
        return
    end_s = time.monotonic() + NICE_S
    while not _make_group_nice() and time.monotonic() < end_s:
        time.sleep(NICE_EVERY_S)


def _make_group_nice() -> bool:
    """Return False if the same call may succeed in a moment."""
    try:
        AUTOGROUP.write_text(str(NICE), encoding="ascii")
    except BlockingIOError:
        return False
    except OSError:
        return True  # this kernel has no autogroups
    return True


def config_from_env() -> SaverConfig:
    """Read the configuration from a training process's environment variables. Raises ValueError."""
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
    os._exit(code)  # do not wait for threads blocked on a store
