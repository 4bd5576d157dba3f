"""Place a job without an active node, and choose the first complete gang that reports."""

from __future__ import annotations

from providers.base import CapacityType
from providers.dollars import format_usd
from spotd.domain.job import Attempt, Desired
from spotd.domain.market import Market
from spotd.domain.node import Node, NodeLease, NodeStartup
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.expiry import first_expiry_us
from spotd.planner.core.gangs import remaining, size_of
from spotd.planner.core.image_build import chosen_image, image_told
from spotd.planner.core.next_effect import end_unread, hearing_since_us
from spotd.planner.core.node_names import launch_token, node_id
from spotd.planner.core.plan_builder import LEAVING, PlanBuilder, place
from spotd.planner.core.safe_mode_gate import SAFE_LOOK_US, safe
from spotd.planner.offers.cooldowns import told_by
from spotd.planner.offers.preemptions import MANY, preemptions_lately, takers
from spotd.planner.placement.build_situation import LOOK_S
from spotd.planner.placement.cost_to_finish import worths
from spotd.planner.placement.explain_blocked import by_reason, way_out
from spotd.planner.placement.no_discount import without_flat
from spotd.planner.placement.rank import TURN, RankedOffer, rank, steered
from spotd.planner.placement.scarce_offers import asks_again_us, in_turn, patient, told_ahead
from spotd.planner.queue.fair_share import giving, leave_line, stand_in_line
from spotd.planner.rules.job_dependency import begins_us
from spotd.planner.rules.replace_node import taking_away
from spotd.planner.rules.spot_policy_rule import PolicyIntent, gang_now, intend
from spotd.planner.rules.stale_alerts import advise, end_wait, served, wait
from spotd.planner.spot_policy import Action


def _candidates(d: PlanBuilder) -> dict[int, list[Node]]:
    """The newest attempt's unchosen machines that are still coming, by candidate number."""
    gangs: dict[int, list[Node]] = {}
    for node in d.current:
        if not node.chosen and node.state in (NodeState.LAUNCHING, NodeState.BOOTING):
            gangs.setdefault(node.candidate, []).append(node)
    return gangs


def _attempt_open(d: PlanBuilder) -> bool:
    """The newest attempt has not chosen anybody yet."""
    return d.job.generation > 0 and not any(node.chosen for node in d.current)


def _wanted(d: PlanBuilder) -> bool:
    return not d.ended and d.job.desired is Desired.RUN and not d.job.end.stop_text


def _manned(d: PlanBuilder) -> bool:
    """A chosen gang, whole, boots or trains."""
    states = (NodeState.BOOTING, NodeState.RUNNING)
    by_generation: dict[int, int] = {}
    for node in d.nodes:
        if node.chosen and node.state in states:
            by_generation[node.generation] = by_generation.get(node.generation, 0) + 1
            if by_generation[node.generation] >= size_of(node, d.job.spec):
                return True
    return False


def choose(d: PlanBuilder) -> None:
    """Choose the first gang with a hello of every rank, and end the others at once."""
    if not _wanted(d) or _manned(d) or not _attempt_open(d):
        return
    for gang in _candidates(d).values():
        if len(gang) < d.job.spec.resources.num_nodes or not all(
            node.startup.hello_at_us for node in gang
        ):
            continue
        for node in gang:
            d.set_node(node, chosen=True)
        d.event("chosen", f"{place(gang[0])} answers first and is chosen", gang[0])
        for other in d.nodes:
            if not other.chosen and other.state in (NodeState.LAUNCHING, NodeState.BOOTING):
                d.terminate(other, LeaveReason.HEDGE_LOST, "another machine was ready first")
        return


def place_job(d: PlanBuilder) -> None:
    """Request machines until the job has a gang that boots or trains."""
    if begins_us(d) is None or not _lacks(d) or _held_up(d):
        d.set_job(offers_at_us=0)
        return
    for _ in range(_missing(d)):
        if not _ask(d):
            return


def _lacks(d: PlanBuilder) -> bool:
    """Return whether the job needs a machine that is not on its way."""
    if not _wanted(d) or served(d):
        end_wait(d)
    if not _wanted(d) or _manned(d):
        leave_line(d)
    if not _wanted(d):
        return False
    if _manned(d) or remaining(d.view, d.now_us):  # who are left go on: see regrouping.py
        _report_manned(d)
        return False
    ended = next((node for node in d.current if end_unread(node, d.view)), None)
    if ended is not None:
        error = f" ({ended.call.effect_error})" if ended.call.effect_error else ""
        d.add_reason(
            f"{place(ended)} has ended: another starts once its last checkpoint is read{error}"
        )
        return False
    if giving(d):
        return False
    if _missing(d) <= 0:
        d.add_reason("waiting for a machine to come up")
        return False
    return True


def _missing(d: PlanBuilder) -> int:
    """Return how many candidates to request.

    As many as the job requests in parallel, and one more, elsewhere, for each slow one.
    """
    if not d.market.launch.hedging or d.market.launch.blocked:
        return 1 - _coming(d)
    wanted = d.job.spec.resources.candidates
    return wanted + min(_late(d), wanted) - _coming(d)


def _late(d: PlanBuilder) -> int:
    """Return the number of candidates that have not started within `beside_s` while we listened.

    A candidate that starts in time to be chosen needs no second one.
    """
    late, timing = 0, d.market.timing
    if d.job.spec.resources.num_nodes > 1 or not _attempt_open(d):
        return 0  # no second gang beside one: the more machines, the more of them for nothing
    for first, *_ in _candidates(d).values():
        hearing_us = hearing_since_us(first, d.market) + int(timing.lost_after_s * S)
        end_us = max(first.requested_at_us + int(timing.beside_s * S), hearing_us)
        if d.now_us >= end_us:
            late += 1
        else:
            d.wake_at(end_us)
    return late


def _coming(d: PlanBuilder) -> int:
    """Candidates that may be chosen."""
    return len(_candidates(d)) if _attempt_open(d) else 0


def _held_up(d: PlanBuilder) -> bool:
    """Return whether a machine would be requested but may not be now."""
    if d.job.backoff.place_after_us > d.now_us:
        wait_s = (d.job.backoff.place_after_us - d.now_us) / 1e6
        leave_line(d)
        d.add_reason(f"trying again in {wait_s:.0f} s after the failure")
        d.wake_at(d.job.backoff.place_after_us)
        return True
    if safe(d.market, d.now_us):
        d.add_reason("spotd is in safe mode: nothing is launched; see `spotctl safe-mode status`")
        d.wake_at(d.now_us + SAFE_LOOK_US)
        return True
    if d.market.launch.blocked:
        rows = rank(d.job.spec, market_of(d), d.now_us, taken(d), job_id=d.job.id)
        best = next(iter(rows), None)
        if steered(d.job.spec):
            intended = intend(d, market_of(d), rows, gang_now(d))
            best = intended.ask if intended is not None else best
            if best is None:
                return False  # it waits for spot: no room is in its way
        d.add_reason(f"waiting: {d.market.launch.blocked}")
        stand_in_line(d, best.score_microusd_per_h if best else 0)
        d.wake_at(d.now_us + 15_000_000)
        wait(
            d, d.market.launch.blocked, lambda: "end other jobs, or raise the limits in config.toml"
        )
        return True
    return False


def taken(d: PlanBuilder) -> set[str]:
    """Return the offers not to request: the job has a machine there that starts or leaves.

    A lost machine's offer only cools down: if nothing else is available, it is requested again.
    """
    out = set()
    for node in d.nodes:
        coming = node.state in (NodeState.LAUNCHING, NodeState.BOOTING)
        if coming or (node.state is not NodeState.GONE and taking_away(node)):
            out.add(node.offer.key)
    return out


def market_of(d: PlanBuilder) -> Market:
    """Return the market with this job's own refusals; see cooldowns.told_by."""
    return told_by(d.nodes, d.market)


def _ask(d: PlanBuilder) -> bool:
    """Commit to one more candidate; return False if nothing is available now."""
    spec, market, out = d.job.spec, market_of(d), taken(d)
    if steered(spec):
        rows = without_flat(spec, rank(spec, market, d.now_us, out, job_id=d.job.id))
        rows = in_turn(d.job, market, d.now_us, rows)
        coming = _coming(d) > 0
        intent = intend(d, market, rows, gang_now(d, coming=not coming))
        if intent is not None:
            return _hedge(d, intent) if coming else _ask_as_told(d, intent, rows)
    weary = _weary(d)
    shy = takers(d.job.id, market, d.now_us) if weary else frozenset()
    asked = _asked(d, market)
    ranked = rank(spec, market, d.now_us, out, shy, d.job.id, asked)
    if worth := worths(d.view, market, d.now_us, ranked):
        ranked = rank(spec, market, d.now_us, out, shy, d.job.id, asked, worth)
    ranked = in_turn(d.job, market, d.now_us, without_flat(spec, ranked))
    free = [row for row in ranked if not row.excluded]
    beside = _coming(d) >= spec.resources.candidates
    if beside and (not free or patient(d.job, d.now_us, ranked)):
        d.add_reason("waiting for a machine to come up: there is no other place for a second one")
        return False
    leave_line(d, placed=bool(free))
    if not free or patient(d.job, d.now_us, ranked):
        _wait_for_market(d, ranked)
        return False
    best = next((row for row in free if _has_room(d, row)), free[0])
    fresh = sum(row.offer.key not in asked for row in free) if asked else len(free)
    best_of = f"the cheapest of {len(free)} offers"
    if 0 < fresh < len(free):
        best_of = f"the cheapest of {fresh} offers that have not refused yet"
    if shy:
        best_of = f"after {weary} preemptions within an hour: spot of {', '.join(sorted(shy))} last"
    if beside:
        best_of = f"in addition to one that is not up after {market.timing.beside_s:.0f} s"
    _request(d, best, best_of, explain=bool(shy) or beside)
    return True


def _ask_as_told(d: PlanBuilder, intent: PolicyIntent, rows: list[RankedOffer]) -> bool:
    """Request the offer that the policy chose; return False if it chose to request nothing now."""
    choice = intent.choice
    leave_line(d, placed=intent.ask is not None)
    if intent.ask is not None and not choice.guarded and patient(d.job, d.now_us, rows):
        _wait_for_market(d, rows)
        return False
    if intent.ask is None:
        if choice.action is Action.WAIT:
            d.add_reason("waiting for spot: on-demand is requested when its deadline needs it")
            d.wake_at(d.now_us + LOOK_S * S)
            spot = [row for row in rows if row.offer.capacity_type is CapacityType.SPOT]
            for row in spot:
                if row.code == TURN:
                    d.add_reason(f"{row.offer.key}: {row.excluded}")
            _stand_by(d, spot)
        elif not any(not row.excluded for row in rows):
            _wait_for_market(d, rows)
        return False
    _request(d, intent.ask, choice.why, explain=True)
    return True


def _hedge(d: PlanBuilder, intent: PolicyIntent) -> bool:
    """Request one more spot machine beside those that start, if the policy would."""
    kinds = {n.offer.capacity_type for gang in _candidates(d).values() for n in gang}
    if (
        intent.ask is None
        or intent.choice.action is not Action.SPOT
        or kinds != {CapacityType.SPOT}
    ):
        return False
    _request(d, intent.ask, f"in parallel: {intent.choice.why}", explain=True)
    return True


def _request(d: PlanBuilder, best: RankedOffer, best_of: str, *, explain: bool) -> None:
    """Commit to one more gang there; with `explain` an event has the reason."""
    if not _attempt_open(d):
        generation = d.job.generation + 1
        head_generation = d.job.head.generation if d.job.head else 0
        generation = max(generation, head_generation + 1)  # a restored database must not reuse one
        d.open_attempt(Attempt(d.job.id, generation, d.now_us, _cause(d)))
    d.set_job(offers_at_us=0)
    candidate = max((node.candidate for node in d.current), default=-1) + 1
    for number in range(d.job.spec.resources.num_nodes):
        d.add_node(new_node(d, best, candidate, number))
    price = best.offer.price_microusd_per_h / 1e6
    d.add_reason(f"requesting {best.offer.key} at {format_usd(price)}/h, {best_of}")
    more = (f" ({best_of})" if explain else "") + image_told(d.job.spec, d.current[-1])
    d.event(
        "requested", f"requested {best.offer.key} at {format_usd(price)}/h{more}", d.current[-1]
    )


def _asked(d: PlanBuilder, market: Market) -> frozenset[str]:
    """Return the offers that refused this attempt; a new attempt has none."""
    if not _attempt_open(d):
        return frozenset()
    ours = f"{d.job.id}-g{d.job.generation}-"
    return frozenset(r.offer_key for r in market.refusals if r.node_id.startswith(ours))


def _has_room(d: PlanBuilder, row: RankedOffer) -> bool:
    """Return whether the limits have room, as far as known here; the commit decides.

    The best offer need not be the cheapest.
    """
    most = d.market.use.limits.max_microusd_per_h
    adds = row.offer.price_microusd_per_h * d.job.spec.resources.num_nodes
    return not most or d.market.use.microusd_per_h + adds <= most


def _weary(d: PlanBuilder) -> int:
    """Return the number of recent preemptions if there were too many, else 0.

    The one that causes the next attempt counts.
    """
    about_to = not _attempt_open(d) and _cause(d) == LeaveReason.PREEMPTED.value
    count = preemptions_lately(d.view.attempts, d.now_us) + int(about_to)
    return count if count >= MANY else 0


def new_node(d: PlanBuilder, best: RankedOffer, candidate: int, number: int) -> Node:
    ident = node_id(d.job.id, d.job.generation, number, candidate)
    image = chosen_image(d.job.spec, best.offer, d.market.images)
    return Node(
        id=ident,
        job_id=d.job.id,
        generation=d.job.generation,
        rank=number,
        candidate=candidate,
        token=launch_token(d.market.deployment, ident, best.offer, d.now_us),
        offer=best.offer,
        state=NodeState.LAUNCHING,
        requested_at_us=d.now_us,
        startup=NodeStartup(image.image_id, image.setup) if image else NodeStartup(),
        lease=NodeLease(expires_at_us=first_expiry_us(d.market.timing, d.now_us)),
    )


def _cause(d: PlanBuilder) -> str:
    left = [(n, why) for n in d.nodes if n.chosen and (why := n.departure.leave_reason) is not None]
    if not left:
        return "first" if d.job.generation == 0 else "again"
    _, newest = max(left, key=lambda one: (one[0].generation, one[0].departure.left_at_us))
    return newest.value


def _wait_for_market(d: PlanBuilder, ranked: list[RankedOffer]) -> None:
    first = min((row for row in ranked if row.until_us), key=lambda row: row.until_us, default=None)
    if not ranked:
        obstacle = "no provider offers a machine that fits; see `spotctl plan`"
    else:
        shown = first or ranked[0]
        count = len(ranked)
        whose = f"all {count} offers that fit are" if count > 1 else "the only offer that fits is"
        reasons = by_reason(ranked)
        shortage = f"{whose} out ({reasons})" if reasons else f"{whose} out"
        obstacle = f"{shortage}; {shown.offer.key}: {shown.excluded}"
    d.add_reason(obstacle)
    wait(d, obstacle, lambda: _advice(d, ranked))
    d.wake_at(first.until_us if first else d.now_us + 60_000_000)
    _stand_by(d, ranked)


def _stand_by(d: PlanBuilder, rows: list[RankedOffer]) -> None:
    """Queue for excluded offers that may come back, unless a machine is on its way."""
    at_us = 0 if _coming(d) else asks_again_us(d.now_us, rows)
    d.set_job(offers_at_us=at_us)
    if at_us:
        d.wake_at(min(row.until_us for row in rows if row.until_us))
    if ahead := told_ahead(d.job, d.market, d.now_us, rows):
        d.add_reason(ahead)


def _advice(d: PlanBuilder, ranked: list[RankedOffer]) -> str:
    way = way_out(d.job.spec, d.market, d.now_us, d.job.id)
    return f"{advise(ranked)}; now: {way}" if way else advise(ranked)


def _report_manned(d: PlanBuilder) -> None:
    for node in d.nodes:
        if node.chosen and node.state is NodeState.RUNNING:
            uploads = node.storage.outputs_since_us
            work = "its program has ended: uploading its outputs from" if uploads else "training on"
            if node.training.exit_code is None or uploads:
                d.add_reason(f"{work} {place(node)}")
            else:
                d.add_reason(f"the program on {place(node)} has ended")
        elif node.chosen and node.state is NodeState.BOOTING:
            d.add_reason(f"{place(node)} is getting ready")
    for node in d.nodes:
        if node.state in LEAVING and node.state is not NodeState.GONE:
            d.add_reason(f"{place(node)} is being terminated")
