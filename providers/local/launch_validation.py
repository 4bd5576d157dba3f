"""Validate a launch request and prepare its machine."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import time

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from providers.base import CapacityType, LaunchRequest
from providers.dollars import format_microusd
from providers.local.api_errors import Refusal
from providers.local.blocking_http import bind
from providers.local.documents import MachineFacts
from providers.local.ledger import Launch
from providers.local.market import Market
from providers.local.process_pool import SpawnRequest
from providers.local.scenario import Zone
from providers.local.site import SSH_PORT, MachineSite

DEPLOYMENT_TAG = "spotd-deployment"


def request_digest(request: LaunchRequest) -> str:
    """SHA-256 of the request, to detect a token that is reused for another request."""
    row = {
        **vars(request),
        "tags": dict(request.tags),
        "capacity_type": request.capacity_type.value,
    }
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def validate(market: Market, personality: str, request: LaunchRequest) -> Zone:
    """Check everything except capacity; return the zone. Raises Refusal."""
    zone = market.zone(personality, request.region, request.zone)
    machine_type = market.machine_type(personality, request.instance_type)
    if zone is None:
        raise Refusal("rejected", f"there is no zone {request.region}/{request.zone}")
    if machine_type is None:
        raise Refusal("rejected", f"there is no machine type {request.instance_type!r}")
    for name in ("token", "name", "ssh_user"):
        if not getattr(request, name):
            raise Refusal("rejected", f"{name} is empty")
    if not request.tags.get(DEPLOYMENT_TAG):
        raise Refusal("rejected", f"the tag {DEPLOYMENT_TAG} is missing")
    _check_keys(request)
    price = market.price_microusd_per_h(zone, machine_type, request.capacity_type)
    if 0 < request.max_price_microusd_per_h < price:
        raise Refusal("price", f"the price is {format_microusd(price)}/h, above the cap")
    return zone


def _check_keys(request: LaunchRequest) -> None:
    try:
        load_ssh_public_key(request.ssh_public_key.encode())
        host = load_ssh_private_key(request.host_private_key.encode(), None).public_key()
        public = host.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Refusal("rejected", f"not a usable SSH key: {error}") from None
    if public.split()[:2] != request.host_public_key.encode().split()[:2]:
        raise Refusal("rejected", "host_public_key is not the public half of host_private_key")


def prepare(
    personality: str,
    request: LaunchRequest,
    zone: Zone,
    number: int,
    first_call_delay_s: float,
    site: MachineSite | None = None,
) -> tuple[Launch, SpawnRequest]:
    """Prepare the `number`th machine of this server: its ledger entry and what starts it.

    Each machine has its own address, so that the machines of a gang can use the same ports. Raises
    SiteError, OSError.
    """
    ident = f"i-{secrets.token_hex(6)}"
    host, ssh_port, sockets = _allocate_address(site, number, listening=not zone.boot_delay_s)
    launch = Launch(
        instance_id=ident,
        token=request.token,
        digest=request_digest(request),
        personality=personality,
        region=zone.region,
        zone=zone.name,
        instance_type=request.instance_type,
        capacity_type=request.capacity_type,
        name=request.name,
        tags=dict(request.tags),
        ssh_user=request.ssh_user,
        host_public_key=request.host_public_key,
        host=host,
        ssh_port=ssh_port,
        launched_at_us=time.time_ns() // 1000,
    )
    facts = MachineFacts(
        instance_id=ident,
        personality=personality,
        name=request.name,
        region=zone.region,
        zone=zone.name,
        instance_type=request.instance_type,
        spot=request.capacity_type is CapacityType.SPOT,
        first_call_delay_s=first_call_delay_s,
    )
    spawn_request = SpawnRequest(
        facts=facts,
        ssh_user=request.ssh_user,
        ssh_public_key=request.ssh_public_key,
        host_private_key=request.host_private_key,
        boot_delay_s=zone.boot_delay_s,
        host=host,
        sockets=sockets,
    )
    return launch, spawn_request


def _allocate_address(
    site: MachineSite | None, number: int, *, listening: bool
) -> tuple[str, int, tuple[socket.socket, ...]]:
    """Return address, SSH port and bound sockets.

    With `listening` early connections wait in the backlog; otherwise they are refused until the
    machine has booted and listens itself.
    """
    if site is not None:
        return site.host(number), SSH_PORT, ()
    host = f"127.{64 + os.getpid() % 128}.{number // 250 % 250}.{number % 250 + 1}"
    sockets = (bind(host), bind(host))
    if listening:
        for bound in sockets:
            bound.listen(128)
    return host, sockets[0].getsockname()[1], sockets
