"""A machine whose disk stays full is left for another one, which has a fresh disk.

It trains on until that is ready, so that nothing is lost by it; a program that does not save with
our engine could lose all that it has, and its user alone can help. So it is with a job whose own
data fills each disk: a machine that it was moved to not long before its disk was full is kept.
"""

from __future__ import annotations

from spotd.decide.draft import Draft, place
from spotd.decide.needs import may_write
from spotd.decide.saving import elsewhere, move, moved_lately
from spotd.model import S, Severity
from spotd.states import NodeState

LOOK_AGAIN_S = 60.0  # for another place, where there was none


def move_when_full(d: Draft) -> None:
    """Its user knows of the disk since its agent told; the gang of that machine drains."""
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    full = next((node for node in running if node.disk_full_at_us), None)
    if d.ended or full is None or not all(may_write(node) for node in running):
        return
    where = f"the disk of {place(full)} stays full"
    if d.job.spec.checkpoint.engine == "none":
        d.say(f"{where}, and its program does not save when it is told to: it is not moved")
    elif moved_lately(d, full.disk_full_at_us):
        d.say(f"{where}, soon after it was moved to: it is not moved again")
    elif not elsewhere(d):
        d.say(f"{where}, and no other place is free")
        d.wake(d.now_us + int(LOOK_AGAIN_S * S))
    else:
        for node in running:
            move(d, node, where)
        told = f"{where}: it trains on until its replacement is ready"
        d.event("moved", told, full, severity=Severity.WARNING, alert=True)
