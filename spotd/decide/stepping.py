"""A checkpoint from which training fails again and again is stepped back from, once: its bytes are
those that were saved, and may yet be of a state that was broken before."""

from __future__ import annotations

from spotd.decide.draft import Draft
from spotd.decide.leaving import gang_of
from spotd.model import HeadSeen, Node, Severity
from spotd.verdicts import STEPPED_BACK

EARLY_STEPS = 20  # a program that does more of them after its resume has taken it well


def resumed_in_vain(d: Draft, node: Node) -> HeadSeen | None:
    """The checkpoint from which the attempt of this node had resumed, when it did no more than its
    first steps since, and saved nothing."""
    head, gang = d.job.head, gang_of(d, node)
    if head is None or not head.manifest or d.job.spec.checkpoint.engine == "none":
        return None
    claimed = any(mate.claimed_at_us for mate in gang)
    saved = f"/g{node.generation:08d}/" in head.manifest
    early = max(mate.last_step for mate in gang) <= head.step + EARLY_STEPS
    return head if claimed and early and not saved else None


def may_step_back(d: Draft, resumed: HeadSeen) -> bool:
    """Only from what lies beyond the last one that was given up: from there on it goes down, and
    ends as a job does whose program crashes."""
    return resumed.step > d.view.setbacks.suspect_step


def step_back(d: Draft, resumed: HeadSeen, why: str) -> None:
    """The next attempts resume from the one before."""
    step = resumed.step
    text = (
        f"{why} from the checkpoint of step {step}: the next machine resumes from the one before "
        f"it, if there is one. It is kept, as suspect-{step}"
    )
    d.event(
        STEPPED_BACK,
        text,
        severity=Severity.WARNING,
        alert=True,
        manifest=resumed.manifest,
        step=step,
    )
    d.say(text)
