"""A control box that rents from stand-ins of AWS, Google Cloud and Azure, each through its own SDK;
the machines of all three are network namespaces that come up by the user data which their cloud
got."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from providers.aws.listing import split_name
from spotd.demo import s3
from spotd.demo.box import Box, BoxError
from spotd.demo.bucket import Bucket
from tests.clouds.aws import serving as aws
from tests.clouds.azure import serving as azure
from tests.clouds.fleet import Fleet
from tests.clouds.gcp import serving as gcp
from tests.clouds.jump import behind_a_jump_host
from tests.clouds.machines import Machines, machines_on
from tests.fixtures import netns
from tests.fixtures.jump import Server

# A real deployment looks less often; the demo is to be short.
SETTINGS = """
[limits]
max_nodes = 8
max_usd_per_hour = 800.0
[timing]
survey_every_s = 2
resurvey_s = 2
"""
H100 = {"aws": "p5.48xlarge", "gcp": "a3-highgpu-8g", "azure": "Standard_ND96isr_H100_v5"}
PROJECT = "lab"
# Of each cloud how its machines are reached: "public", or behind a jump host ("jump").
NETWORKS = {"aws": "public", "gcp": "public", "azure": "jump"}


@dataclass(frozen=True)
class Site:
    """One of the clouds: its section of the configuration and what that says of its network, what
    the daemon's environment needs for it, its books, and how it takes a machine (by the id that the
    adapter gives it) back."""

    name: str
    section: Mapping[str, Any]
    network: str
    environ: Mapping[str, str]
    fleet: Fleet
    preempt: Callable[[str], None]

    def toml(self) -> str:
        """Its section."""
        own = {"kind": self.name, "instance_types": [H100[self.name]], **self.section}
        lines = [f"{key} = {_toml(value)}" for key, value in own.items()]
        return "\n".join(["", f"[providers.{self.name}]", *lines, self.network])


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"'


class CloudBox(Box):
    """The daemon alone: there is no local cloud. `meter` is what the clouds' own books say."""

    def __init__(self, folder: Path, sites: Sequence[Site], store: Bucket, python: Path) -> None:
        super().__init__(folder, settings=SETTINGS, python=python, bucket=store)
        self.sites = {site.name: site for site in sites}

    def provider_lines(self) -> list[str]:
        return [site.toml() for site in self.sites.values()]

    def environ(self) -> dict[str, str]:
        found = super().environ() | {"PYTHONPATH": str(netns.CHECKOUT)}
        for site in self.sites.values():
            found |= site.environ
        return found

    def preempt(self, instance_id: str, **how: Any) -> None:
        """By the cloud that the machine is of."""
        if how:
            raise BoxError(f"these clouds take machines in their own way: {how}")
        for site in self.sites.values():
            if any(e.instance_id == instance_id for e in site.fleet.books.values()):
                site.preempt(instance_id)
                return
        raise BoxError(f"no cloud has a machine {instance_id}")

    def meter(self) -> list[dict[str, Any]]:
        return [e.row() for site in self.sites.values() for e in site.fleet.books.values()]

    def takings(self) -> list[dict[str, Any]]:
        """What was taken back, by the clouds that did."""
        return [t.row() for site in self.sites.values() for t in site.fleet.takings]


@dataclass(frozen=True)
class Ground:
    """Where the machines of a cloud are, and what its section says of that; `jump` is the server
    that they are behind, if they are."""

    machines: Machines
    section: str = 'network = "public"\n'
    jump: Server | None = None


@dataclass(frozen=True)
class Clouds:
    """All three, running, and the machines behind them, by the clouds' names."""

    aws: aws.StandIn
    gcp: gcp.StandIn
    azure: azure.StandIn
    grounds: Mapping[str, Ground]
    store: Bucket

    def sites(self) -> list[Site]:
        """With machines of 8 H100s on sale in one region each."""
        sections = {name: ground.section for name, ground in self.grounds.items()}
        ec2, gce, arm = self.aws.ec2, self.gcp.gce, self.azure.arm
        return [
            Site(
                "aws",
                {"regions": ["us-west-2"], "profile": aws.PROFILE},
                sections["aws"],
                self.aws.environ,
                ec2.fleet,
                lambda ident: ec2.interrupt(split_name(ident)[1]),
            ),
            Site(
                "gcp",
                {"project": PROJECT, "regions": ["us-central1"], **self.gcp.settings},
                sections["gcp"],
                {},
                gce.fleet,
                lambda ident: gce.preempt(PROJECT, ident),
            ),
            Site(
                "azure",
                {"regions": ["eastus"], **self.azure.settings},
                sections["azure"],
                self.azure.environ,
                arm.fleet,
                arm.preempt,
            ),
        ]

    def left(self) -> dict[str, list[str]]:
        """Machines that there still are, by the clouds' books and by the processes that run."""
        found = {site.name: site.fleet.running() for site in self.sites()}
        running = {name for one in self.grounds.values() for name in one.machines.running()}
        return {**found, "namespaces": sorted(running)}

    def jumps(self) -> dict[str, int]:
        """Clouds whose machines are behind a jump host -> how often that let somebody in."""
        found = {name: ground.jump for name, ground in self.grounds.items()}
        return {name: server.log_ins() for name, server in found.items() if server is not None}


@contextmanager
def running_clouds(
    folder: Path, python: Path, networks: Mapping[str, str] = NETWORKS
) -> Iterator[Clouds]:
    """All three for the length of the block; `python` is what jobs run with on the machines."""
    folder.mkdir(parents=True, exist_ok=True)
    readable = [python, python.resolve(), netns.CHECKOUT / "any", *_packages(python)]
    with ExitStack() as stack:
        enter = stack.enter_context
        network = enter(netns.network())
        store = enter(s3.serving(network.gateway))
        public = Ground(enter(machines_on(network, folder / "machines", readable=readable)))
        grounds = dict.fromkeys(networks, public)
        for name in (name for name, kind in networks.items() if kind == "jump"):
            apart = folder / f"{name}-apart"
            apart.mkdir()
            private = enter(behind_a_jump_host(network, apart, readable=readable))
            private.let_reach(store)
            section = private.settings(apart)
            grounds[name] = Ground(private.machines, section, private.jump.server)
        kind, first = networks["aws"], grounds["aws"].machines
        yield Clouds(
            enter(aws.serving(folder, machines=first, network=kind)),
            enter(gcp.serving(folder, machines=grounds["gcp"].machines)),
            enter(azure.serving(folder, machines=grounds["azure"].machines)),
            grounds,
            store,
        )


@contextmanager
def running_box(
    folder: Path, clouds: Clouds, python: Path = Path(sys.executable)
) -> Iterator[CloudBox]:
    """A daemon that rents from them."""
    box = CloudBox(folder, clouds.sites(), clouds.store, python)
    with box:
        box.start_daemon()
        yield box


def _packages(python: Path) -> Sequence[Path]:
    """Where that Python has packages of others, by its *.pth files; lines of code are none."""
    found = python.parent.parent.glob("lib/python3.*/site-packages/*.pth")
    lines = (line for path in found for line in path.read_text().splitlines())
    return [Path(line) / "any" for line in lines if line.startswith("/")]
