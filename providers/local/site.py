"""The option to run machines by an external program, each at its own network address.

By default a machine is a process of ours with its own loopback address. With `--machine PROGRAM`
and `--network CIDR` each machine is run as `PROGRAM CONTROL_FD`, with one JSON document on stdin:
`id`, `host` (an address in the network), `home` (an empty folder), `login`, `facts` and
`boot_delay_s`. The program must serve SSH on port 22 of `host` and the metadata service at
169.254.169.254, and follow the orders on the control link (link.py). The machine consists of the
program and its descendants.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

SSH_PORT = 22


class SiteError(Exception):
    """The options are invalid or the network is full; the message says why."""


@dataclass(frozen=True)
class MachineSite:
    """A program that runs machines. The first address of `network` is the gateway."""

    program: Path
    network: IPv4Network

    def host(self, number: int) -> str:
        """Address of the `number`th machine, from 1. Raises SiteError if the network is full."""
        if number + 2 >= self.network.num_addresses:
            raise SiteError(f"{self.network} has no address left")
        return str(self.network[number + 1])


def parse_site(program: Path | None, network: str) -> MachineSite | None:
    """Parse the command-line options; None if neither is set. Raises SiteError."""
    if program is None and not network:
        return None
    if program is None or not network:
        raise SiteError("give both --machine and --network, or neither")
    if not program.is_file():
        raise SiteError(f"--machine {program}: there is no such program")
    try:
        return MachineSite(program.absolute(), IPv4Network(network))
    except ValueError as error:
        raise SiteError(f"--network {network}: {error}") from None
