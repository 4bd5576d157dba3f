"""A training program without torch that saves through the saver, for tests of the agent. Not a test
itself.

    staging.py [--steps N] [--die] [--linger]

After `--steps` steps, each of them saved: commits the last as final and exits 0; with `--die` it
is killed at once, after the last step was staged; with `--linger` it waits until it is to stop,
saves and releases.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from spotd import wire
from trainer.hook.spotd_hook.agent_client import AgentClient
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.saver_connect import SaverConnector

SIZE = 10_000
LIMIT_S = 180.0  # as in tests.fixtures.waiting, which is not in a container
PIECES = [{"name": "w", "dtype": "int8", "shape": [SIZE], "at": [0], "block": [SIZE], "offset": 0}]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--linger", action="store_true")
    args = parser.parse_args()
    job, link = Job.from_env(os.environ), AgentClient.connect(os.environ)
    connector = SaverConnector(job, link, os.environ)
    checkpointer = Checkpointer(
        connector.connect,
        job_id=job.job_id,
        generation=job.generation,
        pieces=PIECES,
        size=SIZE,
        report=link.send,
    )

    def save(step: int, **flags: bool) -> None:
        def stage(memory: memoryview, _: object) -> None:
            memory[:] = bytes([step]) * SIZE

        checkpointer.save(step, stage, {"step": step}, trigger="test", **flags)

    link.wait_flag(10.0)
    while checkpointer.claim(*link.current_claim()) is None:
        pass
    loaded: list[int] = []
    found = checkpointer.restore({}, lambda memory: loaded.append(memory[-1]))
    done = 0 if found is None else found.step
    assert loaded == ([] if found is None else [done])
    link.send(wire.CLAIMED, {"step": done, "manifest": ""})
    print("from", done, *checkpointer.sources, flush=True)
    for step in range(done + 1, args.steps):
        save(step)
        assert checkpointer.drain(LIMIT_S)
    print("steps", flush=True)
    while args.linger and not link.flag.stop:
        time.sleep(0.01)
    input_file = os.environ.get("WAIT_FOR", "")
    while input_file and not os.path.exists(input_file):  # noqa: PTH110 - a plain program
        time.sleep(0.005)
    if args.die:
        save(args.steps)
        os.kill(os.getpid(), signal.SIGKILL)
    save(args.steps, final=not args.linger, released=args.linger)
    checkpointer.drain(LIMIT_S)
    if args.linger:
        link.send(wire.RELEASED, checkpointer.release())
    checkpointer.close()
    connector.close()
    code = wire.EXIT_RELEASED if args.linger else 0
    link.close(exit_code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
