"""`spotctl demo`: a real job on three small clouds on this machine, preempted three times."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from spotd.demo.box import Box, BoxError, running_box
from spotd.demo.facts import orphan_seconds, recoveries, zombie_commits
from spotd.demo.report import Evidence, lines, table, write_report
from spotd.demo.screen import open_screen
from spotd.demo.story import SCENARIO, STEPS, Story
from spotd.errors import UserError
from spotd.store.sql import open_store


def main(folder: Path, steps: int = 0) -> int:
    """Run the demo, its report in `folder`; 0 when everything it is to prove was proven."""
    console = Console()
    signal.signal(signal.SIGTERM, _end)
    out = folder.absolute()
    shutil.rmtree(out / "box", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    try:
        evidence = _run(out, console, steps or STEPS)
    except (BoxError, UserError) as error:
        console.print(f"the demo failed: {error}", highlight=False, markup=False)
        console.print(f"try: the logs in {out / 'box'}", highlight=False, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything was stopped")
        return 130
    write_report(out, evidence)
    console.print(table(evidence.recoveries))
    for line in lines(evidence):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {out / 'report.html'}", highlight=False, soft_wrap=True)
    return 0 if evidence.proven() else 1


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(out: Path, console: Console, steps: int) -> Evidence:
    began_s = time.monotonic()
    with running_box(out / "box", SCENARIO) as box, open_screen(console) as screen:
        story = Story(box, screen, steps)
        job_id = story.preempted()
        wall_s = time.monotonic() - began_s
        reference_id = story.undisturbed()
        return _gather(box, story, job_id, reference_id, wall_s)


def _gather(box: Box, story: Story, job_id: str, reference_id: str, wall_s: float) -> Evidence:
    cost = box.client.get(f"/v1/jobs/{job_id}/cost")
    takings = list(box.ask_cloud("/control/state")["notices"])
    now_us = time.time_ns() // 1000
    url = f"sqlite:///{box.folder / 'state' / 'spotd.db'}"
    store = open_store(url, now=lambda: now_us, notify=lambda: None, deployment_factory=str)
    try:
        nodes, progress = store.job_nodes(job_id), store.progress(job_id)
        checkpoints = store.checkpoints(job_id)
        everybody = [*nodes, *store.job_nodes(reference_id)]
        successor = next(node for node in nodes if node.generation == 2)
        return Evidence(
            nodes=nodes,
            progress=progress,
            checkpoints=checkpoints,
            reference=store.progress(reference_id),
            takings=takings,
            recoveries=recoveries(nodes, progress, takings),
            weights_equal=_compare(box, job_id, reference_id),
            zombie_exit=story.zombie_exit,
            zombie_commits=zombie_commits(checkpoints, 1, successor.claimed_at_us),
            orphan_s=orphan_seconds(everybody, box.meter(), now_us),
            cost=cost,
            wall_s=wall_s,
        )
    finally:
        store.close()


def _compare(box: Box, one: str, other: str) -> bool:
    """The trainer's own comparison of the two final states, bit for bit, in its own process: torch
    is not for the control box."""
    store = (box.folder / "checkpoints").as_uri()
    command = [sys.executable, "-m", "trainer.checkpoint", "compare", store, one, store, other]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=box.folder)
    (box.folder / "compare.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0
