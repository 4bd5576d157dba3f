"""Addresses of machines in a resource group, for the daemon and for other machines, by their
network interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from providers.azure.clients import Clients
from providers.azure.listing import key_of

Row = Mapping[str, Any]


class Addresses:
    """`public` machines are reached at a public address, others at their private one.

    A private address belongs to an interface for its whole life, so for public machines it is read
    only when one is unknown.
    """

    def __init__(self, clients: Clients, group: str, *, public: bool) -> None:
        self._clients = clients
        self._group = group
        self._public = public
        self._private: dict[str, str] = {}

    def of(self, rows: Sequence[Row]) -> list[tuple[str, str]]:
        """Return (address for the daemon, private address) of each machine; "" for a missing
        one."""
        if not rows:
            return []
        if not self._public:
            self._private = self._read_interfaces()
            return [(host, host) for host in (host_of(row, self._private) for row in rows)]
        public = public_hosts(
            self._clients.network(
                lambda client: [
                    address.as_dict() for address in client.public_ip_addresses.list(self._group)
                ]
            )
        )
        hosts = [host_of(row, public) for row in rows]
        known = self._private
        if any(host and not host_of(row, known) for row, host in zip(rows, hosts, strict=True)):
            known = self._private = self._read_interfaces()
        return [(host, host_of(row, known)) for row, host in zip(rows, hosts, strict=True)]

    def _read_interfaces(self) -> dict[str, str]:
        return private_hosts(
            self._clients.network(
                lambda client: [
                    interface.as_dict() for interface in client.network_interfaces.list(self._group)
                ]
            )
        )


def public_hosts(rows: Iterable[Row]) -> dict[str, str]:
    """Return interface key -> address, from public IP addresses."""
    hosts = {}
    for row in rows:
        properties = row.get("properties") or {}
        ip_configuration = str((properties.get("ipConfiguration") or {}).get("id") or "").lower()
        if ip_configuration and properties.get("ipAddress"):
            hosts[ip_configuration.partition("/ipconfigurations/")[0]] = str(
                properties["ipAddress"]
            )
    return hosts


def private_hosts(rows: Iterable[Row]) -> dict[str, str]:
    """Return interface key -> address, from network interfaces."""
    hosts: dict[str, str] = {}
    for row in rows:
        for ip_configuration in (row.get("properties") or {}).get("ipConfigurations") or ():
            address = (ip_configuration.get("properties") or {}).get("privateIPAddress")
            if address:
                hosts.setdefault(key_of(row), str(address))
    return hosts


def host_of(row: Row, hosts: Mapping[str, str]) -> str:
    """Return the address of a machine by its interfaces; "" when it has none yet."""
    network = (row.get("properties") or {}).get("networkProfile") or {}
    keys = [
        str(interface.get("id") or "").lower()
        for interface in network.get("networkInterfaces") or ()
    ]
    return next((hosts[key] for key in keys if key in hosts), "")
