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

from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.base.extras import install_command
from spotd.demo.box import Box, BoxError, running_box
from spotd.demo.bucket import bucket_server
from spotd.demo.facts import orphan_seconds, recoveries, release_delays
from spotd.demo.heads import zombie_commits
from spotd.demo.report import Evidence, recovery_table, summary_lines, write_report
from spotd.demo.screen import open_screen
from spotd.demo.story import SCENARIO, STEPS, DemoRun
from spotd.store.sql_store import open_store

# The user's cloud accounts and proxies are not used: the demo connects only to this machine.
_ACCOUNT_VARIABLES = re.compile(
    r"(AWS|BOTO|GOOGLE|CLOUDSDK|AZURE)_.*|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE
)
S3 = "s3"  # the store for checkpoints; any other word is a folder


def main(folder: Path, steps: int | None = None, store: str = S3) -> int:
    """Run the demo and write its report to `folder`. Returns the exit code.

    The exit code is 0 if all checks passed, 1 if not, and 130 if interrupted. Raises UserError.
    """
    console = Console()
    out = folder.absolute()
    if store == S3 and find_spec("moto") is None:
        raise UserError(
            "the demo's S3 server is not installed",
            f"{install_command('torch', 'demo')}, or --store folder",
        )
    _remove_old_box(out / "box")
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            signal.signal(number, _interrupt)
    out.mkdir(parents=True, exist_ok=True)
    remove_cloud_accounts(os.environ)
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
    console.print(recovery_table(evidence.recoveries))
    for line in summary_lines(evidence):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True)
    return 0 if evidence.proven() else 1


def remove_cloud_accounts(environ: MutableMapping[str, str]) -> None:
    """Remove the variables by which programs find cloud accounts and proxies."""
    for name in [name for name in environ if _ACCOUNT_VARIABLES.fullmatch(name)]:
        del environ[name]


def _remove_old_box(box: Path) -> None:
    """Remove the folder of an earlier demo. Raises UserError for any other folder."""
    if not box.exists():
        return
    if not (box / "scenario.toml").is_file() and (not box.is_dir() or any(box.iterdir())):
        raise UserError(
            f"{box} is in the way: no earlier demo has made it",
            f"give another folder with --into, or move {box} away",
        )
    shutil.rmtree(box, ignore_errors=True)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(out: Path, console: Console, steps: int, store: str) -> Evidence:
    started_s = time.monotonic()
    server = bucket_server(out / "s3.log") if store == S3 else nullcontext()
    with (
        server as bucket,
        running_box(out / "box", SCENARIO, bucket=bucket) as box,
        open_screen(console) as screen,
    ):
        story = DemoRun(box, screen, steps)
        job_id = story.run_preempted()
        wall_s = time.monotonic() - started_s
        reference_id = story.run_reference()
        return _gather(box, story, job_id, reference_id, wall_s)


def _gather(box: Box, story: DemoRun, job_id: str, reference_id: str, wall_s: float) -> Evidence:
    cost = box.client.call(routes.JOB_COST(job=job_id))
    preemptions = list(box.call_cloud("/control/state")["notices"])
    meter = box.meter()
    now_us = time.time_ns() // 1000
    url = f"sqlite:///{box.folder / 'state' / 'spotd.db'}"
    store = open_store(url, now=lambda: now_us, notify=lambda: None, deployment_factory=str)
    try:
        nodes, progress = store.nodes.of_job(job_id), store.progress.rows(job_id)
        all_nodes = [*nodes, *store.nodes.of_job(reference_id)]
        return Evidence(
            nodes=nodes,
            progress=progress,
            checkpoints=store.checkpoints.rows(job_id),
            reference=store.progress.rows(reference_id),
            preemptions=preemptions,
            recoveries=recoveries(nodes, progress, preemptions, meter),
            weights_equal=_compare(box, job_id, reference_id),
            zombie_exit=story.zombie_exit,
            zombie_commits=zombie_commits(story.head_versions),
            orphan_s=orphan_seconds(all_nodes, meter, now_us),
            release_delay_s=release_delays(all_nodes, meter, now_us),
            cost=cost,
            wall_s=wall_s,
        )
    finally:
        store.close()


def _compare(box: Box, job_id: str, reference_id: str) -> bool:
    result = box.compare(job_id, box.checkpoints_url, reference_id)
    (box.folder / "compare.log").write_text(result.stdout + result.stderr)
    return result.returncode == 0
