"""A control box that rents from stand-ins of clouds, through their own SDKs; its machines are
network namespaces that come up by the user data which the cloud got."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from providers.aws.listing import name_of, parted
from spotd.demo.box import Box, BoxError, wait_for
from tests.clouds.aws.ec2 import NOTICE
from tests.clouds.aws.fleet import Entry
from tests.clouds.aws.serving import PROFILE, StandIn, serving
from tests.clouds.machines import Machines, machines_on
from tests.e2e.rig import POLL_S, UP_TIMEOUT_S, Run
from tests.rigs import bucket, netns
from tests.rigs.bucket import Bucket

TIMING = """
[timing]
survey_every_s = 1
resurvey_s = 2
reterminate_s = 2
suspect_after_s = 10
lost_after_s = 30
"""
LIMITS = """
[limits]
max_nodes = 4
max_usd_per_hour = 2.0
"""
AWS = f"""
[providers.aws]
kind = "aws"
regions = ["us-east-1", "us-west-2"]
profile = "{PROFILE}"
instance_types = ["c5.xlarge"]
"""


@dataclass(frozen=True)
class Taking:
    """What the cloud did to one machine; for the verdict."""

    instance_id: str
    mode: str = "notice"


class CloudBox(Box):
    """The daemon alone: there is no local cloud. What the clouds' own books say is `meter`."""

    def __init__(self, folder: Path, aws: StandIn, store: Bucket, python: Path) -> None:
        super().__init__(folder, settings=f"{LIMITS}{TIMING}{AWS}", python=python)
        self.aws = aws
        self.takings: list[Taking] = []
        self._bucket = store
        self.store_options = store.options
        self._settings += netns.store_settings(store, self.folder / "bucket-key")

    @property
    def checkpoints_url(self) -> str:
        return self._bucket.url

    def write_config(self) -> None:
        head = f'state_dir = "{self.folder / "state"}"\nsocket = "{self.socket_path}"\n'
        store = f'[checkpoint]\nstore = "{self.checkpoints_url}"\n'
        self.config_path.write_text(f"{head}{store}{self._settings}")

    def environ(self) -> dict[str, str]:
        return super().environ() | self.aws.environ

    def interrupt(self, instance_id: str, left_s: float) -> None:
        """The spot machine is taken away in so many seconds: a part of EC2's two minutes has passed
        already."""
        _, instance = parted(instance_id)
        self.takings.append(Taking(instance_id))
        self.aws.ec2.interrupt(instance, datetime.now(UTC) + timedelta(seconds=left_s) - NOTICE)

    def meter(self) -> list[dict[str, Any]]:
        return [_row(entry) for entry in self.aws.ec2.fleet.books.values()]

    def ask_cloud(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What verdict.py asks a local cloud for."""
        if path != "/control/state":
            raise BoxError(f"{path}: there is no local cloud")
        return {"notices": [vars(taking) for taking in self.takings]}


def _row(entry: Entry) -> dict[str, Any]:
    end_us = entry.ended_at_us or time.time_ns() // 1000
    return {
        "instance_id": name_of(entry.region, entry.instance),
        "token": entry.token,
        "launched_at_us": entry.launched_at_us,
        "ended_at_us": entry.ended_at_us or None,
        "seconds": (end_us - entry.launched_at_us) / 1e6,
    }


@dataclass
class CloudRun(Run):
    """A job on machines of stand-ins."""

    fleet: Machines = field(kw_only=True)

    @property
    def boxed(self) -> CloudBox:
        assert isinstance(self.box, CloudBox)
        return self.box

    def interrupt(self, instance_id: str, left_s: float) -> None:
        self.boxed.interrupt(instance_id, left_s)
        self.note(f"{instance_id} is to be taken away in {left_s:g} s")

    def wait_launched(self) -> None:
        """Until the cloud has given one machine."""
        wait_for("a machine", self.machines, UP_TIMEOUT_S, every_s=POLL_S)

    def tell(self) -> list[str]:
        """Everything that anybody said, for whoever has to find out why it went wrong."""
        events = [f"{e['at']}  {e['kind']}: {e['text']}" for e in self.box.events(self.job_id)]
        boots = [f"--- {name}\n{self.fleet.said(name)[-3000:]}" for name in self.fleet.running()]
        return [*self.story, *events, self.box.tail("daemon", 40), *boots]

    def left_behind(self) -> list[str]:
        """Machines that are there, though all is over; and what the cloud still sells us."""
        sold = [entry.instance for entry in self.boxed.aws.ec2.fleet.books.values()]
        running = [name for name in sold if not self.boxed.aws.ec2.fleet.books[name].ended_at_us]
        return [*self.fleet.running(), *running]


@contextmanager
def running_aws(folder: Path, python: Path) -> Iterator[tuple[CloudBox, Machines]]:
    """A box, and AWS with real machines behind it, for the length of the block."""
    readable = [python, *_packages(python)]
    with (
        netns.network() as network,
        machines_on(network, folder / "machines", readable=readable) as machines,
        bucket.serving(network.gateway) as store,
        serving(folder, machines=machines) as aws,
        CloudBox(folder, aws, store, python) as box,
    ):
        box.start_daemon()
        yield box, machines


def _packages(python: Path) -> Sequence[Path]:
    """Where that Python has its packages, by its *.pth files."""
    found = python.parent.parent.glob("lib/python3.*/site-packages/*.pth")
    return [Path(line) / "any" for path in found for line in path.read_text().splitlines()]


def submit(box: CloudBox, machines: Machines, text: str, name: str) -> CloudRun:
    """Begin a job on it."""
    return CloudRun(box, box.submit(text, name), Random(name), fleet=machines)
