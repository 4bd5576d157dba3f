"""Whether a daemon that has seen many jobs is as small as one that has seen few:
`python -m tests.e2e.growth [--jobs 400] [--json FILE]`.

A real daemon and real machines of the local cloud. Jobs come and go in batches; between batches,
with all of them over, the process is measured. What a job leaves behind shows as a slope. The
allocator is told what the systemd unit tells it: by itself glibc keeps, in many arenas, the most
that each of some fifty threads has needed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spotd.api_routes import routes
from spotd.demo.box import Box, wait_for

UNIT = Path(__file__).parents[2] / "systemd" / "spotd.service"
BATCH = 4  # jobs side by side
WARM_JOBS = 8  # before the first look: pools of threads and caches have their size then
LIMIT_S = 120.0
LOOKS, LOOK_S = 5, 0.2
# A job, in the second half of a long life: about 10, give or take 15 by garbage that waits for its
# collection. What fills up, and where it ends: docs/measurements.md.
MOST_KIB = 32.0
SETTINGS = "[timing]\noffers_every_s = 0.5\nsurvey_every_s = 0.5"
JOB = """\
name: brief-{number}
resources:
  accelerators: H100:8
run: echo done
spotd:
  checkpoint: {{engine: none}}
"""


def tunables() -> str:
    """What the unit tells the allocator, for GLIBC_TUNABLES."""
    before = "Environment=GLIBC_TUNABLES="
    [line] = [line for line in UNIT.read_text().splitlines() if line.startswith(before)]
    return line.removeprefix(before)


@dataclass(frozen=True)
class Size:
    """A process when `jobs` jobs were over."""

    jobs: int
    rss_kib: int
    files: int
    threads: int


@dataclass(frozen=True)
class Growth:
    """From one size to another, for each job in between."""

    rss_kib: float
    files: float
    threads: float


def measure(pid: int, jobs: int) -> Size:
    """The process as the kernel sees it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Size(jobs, int(fields["VmRSS"].split()[0]), files, int(fields["Threads"]))


def growth(first: Size, last: Size) -> Growth:
    """What each job between the two left behind."""
    jobs = last.jobs - first.jobs
    return Growth(
        (last.rss_kib - first.rss_kib) / jobs,
        (last.files - first.files) / jobs,
        (last.threads - first.threads) / jobs,
    )


def live(box: Box, jobs: int) -> Iterator[Size]:
    """A life with so many jobs after it has warmed up; its size then, and after every batch."""
    assert box.daemon is not None
    for first in range(0, WARM_JOBS + jobs, BATCH):
        ids = [
            box.submit(JOB.format(number=number), f"r{number}")
            for number in range(first, first + BATCH)
        ]
        for job_id in ids:
            box.wait_phase(job_id, {"succeeded"}, LIMIT_S)
        wait_for("every machine's end", lambda: _all_gone(box), LIMIT_S)
        if first + BATCH >= WARM_JOBS:
            yield settled(box.daemon.pid, first + BATCH)


def settled(pid: int, jobs: int) -> Size:
    """As `measure`, but that what is just being closed does not count: the fewest of some looks."""
    looks = []
    for _ in range(LOOKS):
        looks.append(measure(pid, jobs))
        time.sleep(LOOK_S)
    files, threads = min(look.files for look in looks), min(look.threads for look in looks)
    return replace(looks[-1], files=files, threads=threads)


def _all_gone(box: Box) -> bool:
    """For the daemon too: it follows nobody any more."""
    return not box.client.call(routes.LIST_NODES())["items"]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing grew beyond what a long life may add."""
    parser = argparse.ArgumentParser(prog="growth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    sizes: list[Size] = []
    os.environ["GLIBC_TUNABLES"] = tunables()  # of the processes that we start
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        Box(Path(name), settings=SETTINGS) as box,
    ):
        box.start()
        for size in live(box, options.jobs):
            sizes.append(size)
            print(size, flush=True)
    found = growth(sizes[len(sizes) // 2], sizes[-1])  # caches fill up for a while
    print(found)
    if options.json:
        rows = [asdict(size) for size in sizes]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        data = {"sizes": rows, "a_job": asdict(found)}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    small = found.rss_kib < MOST_KIB and found.files < 0.05 and found.threads < 0.05
    return 0 if small else 1


if __name__ == "__main__":
    sys.exit(main())
