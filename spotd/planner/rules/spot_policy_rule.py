"""Let the spot policy steer a job whose amount of work is known: when to request, wait, and move.

A move is not urgent: the machine trains until its replacement is ready, then saves and releases. If
the replacement is refused, or no longer pays off, the machine stays. The deadline has precedence
over cost: the policy's deadline slack makes sure that on-demand is requested while there is time to
repeat all unsaved work.
"""

from __future__ import annotations

from dataclasses import dataclass

from providers.base import CapacityType
from providers.dollars import format_microusd
from spotd.domain.job import Desired, Job, JobSpec
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.next_effect import may_write
from spotd.planner.core.plan_builder import PlanBuilder, place
from spotd.planner.core.remaining_work import left_s
from spotd.planner.core.safe_mode_gate import safe
from spotd.planner.offers.cooldowns import told_by
from spotd.planner.placement.build_situation import LOOK_S, JobSituation, situate
from spotd.planner.placement.cost_to_finish import CostToFinish, costs, worths
from spotd.planner.placement.no_discount import without_flat
from spotd.planner.placement.rank import RankedOffer, rank, steered
from spotd.planner.placement.scarce_offers import in_turn
from spotd.planner.rules.replace_node import gang_of, taking_away
from spotd.planner.spot_policy import Action, Choice, choose
from spotd.planner.spot_policy.deadline_slack import spare_looks

AGAIN_S = 300.0  # between looks at a job that runs, for spot that does better
_COMING = (NodeState.LAUNCHING, NodeState.BOOTING)


@dataclass(frozen=True)
class PolicyIntent:
    """The policy's decision; `ask` is the offer to request now, or None."""

    situated: JobSituation
    choice: Choice
    ask: RankedOffer | None

    @property
    def elsewhere(self) -> bool:
        """Return whether the policy chose another place, and that place is available."""
        running = self.situated.situation.running
        if self.ask is None or running is None:
            return False
        offer = self.ask.offer
        spot = offer.capacity_type is CapacityType.SPOT
        return (self.choice.pool, spot) != (running.pool, running.capacity is CapacityType.SPOT)


@dataclass(frozen=True)
class PolicyComparison:
    """The result of `compared`.

    `intent` is None for a job that is not steered. `assumed` says that the remaining work is
    unknown: costs are then for ASSUMED_S.
    """

    rows: list[RankedOffer]
    costs: list[CostToFinish]
    intent: PolicyIntent | None
    assumed: bool


def intend(
    d: PlanBuilder, market: Market, rows: list[RankedOffer], running: Node | None
) -> PolicyIntent | None:
    """Return the policy's decision; None if it cannot decide."""
    situated = situate(d.view, market, d.now_us, rows, running)
    if situated is None:
        return None
    choice = choose(situated.situation)
    match choice.action:
        case Action.SPOT:
            ask = situated.spot.get(choice.pool)
        case Action.ON_DEMAND:
            ask = situated.lasting.get(choice.pool)
        case Action.WAIT | Action.STAY:
            ask = None
    if choice.action is Action.WAIT and not (d.job.spec.limits.deadline_us and situated.hopeful):
        # There is no date to save money for, or nothing to wait for: what is permitted and to be
        # had is better than nothing.
        ask = min(situated.lasting.values(), key=_score, default=None)
    return PolicyIntent(situated, choice, ask)


def _score(row: RankedOffer) -> tuple[int, str]:
    return row.score_microusd_per_h, row.offer.key


def gang_now(d: PlanBuilder, *, coming: bool = True) -> Node | None:
    """Return a machine of the gang that trains or will: the chosen one, or the first one.

    `coming` says whether starting machines count. A machine that is being preempted, or that leaves
    for another reason than a move, does not.
    """
    chosen = [node for node in d.nodes if node.chosen and _stays(node)]
    if chosen:
        return max(chosen, key=lambda node: (node.generation, -node.rank))
    if not coming:
        return None
    return next((n for n in d.current if n.state in _COMING and not n.chosen and not n.rank), None)


def _stays(node: Node) -> bool:
    moves = node.state is NodeState.DRAINING and node.departure.leave_reason is LeaveReason.MOVED
    alive = node.state in (NodeState.BOOTING, NodeState.RUNNING) or moves
    return alive and taking_away(node) is None


def steer(d: PlanBuilder) -> None:
    """Move a gang, cancel a move, or give up spot that comes too late for the deadline."""
    spec = d.job.spec
    running = gang_now(d) if steered(spec) else None
    if running is None or d.ended or d.job.desired is not Desired.RUN or d.job.end.stop_text:
        return
    if d.market.launch.blocked or safe(d.market, d.now_us):
        return
    barred = {node.offer.key for node in d.nodes if node.active and taking_away(node)}
    market = told_by(d.nodes, d.market)  # as its replacement is asked for in this pass
    rows = rank(spec, market, d.now_us, barred, job_id=d.job.id)
    rows = in_turn(d.job, market, d.now_us, without_flat(spec, rows))
    intent = intend(d, market, rows, running)
    if intent is None:
        return
    if running.state is NodeState.RUNNING:
        _move(d, running, intent)
    elif running.state is NodeState.DRAINING:
        _stay(d, running, intent)
    elif intent.choice.guarded and intent.elsewhere:
        for node in d.nodes:
            if node.state in _COMING and node.offer.capacity_type is CapacityType.SPOT:
                d.terminate(node, LeaveReason.MOVED, "the deadline leaves no time for spot")
    _wake(d, running, intent)


def _move(d: PlanBuilder, running: Node, intent: PolicyIntent) -> None:
    spec, guarded = d.job.spec, intent.choice.guarded
    if not may_write(running) or not running.training.first_step_at_us:
        return
    if not guarded and (spec.checkpoint.engine == "none" or d.job.head is None):
        return  # it does not save on request, or has not shown yet that it can
    if _pauses(running, intent):
        _pause(d, running, intent)
    if intent.ask is None or not intent.elsewhere:
        return
    why = "its deadline leaves no time for spot" if guarded else intent.choice.why
    there = intent.ask.offer
    price = f"{format_microusd(there.price_microusd_per_h)}/h"
    text = f"{why}: {there.key} at {price}"
    for node in gang_of(d, running):
        d.drain(node, LeaveReason.MOVED, text)
    words = f"{place(running)} moves ({text}); it keeps training until its replacement is ready"
    d.event("moves", words, running)


def _pauses(running: Node, intent: PolicyIntent) -> bool:
    """Return whether to terminate on-demand because waiting for spot costs less."""
    waits = intent.choice.action is Action.WAIT and intent.ask is None
    return waits and running.offer.capacity_type is not CapacityType.SPOT


def _pause(d: PlanBuilder, running: Node, intent: PolicyIntent) -> None:
    """Save, release and end; nothing is requested until the policy says so."""
    text = f"it waits for spot: {intent.choice.why}"
    for node in gang_of(d, running):
        d.drain(node, LeaveReason.CANCELLED, text)
    d.event("pauses", f"{place(running)} is terminated when it has saved: {text}", running)


def _stay(d: PlanBuilder, running: Node, intent: PolicyIntent) -> None:
    """Cancel a move whose replacement was refused or no longer pays off, before a release."""
    gang = gang_of(d, running)
    released = any(
        n.agent.told_release_at_us or n.training.released_at_us or n.training.exit_code is not None
        for n in gang
    )
    newer = [n for n in d.nodes if n.generation > running.generation]
    coming = any((n.chosen and n.state is not NodeState.GONE) or n.state in _COMING for n in newer)
    if intent.ask is not None or released or coming:
        return
    for node in gang:
        if node.state is NodeState.DRAINING:
            d.train_on(node)
    if _pauses(running, intent):
        _pause(d, running, intent)
        return
    d.event("stays", f"{place(running)} stays: nothing better is available now", running)


def _wake(d: PlanBuilder, running: Node, intent: PolicyIntent) -> None:
    """Set when to check again: after a while, or when the deadline may require a change."""
    if running.offer.capacity_type is not CapacityType.SPOT:
        if any(
            CapacityType.SPOT in want.capacity_types for want in d.job.spec.resources.alternatives
        ):
            d.wake_at(d.now_us + int(AGAIN_S * S))
        return
    spare = spare_looks(intent.situated.situation)
    if spare != float("inf"):
        d.wake_at(d.now_us + int(min(max(spare - 2, 1) * LOOK_S, AGAIN_S) * S))


def compared(view: View, market: Market, now_us: int) -> PolicyComparison:
    """Return the offers as the job would be placed now, their costs, and the policy's decision.

    For `spotctl plan` and `spotctl why`.
    """
    d = PlanBuilder(view, market, now_us)
    spec, running = view.job.spec, gang_now(d)
    rows = rank(spec, market, now_us, job_id=view.job.id)
    if worth := worths(view, market, now_us, rows):
        rows = rank(spec, market, now_us, job_id=view.job.id, worth=worth)
    rows = in_turn(view.job, market, now_us, without_flat(spec, rows))
    intent = intend(d, market, rows, running) if steered(spec) else None
    estimates = costs(view, market, now_us, rows, running)
    return PolicyComparison(rows, estimates, intent, left_s(view) is None)


def of_spec(spec: JobSpec, now_us: int) -> View:
    """Return a view of a job that is not submitted yet, as on its first day."""
    return View(Job("", spec.name, spec, Desired.RUN, 0, now_us), (), (), loaded_at_us=now_us)
