"""Notify systemd that the daemon is ready, alive, reloading or stopping.

See sd_notify(3): one datagram to $NOTIFY_SOCKET.
"""

from __future__ import annotations

import os
import socket
import time

import structlog

log = structlog.get_logger(__name__)


def notify(state: str) -> bool:
    """Send a state such as "READY=1". Return False if systemd does not receive it.

    Never blocks: the socket's queue is short, and the caller must not wait.
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
            log.warning("systemd cannot be notified", state=state, error=str(error))
            return False
    return True


def notify_reloading() -> None:
    """Announce a reload, with the time that identifies it to systemd; READY=1 ends it."""
    moment_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notify(f"RELOADING=1\nMONOTONIC_USEC={moment_us}")
