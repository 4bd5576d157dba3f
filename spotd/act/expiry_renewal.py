"""Renew the expiry of every machine that is needed; planner/core/expiry.py has the reasons."""

from __future__ import annotations

import structlog

from providers.base import Provider, ProviderError
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.domain.market import Timing
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.planner.core.expiry import expires_us, renewal_us, renewed_late
from spotd.store.interface import Store

log = structlog.get_logger(__name__)


def renew_expiries(
    store: Store, provider: Provider, clock: Clock, timing: Timing, paged: set[str]
) -> None:
    """Renew the expiries that are due in one cloud. Raises StoreError.

    A failure is retried at the next call and delays no other. `paged` remembers, from call to call,
    the nodes that were alerted.
    """
    nodes = [node for node in store.nodes.active() if node.offer.provider == provider.name]
    paged &= {node.id for node in nodes}
    for node in nodes:
        now_us = clock.now_us()
        until_us = renewal_us(node, timing, now_us)
        if not until_us:
            continue
        try:
            provider.renew(node.instance_id, until_us)
        except ProviderError as error:
            log.warning("not renewed", node=node.id, error=str(error))
            if renewed_late(node, timing, now_us) and node.id not in paged:
                store.events.add(node.job_id, _late(node, now_us, error), now_us)
                paged.add(node.id)
            continue
        store.nodes.record_renewed(node.id, until_us)
        paged.discard(node.id)


def _late(node: Node, now_us: int, error: ProviderError) -> Event:
    left_h = max(0.0, (expires_us(node) - now_us) / S / 3600)
    text = (
        f"the expiry of {node.instance_id} in {node.offer.provider}/{node.offer.zone} cannot be "
        f"renewed ({error}): spot-reaper ends it in {left_h:.1f} h"
    )
    return Event("not_renewed", text, node.id, Severity.ERROR, alert=True, key="not_renewed")
