"""A job that says how much there is to do is steered by the policy (decide/policy): when it asks
for a machine and where, when it waits for spot, and when it moves.

A move is a drain for which nobody hurries: the machine trains on until its replacement is ready,
then saves and releases. Where the replacement is refused, or no longer pays, it simply stays. What
the deadline leaves no choice about is done whatever it costs: the guard of the policy sees to it
that a machine on demand is asked for while there is time to do all again that is not saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from providers.base import CapacityType
from spotd.decide.cooldowns import told_by
from spotd.decide.draft import Draft, place
from spotd.decide.flat import without_flat
from spotd.decide.leaving import gang_of, taking_away
from spotd.decide.needs import may_write
from spotd.decide.placement import Ranked, rank, steered
from spotd.decide.policy import Action, Choice, choose
from spotd.decide.policy.guard import spare_looks
from spotd.decide.remaining import left_s
from spotd.decide.safety import safe
from spotd.decide.scarcity import in_turn
from spotd.decide.situating import LOOK_S, Situated, situate
from spotd.decide.worth import Cost, costs, worths
from spotd.model import Desired, Job, JobSpec, LeaveReason, Market, Node, S, View
from spotd.states import NodeState

AGAIN_S = 300.0  # between looks at a job that runs, for spot that does better
_COMING = (NodeState.LAUNCHING, NodeState.BOOTING)


@dataclass(frozen=True)
class Intent:
    """What the policy says: `ask` is the offer to ask for now, None to ask for none."""

    situated: Situated
    choice: Choice
    ask: Ranked | None

    @property
    def elsewhere(self) -> bool:
        """It is to run somewhere else than it does, and that is to be had."""
        running = self.situated.situation.running
        if self.ask is None or running is None:
            return False
        offer = self.ask.offer
        spot = offer.capacity_type is CapacityType.SPOT
        return (self.choice.pool, spot) != (running.pool, running.capacity is CapacityType.SPOT)


@dataclass(frozen=True)
class Compared:
    """See `compared`; `intent` is None of a job that is not steered, and `assumed` says that nobody
    knows how much is left: then costs are of ASSUMED_S."""

    rows: list[Ranked]
    costs: list[Cost]
    intent: Intent | None
    assumed: bool


def intend(d: Draft, market: Market, rows: list[Ranked], running: Node | None) -> Intent | None:
    """What the policy says now; None where it cannot say anything."""
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
    if choice.action is Action.WAIT and not (d.job.spec.deadline_us and situated.hopeful):
        # There is no date to save money for, or nothing to wait for: what is permitted and to be
        # had is better than nothing.
        ask = min(situated.lasting.values(), key=_score, default=None)
    return Intent(situated, choice, ask)


def _score(row: Ranked) -> tuple[int, str]:
    return row.score_microusd_per_h, row.offer.key


def gang_now(d: Draft, *, coming: bool = True) -> Node | None:
    """A machine of the gang that trains or is to: the chosen one, else the first that comes, if
    those count. Not one that is being taken away, or leaves for another reason than a move."""
    chosen = [node for node in d.nodes if node.chosen and _stays(node)]
    if chosen:
        return max(chosen, key=lambda node: (node.generation, -node.rank))
    if not coming:
        return None
    return next((n for n in d.current if n.state in _COMING and not n.chosen and not n.rank), None)


def _stays(node: Node) -> bool:
    moves = node.state is NodeState.DRAINING and node.leave_reason is LeaveReason.MOVED
    alive = node.state in (NodeState.BOOTING, NodeState.RUNNING) or moves
    return alive and taking_away(node) is None


def steer(d: Draft) -> None:
    """Move a gang, or have one that was about to move stay; and give up spot that comes too late
    for the deadline."""
    spec = d.job.spec
    running = gang_now(d) if steered(spec) else None
    if running is None or d.ended or d.job.desired is not Desired.RUN or d.job.stop_text:
        return
    if d.market.blocked or safe(d.market, d.now_us):
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
                d.leave(node, LeaveReason.MOVED, "the deadline leaves no time for spot")
    _wake(d, running, intent)


def _move(d: Draft, running: Node, intent: Intent) -> None:
    spec, guarded = d.job.spec, intent.choice.guarded
    if not may_write(running) or not running.first_step_at_us:
        return
    if not guarded and (spec.checkpoint.engine == "none" or d.job.head is None):
        return  # it does not save when it is told to, or nobody has seen yet that it can
    if _pauses(running, intent):
        _pause(d, running, intent)
    if intent.ask is None or not intent.elsewhere:
        return
    why = "its deadline leaves no time for spot" if guarded else intent.choice.why
    there = intent.ask.offer
    price = f"${there.price_microusd_per_h / 1e6:.2f}/h"
    text = f"{why}: {there.key} at {price}"
    for node in gang_of(d, running):
        d.drain(node, LeaveReason.MOVED, text)
    words = f"{place(running)} moves ({text}); it trains on until its replacement is ready"
    d.event("moves", words, running)


def _pauses(running: Node, intent: Intent) -> bool:
    """On-demand is to be given back, for waiting for spot costs less."""
    waits = intent.choice.action is Action.WAIT and intent.ask is None
    return waits and running.offer.capacity_type is not CapacityType.SPOT


def _pause(d: Draft, running: Node, intent: Intent) -> None:
    """It saves, releases and ends; nothing is asked for until the policy says so."""
    text = f"it waits for spot: {intent.choice.why}"
    for node in gang_of(d, running):
        d.drain(node, LeaveReason.CANCELLED, text)
    d.event("pauses", f"{place(running)} is given back when it has saved: {text}", running)


def _stay(d: Draft, running: Node, intent: Intent) -> None:
    """Where its replacement was refused, or does not pay any more, and nobody has released."""
    gang = gang_of(d, running)
    released = any(
        n.told_release_at_us or n.released_at_us or n.exit_code is not None for n in gang
    )
    newer = [n for n in d.nodes if n.generation > running.generation]
    coming = any(n.chosen or n.state in _COMING for n in newer)
    if intent.ask is not None or released or coming:
        return
    for node in gang:
        if node.state is NodeState.DRAINING:
            d.set_node(
                node,
                state=NodeState.RUNNING,
                leave_reason=None,
                leave_text="",
                left_at_us=0,
                drained_at_us=0,
            )
    if _pauses(running, intent):
        _pause(d, running, intent)
        return
    d.event("stays", f"{place(running)} stays: nothing better is to be had now", running)


def _wake(d: Draft, running: Node, intent: Intent) -> None:
    """When to look again: in a while, or when the deadline may need something else."""
    if running.offer.capacity_type is not CapacityType.SPOT:
        if any(CapacityType.SPOT in want.capacity_types for want in d.job.spec.alternatives):
            d.wake(d.now_us + int(AGAIN_S * S))
        return
    spare = spare_looks(intent.situated.situation)
    if spare != float("inf"):
        d.wake(d.now_us + int(min(max(spare - 2, 1) * LOOK_S, AGAIN_S) * S))


def compared(view: View, market: Market, now_us: int) -> Compared:
    """The offers as the job would be placed now, what each would cost it until it is done, and what
    the policy says: for people who want to know."""
    d = Draft(view, market, now_us)
    spec, running = view.job.spec, gang_now(d)
    rows = rank(spec, market, now_us, job_id=view.job.id)
    if worth := worths(view, market, now_us, rows):
        rows = rank(spec, market, now_us, job_id=view.job.id, worth=worth)
    rows = in_turn(view.job, market, now_us, without_flat(spec, rows))
    intent = intend(d, market, rows, running) if steered(spec) else None
    found = costs(view, market, now_us, rows, running)
    return Compared(rows, found, intent, left_s(view) is None)


def of_spec(spec: JobSpec, now_us: int) -> View:
    """A job that nobody has submitted yet, as it would be on its first day."""
    return View(Job("", spec.name, spec, Desired.RUN, 0, now_us), (), (), loaded_at_us=now_us)
