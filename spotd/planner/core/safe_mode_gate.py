"""The limits of a daemon in safe mode: it launches no machine and starts nothing on one.

It may observe, save and terminate. An agent may be started again where it ran before: the training
there is paid for, and would be given up as silent.
"""

from __future__ import annotations

from spotd.domain.market import Market
from spotd.domain.node import EffectKind, Node

SAFE_LOOK_US = 15_000_000  # another daemon may be at work: it has its turn with a job that waits


def safe(market: Market, now_us: int) -> bool:
    """Return whether this daemon is in safe mode."""
    return now_us < market.launch.safe_until_us


def withheld(node: Node, kind: EffectKind) -> bool:
    """Return whether a call has to wait until safe mode ends.

    A node that has its start document may still get the order to continue: it is paid for.
    """
    begins = kind in (EffectKind.BOOT, EffectKind.START) and not node.startup.started_at_us
    return begins or kind is EffectKind.LAUNCH
