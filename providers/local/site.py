"""Where machines stand, and what they are made of.

By default a machine is a process with loopback addresses of its own. With `--machine PROGRAM` and
`--network CIDR` it is what that program makes of it, at an address of that network. The program is
started once for each machine, as `PROGRAM CONTROL_FD`, with one JSON document on stdin: the
machine's `id`, `host`, `home` (an empty folder), `login`, `facts` and `boot_delay_s`. The machine
has SSH on port 22 of `host` and the metadata service at 169.254.169.254, obeys the control link
(link.py), and is the program with every process below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

SSH_PORT = 22


class SiteError(Exception):
    """No machine can stand there; the text says why."""


@dataclass(frozen=True)
class MachineSite:
    """A program that makes machines; the first address of `network` is its gateway's."""

    program: Path
    network: IPv4Network

    def host(self, number: int) -> str:
        """The address of the `number`th machine, from 1. Raises SiteError past the last one."""
        if number + 2 >= self.network.num_addresses:
            raise SiteError(f"{self.network} has no address left")
        return str(self.network[number + 1])


def site_from(program: Path | None, network: str) -> MachineSite | None:
    """From the command line; None is the default. Raises SiteError."""
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
