"""Where the machines of a resource group are reached, by us and by each other: by their cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from providers.azure.clients import Clients
from providers.azure.listing import key_of

Row = Mapping[str, Any]


class Addresses:
    """`public` machines are reached by us at a public address, others at the one of their network,
    which each has. That one is a card's for as long as it lives: of public machines it is asked for
    when one is not known, and no more."""

    def __init__(self, clients: Clients, group: str, *, public: bool) -> None:
        self._clients = clients
        self._group = group
        self._public = public
        self._private: dict[str, str] = {}

    def of(self, rows: Sequence[Row]) -> list[tuple[str, str]]:
        """(ours, each other's) of each machine; "" for what it has not yet."""
        if not rows:
            return []
        if not self._public:
            self._private = self._cards()
            return [(host, host) for host in (host_of(row, self._private) for row in rows)]
        public = public_hosts(
            self._clients.network(
                lambda c: [one.as_dict() for one in c.public_ip_addresses.list(self._group)]
            )
        )
        hosts = [host_of(row, public) for row in rows]
        known = self._private
        if any(host and not host_of(row, known) for row, host in zip(rows, hosts, strict=True)):
            known = self._private = self._cards()
        return [(host, host_of(row, known)) for row, host in zip(rows, hosts, strict=True)]

    def _cards(self) -> dict[str, str]:
        return private_hosts(
            self._clients.network(
                lambda c: [one.as_dict() for one in c.network_interfaces.list(self._group)]
            )
        )


def public_hosts(rows: Iterable[Row]) -> dict[str, str]:
    """Key of a card -> its address, of public IP addresses."""
    found = {}
    for row in rows:
        properties = row.get("properties") or {}
        where = str((properties.get("ipConfiguration") or {}).get("id") or "").lower()
        if where and properties.get("ipAddress"):
            found[where.partition("/ipconfigurations/")[0]] = str(properties["ipAddress"])
    return found


def private_hosts(rows: Iterable[Row]) -> dict[str, str]:
    """Key of a card -> its address, of network interfaces."""
    found: dict[str, str] = {}
    for row in rows:
        for ip in (row.get("properties") or {}).get("ipConfigurations") or ():
            address = (ip.get("properties") or {}).get("privateIPAddress")
            if address:
                found.setdefault(key_of(row), str(address))
    return found


def host_of(row: Row, hosts: Mapping[str, str]) -> str:
    """The address of a machine, by its cards; "" when it has none yet."""
    network = (row.get("properties") or {}).get("networkProfile") or {}
    keys = [str(card.get("id") or "").lower() for card in network.get("networkInterfaces") or ()]
    return next((hosts[key] for key in keys if key in hosts), "")
