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
from spotd.demo.facts import giving_back, orphan_seconds, recoveries
from spotd.demo.heads import zombie_commits
from spotd.demo.report import Evidence, lines, table, write_report
from spotd.demo.screen import open_screen
from spotd.demo.story import SCENARIO, STEPS, Story
from spotd.errors import UserError
from spotd.store.sql import open_store


def main(folder: Path, steps: int | None = None) -> int:
    """Run the demo, its report in `folder`; 0 when everything it is to prove was proven."""
    console = Console()
    out = folder.absolute()
    _clear(out / "box")
    signal.signal(signal.SIGTERM, _end)
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
    console.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True)
    return 0 if evidence.proven() else 1


def _clear(box: Path) -> None:
    """Remove what an earlier demo left. Raises UserError for a folder that none has made."""
    if not box.exists():
        return
    if not (box / "scenario.toml").is_file() and (not box.is_dir() or any(box.iterdir())):
        raise UserError(
            f"{box} is in the way: no earlier demo has made it",
            f"give another folder with --out, or move {box} away",
        )
    shutil.rmtree(box, ignore_errors=True)


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
    meter = box.meter()
    now_us = time.time_ns() // 1000
    url = f"sqlite:///{box.folder / 'state' / 'spotd.db'}"
    store = open_store(url, now=lambda: now_us, notify=lambda: None, deployment_factory=str)
    try:
        nodes, progress = store.job_nodes(job_id), store.progress(job_id)
        everybody = [*nodes, *store.job_nodes(reference_id)]
        return Evidence(
            nodes=nodes,
            progress=progress,
            checkpoints=store.checkpoints(job_id),
            reference=store.progress(reference_id),
            takings=takings,
            recoveries=recoveries(nodes, progress, takings, meter),
            weights_equal=_compare(box, job_id, reference_id),
            zombie=story.zombie,
            zombie_commits=zombie_commits(story.heads),
            orphan_s=orphan_seconds(everybody, meter, now_us),
            giving_back_s=giving_back(everybody, meter, now_us),
            cost=cost,
            wall_s=wall_s,
        )
    finally:
        store.close()


def _compare(box: Box, one: str, other: str) -> bool:
    """The trainer's own comparison of the two final states, bit for bit, in its own process: torch
    is not for the control box."""
    store = box.checkpoints_url
    command = [sys.executable, "-m", "trainer.checkpoint", "compare", store, one, store, other]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=box.folder)
    (box.folder / "compare.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0
