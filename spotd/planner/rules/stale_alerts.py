"""Alert on conditions that last too long: a job without a machine, a terminated machine that
stays, a missing checkpoint.

Each alert is sent when it is overdue, and repeated for as long as it costs money or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from providers.dollars import format_usd
from spotd.domain.events import Severity
from spotd.domain.node import Node
from spotd.domain.phase import keeps
from spotd.domain.states import NodeState
from spotd.domain.units import S, format_seconds
from spotd.planner.core.next_effect import hearing_since_us, suspect
from spotd.planner.core.plan_builder import LEAVING, PlanBuilder, place
from spotd.planner.core.shard_stores import longest_pause_s
from spotd.planner.offers.cooldowns import NOT_LENT, OWN_IMAGE
from spotd.planner.offers.price_sanity import DOUBTED
from spotd.planner.placement.rank import DISABLED, RESIDENCE, TOO_DEAR, TURN, RankedOffer

WAITS_AGAIN_S = 6 * 3600.0
STAYS_S = 900.0  # ended, and still listed, before its user is alerted: it costs money
STAYS_AGAIN_S = 3600.0
CADENCES = 2.0  # without a checkpoint before the user of a training job is alerted
UNSAVED_S = 60.0  # at least: a save and its word take a while, however short the cadence
UNSAVED_AGAIN_S = 3600.0  # where each one is late: its steps, or its saves, take that long

_ADVICE = {
    DISABLED: "correct its credentials or its jump host (`spotctl doctor`)",
    TOO_DEAR: "raise max_hourly_cost",
    RESIDENCE: "allow other places (spotd.residency, not_operated_from), or regions that exist",
    "CapacityError": "allow more zones, regions or kinds of machines (resources.any_of), or "
    "on-demand ones (use_spot: false)",
    "QuotaError": "ask that cloud for more quota there, or allow other regions",
    "NoQuotaError": "ask that cloud for a quota (`spotctl doctor` shows how), or allow other "
    "regions",
    "UnpreparedError": "prepare the region (`spotctl events` shows what it lacks)",
    "PriceError": "raise max_hourly_cost",
    OWN_IMAGE: "name an image that spotd can use in the region (image_id), or none",
    NOT_LENT: "correct the leasing of credentials for its store (see `spotctl doctor`)",
    DOUBTED: "wait until its cloud reports a plausible price, or allow other places",
    TURN: "raise its priority (spotd.priority), or allow more places (resources.any_of)",
    "BootTimeout": "see `spotctl events` for why machines do not boot",
}
_ADVICE |= dict.fromkeys(("Preempted", "Lost"), _ADVICE["CapacityError"])
_NO_OFFER = "request less in its resources, or configure another cloud"
_OTHER = "see `spotctl plan`"


def served(d: PlanBuilder) -> bool:
    """Return whether the job has a machine, which needs no alert."""
    return any(node.instance_id and node.state not in LEAVING for node in d.nodes)


def end_wait(d: PlanBuilder) -> None:
    """End the wait and its alert."""
    d.set_job(waiting_since_us=0, waiting_told_us=0)


def wait(d: PlanBuilder, obstacle: str, advice: Callable[[], str]) -> None:
    """Wait because nothing is available now; after a long time alert with advice."""
    if served(d):
        return
    since_us, told_us = d.job.queue.waiting_since_us or d.now_us, d.job.alerts.waiting_told_us
    due_us = (
        told_us + int(WAITS_AGAIN_S * S) if told_us else since_us + int(d.market.timing.waits_s * S)
    )
    if d.now_us >= due_us:
        waited_s = (d.now_us - since_us) / S
        waited = format_seconds(waited_s)
        text = f"{d.job.name} has waited {waited} for a machine: {obstacle}; try: {advice()}"
        d.event("waits", text, severity=Severity.WARNING, alert=True, seconds=waited_s)
        told_us, due_us = d.now_us, d.now_us + int(WAITS_AGAIN_S * S)
    d.set_job(waiting_since_us=since_us, waiting_told_us=told_us)
    d.wake_at(due_us)


def advise(ranked: Iterable[RankedOffer]) -> str:
    """Return one line of advice against the reasons that exclude these offers."""
    codes = sorted({row.code for row in ranked})
    advice = dict.fromkeys(_ADVICE.get(code, _OTHER) for code in codes)
    return "; or ".join(advice) or _NO_OFFER


def tell_staying(d: PlanBuilder, node: Node) -> None:
    """Alert on a machine that stays although it was terminated.

    Call it right before the next terminate is armed: if the last one was armed before the alert was
    due, it was not sent yet.
    """
    since_us = node.departure.terminating_at_us or node.departure.left_at_us
    if not since_us or _alarms(since_us, d.now_us) <= _alarms(
        since_us, node.call.effect_armed_at_us
    ):
        return
    stays_s = (d.now_us - since_us) / S
    ago = f"{format_seconds(stays_s)} ago"
    usd_per_h = node.offer.price_microusd_per_h / 1e6
    error = f" ({node.call.effect_error})" if node.call.effect_error else ""
    bill = f"it counts as {format_usd(usd_per_h)}/h until that is over{error}"
    if node.instance_id:
        text = (
            f"{place(node)} should have ended {ago}, but {node.offer.provider} still lists "
            f"{node.instance_id}: {bill}; end it in that cloud's own console"
        )
    else:
        text = (
            f"{place(node)} was given up {ago}, and it is not known whether "
            f"{node.offer.provider} created a machine for {node.token}: {bill}; look for it in "
            "that cloud's own console"
        )
    d.event("stays", text, node, severity=Severity.ERROR, alert=True, seconds=stays_s)


def tell_unsaved(d: PlanBuilder) -> None:
    """Alert once per missing checkpoint: the store is unavailable, or a disk is full.

    Until then the work that a sudden death would lose grows unnoticed.
    """
    node, told_us = _trains(d), d.job.alerts.unsaved_told_us
    if node is None:
        return
    head, every_s = d.job.head, longest_pause_s(node.offer, d.job.spec, d.market)
    saved_us = node.training.first_step_at_us
    if head is not None and head.generation == node.generation:
        saved_us = max(saved_us, head.seen_at_us)
    if told_us > saved_us:
        return
    # While nobody listened it may have saved: what it says of that comes first.
    patience_us = int(max(CADENCES * every_s, UNSAVED_S) * S)
    due_us = max(saved_us, hearing_since_us(node, d.market)) + patience_us
    if told_us:
        due_us = max(due_us, told_us + int(UNSAVED_AGAIN_S * S))
    if d.now_us < due_us:
        d.wake_at(due_us)
        return
    old_s = (d.now_us - saved_us) / S
    step = head.step if head is not None else 0
    text = (
        f"{d.job.name} has saved nothing for {format_seconds(old_s)}, but should save every "
        f"{format_seconds(every_s)}: if {place(node)} ends now, the job goes back to step {step}"
    )
    d.set_job(unsaved_told_us=d.now_us)
    d.event("unsaved", text, node, severity=Severity.ERROR, alert=True, seconds=old_s, step=step)


def _trains(d: PlanBuilder) -> Node | None:
    """Return the machine that trains and would report a checkpoint."""
    if d.ended or d.job.end.stop_text or not keeps(d.job.spec.checkpoint):
        return None
    for node in d.current:
        trains = (
            node.state is NodeState.RUNNING and node.training.first_step_at_us and not node.rank
        )
        over = node.training.exit_code is not None or node.training.released_at_us
        if trains and not over and not suspect(node, d.market, d.now_us):
            return node
    return None


def _alarms(since_us: int, at_us: int) -> int:
    """Return the number of alerts that were due by then."""
    over_us = at_us - since_us - int(STAYS_S * S)
    return 0 if over_us < 0 else 1 + over_us // int(STAYS_AGAIN_S * S)
