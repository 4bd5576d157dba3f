"""A checkpoint from which training fails again and again is stepped back from, once: its bytes are
those that were saved, and may yet be of a state that was broken before."""

from __future__ import annotations

from spotd.decide.draft import Draft
from spotd.decide.leaving import gang_of
from spotd.model import Node, Severity
from spotd.verdicts import STEPPED_BACK

EARLY_STEPS = 20  # a program that does more of them after its resume has taken it well


def resumed_in_vain(d: Draft, node: Node) -> str:
    """The manifest from which the attempt of this node had resumed, when it did no more than its
    first steps since and saved nothing; "" otherwise."""
    head, gang = d.job.head, [node, *gang_of(d, node)]
    if d.job.spec.checkpoint.engine == "none" or head is None or not head.manifest:
        return ""
    claimed = any(mate.claimed_at_us for mate in gang)
    saved = f"/g{node.generation:08d}/" in head.manifest
    early = max(mate.last_step for mate in gang) <= head.step + EARLY_STEPS
    return head.manifest if claimed and early and not saved else ""


def may_step_back(d: Draft, manifest: str) -> bool:
    """Only from what lies beyond the last one that was given up: from there on it goes down, and
    ends as a job does whose program crashes."""
    head = d.job.head
    if not manifest or head is None:
        return False
    return head.step > max(d.view.setbacks.suspect_step, 0)


def step_back(d: Draft, manifest: str, why: str) -> None:
    """The next attempts resume from the one before."""
    step = d.job.head.step if d.job.head else 0
    text = (
        f"{why} from the checkpoint of step {step}: the next machine resumes from the one before "
        f"it, if there is one. It is kept, as suspect-{step}"
    )
    d.event(STEPPED_BACK, text, severity=Severity.WARNING, alert=True, manifest=manifest, step=step)
    d.say(text)
