"""Connects moto's instances to the machines behind them, whose addresses they show."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from providers.aws.listing import qualified_name
from providers.local.documents import MachineFacts
from tests.clouds.fleet import Fleet
from tests.clouds.machines import Machines


class Ec2Fleet(Fleet):
    """`off` is called when somebody powers off a machine from inside."""

    def __init__(self, machines: Machines | None, off: Callable[[str], None]) -> None:
        super().__init__(machines)
        self._off = off

    def launch(self, region: str, instance: Any, user_data: str, reply: bytes) -> bytes:
        """Start a machine behind an instance of moto's; return `reply` with its address."""
        name, zone = instance.id, instance.availability_zone
        spot = instance.lifecycle == "spot"
        facts = MachineFacts(name, "aws", name, region, zone, instance.instance_type, spot)
        text = base64.b64decode(user_data).decode()
        resource_id, token = qualified_name(region, name), instance.client_token
        address = self.rent(facts, resource_id, token, text, off=lambda: self._off(name))
        card = instance.nics[0]
        for invented in filter(None, (card.private_ip_address, card.public_ip)):
            for dots in (".", "-"):  # as an address, and in a host name
                old, new = (text.replace(".", dots) for text in (invented, address))
                reply = reply.replace(old.encode(), new.encode())
        inner = f"ip-{address.replace('.', '-')}.ec2.internal"
        card.private_ip_address, card.private_dns_name = address, inner
        card.private_ip_addresses = [
            {"Primary": True, "PrivateIpAddress": address, "PrivateDnsName": inner}
        ]
        card.public_ip = address if card.public_ip else None
        return reply
