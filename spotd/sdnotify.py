"""What systemd is told: ready, alive, reloading, stopping (sd_notify(3): one datagram to
$NOTIFY_SOCKET)."""

from __future__ import annotations

import os
import socket
import time

import structlog

log = structlog.get_logger(__name__)


def notify(state: str) -> bool:
    """Send e.g. "READY=1"; False when nobody listens (not under systemd), or does not listen now.

    Never waits: the queue of such a socket is short, and who calls has better things to do.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(state.encode(), socket.MSG_DONTWAIT, address)
        except OSError as error:
            log.warning("systemd cannot be told", state=state, error=str(error))
            return False
    return True


def notify_reloading() -> None:
    """A reload has begun; READY=1 ends it. The moment tells systemd which one that is."""
    moment_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notify(f"RELOADING=1\nMONOTONIC_USEC={moment_us}")
