"""What a daemon in safe mode does not do: make machines, and begin anything on one.

To observe, to save and to end is what it may do. An agent is started again where it ran before:
what trains there is paid for, and would be given up as silent.
"""

from __future__ import annotations

from spotd.model import EffectKind, Market, Node

SAFE_LOOK_US = 15_000_000  # another daemon may be at work: it has its turn with a job that waits


def safe(market: Market, now_us: int) -> bool:
    """Whether this daemon is in safe mode."""
    return now_us < market.safe_until_us


def withheld(node: Node, kind: EffectKind) -> bool:
    """Whether a call has to wait until safe mode is over. One that has its start document is only
    told by another that it may go on: it is paid for."""
    begins = kind in (EffectKind.BOOT, EffectKind.START) and not node.started_at_us
    return begins or kind is EffectKind.LAUNCH
