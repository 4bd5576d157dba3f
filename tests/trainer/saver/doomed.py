"""A training program that is killed while it stages a snapshot. Not a test itself.

    doomed.py STEP [--torn]

It resumes from HEAD, prints the step, and saves one snapshot after STEP: it is killed as soon as
the snapshot is staged, or with `--torn` when half of it is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from tests.trainer.saver.rig import CONFIG, PIECES, SIZE, fill
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.saver_client import SaverClient


def main() -> None:
    step, torn = int(sys.argv[1]), "--torn" in sys.argv
    checkpointer = Checkpointer(
        lambda: SaverClient(os.environ["SPOTD_SAVER"]),
        job_id="job",
        generation=1,
        pieces=PIECES,
        size=SIZE,
        report=print,
    )
    while checkpointer.claim("now", 0.0) is None:
        pass
    found = checkpointer.restore(CONFIG, lambda memory: print(bytes(memory[:4])))
    print("from", 0 if found is None else found.step, flush=True)

    def stage(memory: memoryview, filled: Callable[[int], None]) -> None:
        fill(memory, step)
        if torn:
            filled(SIZE // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    checkpointer.save(step, stage, {"config": CONFIG}, trigger="test")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
