"""Somebody's training script: it knows SkyPilot's variables and nothing of spotd.

It keeps its progress in $BUCKET, which stands for the mounted bucket that such scripts use.
"""

import json
import os
import time
from pathlib import Path

from src.steps import STEP_S, STEPS

bucket = Path(os.environ["BUCKET"])
rank = os.environ["SKYPILOT_NODE_RANK"]
seen = {name: value for name, value in os.environ.items() if name.startswith("SKYPILOT_")}
seen |= {
    "GREETING": os.environ["GREETING"],
    "made_by_setup": Path("made-by-setup").read_text(),
    "words": Path("~/inputs/words.txt").expanduser().read_text(),
    "cwd": str(Path.cwd()),
    "sky_workdir": str(Path("~/sky_workdir").expanduser().resolve()),
}
number = len(list(bucket.glob(f"seen-{rank}-*.json")))
(bucket / f"seen-{rank}-{number}.json").write_text(json.dumps(seen))

progress = bucket / f"step-{rank}"
step = int(progress.read_text()) if progress.exists() else 0
while step < STEPS:
    time.sleep(STEP_S)
    step += 1
    new = bucket / f"step-{rank}.new"
    new.write_text(str(step))
    new.replace(progress)
print(f"rank {rank} has done {step} steps")
