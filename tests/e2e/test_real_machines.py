"""Real machines of network namespaces, with OpenSSH, a metadata service at its own address and a
disk of their own, and what happens to them. Needs root; without it, this is a failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from spotd.demo import s3
from spotd.demo.heads import HeadWatch
from tests.e2e.hardships import (
    TIMING,
    RealRun,
    hard_ends,
    hard_links,
    hard_neighbours,
    hard_times,
)
from tests.e2e.rig import SCENARIO, Reference, job_file
from tests.e2e.verdict import judge
from tests.fixtures import netns

pytestmark = pytest.mark.root

BOOTS = "boot_delay_s = 2.0\n"  # a machine refuses connections until it is up


@dataclass(frozen=True)
class Setting:
    """A job of so slow steps and so rare checkpoints, on machines with so much disk."""

    step_ms: int
    every_s: int
    disk: str = "512m"
    networked: bool = False  # its checkpoints are in a bucket on the machines' network


RUNS: dict[str, tuple[Callable[[RealRun], None], Setting]] = {
    "links": (hard_links, Setting(step_ms=400, every_s=1)),
    "ends": (hard_ends, Setting(step_ms=150, every_s=1, networked=True)),
    "neighbours": (hard_neighbours, Setting(step_ms=150, every_s=60)),
    "times": (hard_times, Setting(step_ms=150, every_s=1, disk="96m")),
}


@pytest.mark.e2e
@pytest.mark.parametrize("name", RUNS)
def test_the_job_ends_as_if_nothing_had_happened(
    name: str, python: Path, reference: Reference, folder: Path
) -> None:
    hardship, setting = RUNS[name]
    scenario = SCENARIO.replace('name = "', f'{BOOTS}name = "')
    with ExitStack() as stack:
        network = stack.enter_context(netns.network())
        store = stack.enter_context(s3.serving(network.gateway)) if setting.networked else None
        options = {"disk": setting.disk, "bucket": store, "python": python}
        box = stack.enter_context(netns.RealBox(network, folder, scenario, TIMING, **options))
        box.start()
        text = job_file(python, name=name, step_ms=setting.step_ms)
        job_id = box.submit(text.replace("every: 1s", f"every: {setting.every_s}s"), name)
        run = RealRun(box, job_id, Random(name))
        stack.callback(run.close)
        try:
            with HeadWatch(box.checkpoints_url, job_id, box.store_options) as watch:
                hardship(run)
            wrong = judge(run, reference, watch.versions)
        except BaseException:
            print(*run.story, sep="\n")
            print(*(f"{e['at']}  {e['kind']}: {e['text']}" for e in box.events(job_id)), sep="\n")
            print(box.tail("daemon", 40), box.tail("cloud", 20), sep="\n---\n")
            raise
    print(*run.story, sep="\n")
    assert not wrong, "\n".join([*wrong, *run.story])
