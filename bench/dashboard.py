"""The picture of the dashboard in the README: a box with local clouds, jobs in several states, two
machines taken away, and a real browser that looks. Takes a minute and a half; nothing is rented.

    python -m bench.dashboard --out docs/dashboard.png
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from spotd.api_client.client import Target
from spotd.api_routes import routes
from spotd.dashboard.api_cache import ApiCache
from spotd.dashboard.server import start_server
from spotd.demo.box import Box, running_box, wait_for
from spotd.demo.story import SCENARIO
from tests.fixtures.browser import open_page

SIZE = (1240, 1000)
SETTINGS = "[budgets.lab]\nusd_per_month = 60000\n[budgets.vision]\nusd_per_month = 5000\n"
SETTINGS += 'project = "vision"\n'


def trains(name: str, steps: int, more: str = "") -> str:
    """A job file of a small model, and of a machine that is called large."""
    program = f"{shlex.quote(sys.executable)} -m trainer.train --steps {steps} --threads 1 --seed 7"
    size = "--layers 1 --width 32 --block 32 --batch 2 --step-time-ms 100"
    return f"""\
name: {name}
resources:
  accelerators: H100:8
  use_spot: true
run: {program} {size}
spotd:
{more}  checkpoint: {{engine: spotd, every: 4s}}
  progress_every: 1s
"""


FAILS = """\
name: bad-import
resources: {accelerators: 'H100:8', use_spot: true}
run: echo no module named flash_attn; exit 1
spotd: {max_restarts_on_errors: 0}
"""
WAITS = "name: b200\nresources: {accelerators: 'B200:8', use_spot: true}\nrun: sleep 5\n"
PLANNED = "  deadline: 60h\n  work: 40h\n"


def strike(box: Box, job_id: str, **how: object) -> None:
    """The machine that trains is taken away."""

    def trained() -> list[str]:
        nodes = box.job(job_id)["nodes"]
        return [node["instance_id"] for node in nodes if node["state"] == "running"]

    box.preempt(wait_for("a machine that trains", trained, 120)[-1], **how)


def play(box: Box) -> str:
    """Everything that the picture shows; the id of the job that was taken away twice."""
    first = box.submit(trains("gpt-1b", 9000), "r1")
    box.submit(trains("done", 60), "r2")
    box.submit(trains("vit-sweep", 9000, "  project: vision\n"), "r3")
    box.submit(WAITS, "r4")
    paused = box.submit(trains("ablation-lr", 9000), "r5")
    box.submit(trains("nightly-eval", 9000, PLANNED), "r6")
    box.wait_phase(first, {"running"}, 120)
    wait_for("some steps", lambda: box.job(first)["step"] > 60, 120)
    strike(box, first, kind="none", mode="silent")
    wait_for("a recovery", lambda: box.job(first)["recoveries"] == 1, 120)
    wait_for("more steps", lambda: box.job(paused)["step"] > 100, 120)
    box.client.call(routes.PAUSE_JOB(job=paused), {})
    strike(box, first, kind="preempt", mode="notice", notice_s=30.0)
    wait_for("another recovery", lambda: box.job(first)["recoveries"] == 2, 120)
    box.submit(FAILS, "r7")
    wait_for(
        "a failed job", lambda: box.client.call(routes.SHOW_JOB(job="bad-import"))["outcome"], 120
    )
    wait_for("the old machine's end", lambda: len(box.job(first)["where"]) == 1, 120)
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/dashboard.png"))
    parser.add_argument("--job", type=Path, help="a picture of a job's page, whole, as well")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="spotd-", dir="/tmp") as folder,
        running_box(Path(folder), SCENARIO, SETTINGS) as box,
    ):
        first = play(box)
        source = ApiCache(Target(socket=str(box.socket_path)))
        server = start_server(source)
        try:
            with open_page() as page:
                page.look(*SIZE)
                page.open(server.url)
                page.picture(asked.out)
                if asked.job:
                    page.open(f"{server.url}job/{first}")
                    page.picture(asked.job, whole=True)
        finally:
            server.stop()
            source.close()
    print(asked.out)


if __name__ == "__main__":
    main()
