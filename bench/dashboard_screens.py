"""Make the pictures of docs/screens: the dashboard of a played story, wide and on a phone.

python -m bench.dashboard_screens [FOLDER]
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

from spotd.api_client.client import Target
from spotd.dashboard.api_cache import ApiCache
from spotd.dashboard.server import start_server
from spotd.domain.states import LeaveReason
from tests.fixtures.browser import open_page
from tests.spotd.api.rig import OFFERS, SPOT, Rig, crash

FOLDER = Path(__file__).parent.parent / "docs" / "screens"
JOBS = 30
STEP_S = 1.5


def play(rig: Rig) -> str:
    """Play a job that lost a machine and 40 steps; returns its id."""
    job_id = rig.submit("llama-8b-sft", ago_s=6330)
    first = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(first, ago_s=6270, until_s=6240, first=0, last=10)
    _report(rig, job_id, range(11, 1232), ends_s=2740)
    second = rig.launch(job_id, OFFERS[2], ago_s=2790)
    rig.leave(first, 2720, LeaveReason.PREEMPTED, "preempt notice")
    rig.train(second, ago_s=2730, until_s=2700, first=1190, last=1192)
    _report(rig, job_id, range(1193, 2400), ends_s=30)
    rig.log(second, "rank0", 0, b"".join(b"step %d  loss %.4f\n" % (n, _loss(n))
                                         for n in range(2300, 2400)))  # fmt: skip
    return job_id


def _loss(step: int) -> float:
    return 1.2 + 2.4 * math.exp(-step / 700) + 0.08 * math.sin(step * 1.7) * math.cos(step / 9)


def _report(rig: Rig, job_id: str, steps: range, ends_s: float) -> None:
    """Report the steps by tens, the last of them `ends_s` ago."""
    node = rig.store.nodes.of_job(job_id)[-1]
    for first in steps[::10]:
        last = min(first + 9, steps[-1])
        until_s = ends_s + (steps[-1] - last) * STEP_S
        busy_s = (last - first + 1) * (STEP_S + 0.1 * math.sin(first / 50))
        rig.say(
            node,
            until_s,
            "progress",
            from_step=first,
            to_step=last,
            losses=[_loss(step) for step in range(first, last + 1)],
            first_at_us=rig.ago(until_s + busy_s),
            last_at_us=rig.ago(until_s),
            tokens=(last - first + 1) * 65_536,
            busy_s=busy_s,
            total_steps=4000,
        )


def main(folder: Path = FOLDER) -> None:
    """Write one PNG a page into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rig = Rig().start()
    cache = ApiCache(Target(socket=str(rig.socket)), age_factor=0.0)
    server = start_server(cache)
    try:
        rig.offer_them(*(replace(o, price_microusd_per_h=o.price_microusd_per_h * n // 10)
                         for n, o in zip((12, 9, 13, 10), OFFERS, strict=False)))  # fmt: skip
        rig.clock.go_on(20 * 3600)
        rig.offer_them()
        rig.clock.go_on(4 * 3600)
        job_id = play(rig)
        crash(rig)
        for number in range(JOBS - 2):
            rig.submit(f"sweep-{number:02}", ago_s=7000 + 60.0 * number)
        pages = {
            "overview": "",
            "jobs": "jobs",
            "job": f"job/{job_id}",
            "machine": f"machine/{job_id}-g1-r0",
            "provider": "provider/aws",
            "prices": "prices",
        }
        with open_page() as page:
            for name, path in pages.items():
                for look, width, height, dark in (
                    ("light", 1440, 1000, False),
                    ("dark", 1440, 1000, True),
                    ("phone", 390, 844, False),
                    ("phone-dark", 390, 844, True),
                ):
                    page.look(width, height, dark=dark)
                    page.open(server.url + path)
                    page.picture(folder / f"{name}-{look}.png")
            if page.console:
                raise SystemExit("\n".join(page.console))
    finally:
        server.stop()
        cache.close()
        rig.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
