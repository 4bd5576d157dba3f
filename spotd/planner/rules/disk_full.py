"""Replace a machine whose disk stays full by one with a fresh disk.

It trains until the replacement is ready, so nothing is lost. A program that does not save with
spotd's engine could lose everything, so it is not moved, and its user is alerted. A job whose own
data fills every disk is not moved again: a machine is retained if its disk was full shortly after
the job moved there.
"""

from __future__ import annotations

from spotd.domain.events import Severity
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.planner.core.next_effect import may_write
from spotd.planner.core.plan_builder import PlanBuilder, place
from spotd.planner.rules.slow_training import elsewhere, move, moved_lately

LOOK_AGAIN_S = 60.0  # for another place, where there was none


def move_when_full(d: PlanBuilder) -> None:
    """Drain the gang of a machine whose agent reported a full disk to its user."""
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    full = next((node for node in running if node.storage.disk_full_at_us), None)
    if d.ended or full is None or not all(may_write(node) for node in running):
        return
    where = f"the disk of {place(full)} stays full"
    if d.job.spec.checkpoint.engine == "none":
        d.add_reason(f"{where}, and its program does not save on request: it is not moved")
    elif moved_lately(d, full.storage.disk_full_at_us):
        d.add_reason(f"{where}, soon after the job moved there: it is not moved again")
    elif not elsewhere(d):
        d.add_reason(f"{where}, and no other place is free")
        d.wake_at(d.now_us + int(LOOK_AGAIN_S * S))
    else:
        for node in running:
            move(d, node, where)
        message = f"{where}: it keeps training until its replacement is ready"
        d.event("moved", message, full, severity=Severity.WARNING, alert=True)
