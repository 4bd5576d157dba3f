"""Step back, once, from a checkpoint from which training fails repeatedly.

Its bytes are those that were saved, but the saved state may have been broken before.
"""

from __future__ import annotations

from spotd.domain.events import Severity
from spotd.domain.health import STEPPED_BACK
from spotd.domain.job import HeadSnapshot
from spotd.domain.node import Node
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.rules.replace_node import gang_of

EARLY_STEPS = 20  # a program that does more of them after its resume has taken it well


def resumed_in_vain(d: PlanBuilder, node: Node) -> HeadSnapshot | None:
    """Return the checkpoint from which this node's attempt resumed, if it has made only its first
    steps since, and saved nothing."""
    head, gang = d.job.head, gang_of(d, node)
    if head is None or not head.manifest or d.job.spec.checkpoint.engine == "none":
        return None
    claimed = any(mate.training.claimed_at_us for mate in gang)
    saved = f"/g{node.generation:08d}/" in head.manifest
    early = max(mate.training.last_step for mate in gang) <= head.step + EARLY_STEPS
    return head if claimed and early and not saved else None


def may_step_back(d: PlanBuilder, resumed: HeadSnapshot) -> bool:
    """Return whether a step back is allowed.

    Only from a checkpoint beyond the last one that was given up, so that it goes down and then ends
    like any crashing job.
    """
    return resumed.step > d.view.setbacks.suspect_step


def step_back(d: PlanBuilder, resumed: HeadSnapshot, why: str) -> None:
    """The next attempts resume from the one before."""
    step = resumed.step
    text = (
        f"{why} from the checkpoint of step {step}: the next machine resumes from the one before "
        f"it, if there is one. It is retained, as suspect-{step}"
    )
    d.event(
        STEPPED_BACK,
        text,
        severity=Severity.WARNING,
        alert=True,
        manifest=resumed.manifest,
        step=step,
    )
    d.add_reason(text)
