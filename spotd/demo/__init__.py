"""`spotctl demo`: a real job on three small clouds on this machine, preempted three times."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import MutableMapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from spotd.base.errors import UserError
from spotd.demo.box import Box, BoxError, running_box
from spotd.demo.bucket import process
from spotd.demo.facts import giving_back, orphan_seconds, recoveries
from spotd.demo.heads import zombie_commits
from spotd.demo.report import Evidence, lines, table, write_report
from spotd.demo.screen import open_screen
from spotd.demo.story import SCENARIO, STEPS, DemoRun
from spotd.store.sql_store import open_store

# A person's own account and proxy have no part in a demo that asks nothing outside this machine.
_PERSONAL = re.compile(r"(AWS|BOTO|GOOGLE|CLOUDSDK|AZURE)_.*|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
S3, FOLDER = "s3", "folder"  # where checkpoints are kept


def main(folder: Path, steps: int | None = None, store: str = S3) -> int:
    """Run the demo, its report in `folder`; 0 when everything it is to prove was proven. Raises
    UserError."""
    console = Console()
    out = folder.absolute()
    if store == S3 and find_spec("moto") is None:
        raise UserError(
            "the demo's S3 server is not installed",
            "pip install 'spotd[torch,demo]', or --store folder",
        )
    _clear(out / "box")
    for number in (signal.SIGTERM, signal.SIGHUP):  # the terminal may be closed
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, _end)
    out.mkdir(parents=True, exist_ok=True)
    leave_accounts_out(os.environ)
    try:
        evidence = _run(out, console, steps or STEPS, store)
    except (BoxError, OSError, UserError) as error:
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


def leave_accounts_out(environ: MutableMapping[str, str]) -> None:
    """Remove what programs find cloud accounts and proxies by."""
    for name in [name for name in environ if _PERSONAL.fullmatch(name)]:
        del environ[name]


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


def _run(out: Path, console: Console, steps: int, store: str) -> Evidence:
    began_s = time.monotonic()
    kept = process(out / "s3.log") if store == S3 else nullcontext()
    with (
        kept as bucket,
        running_box(out / "box", SCENARIO, bucket=bucket) as box,
        open_screen(console) as screen,
    ):
        story = DemoRun(box, screen, steps)
        job_id = story.preempted()
        wall_s = time.monotonic() - began_s
        reference_id = story.undisturbed()
        return _gather(box, story, job_id, reference_id, wall_s)


def _gather(box: Box, story: DemoRun, job_id: str, reference_id: str, wall_s: float) -> Evidence:
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
    done = box.compare(one, box.checkpoints_url, other)
    (box.folder / "compare.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0
