"""What each place is worth to a job that is not steered: the order in which offers are asked for.

By the cost to finish and not by the price: a place where machines are taken away soon, where the
work takes longer or to which the checkpoint has to be carried costs more than it says. Nobody said
how much there is to do, so that what a day's work costs is compared. `objective: speed` compares
the hours that it takes instead, the interruptions that are to be expected included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spotd.decide.cadence import mtbf_s
from spotd.decide.placement import Ranked
from spotd.decide.policy import Action, Choice, Option, choose
from spotd.decide.remaining import lost_s, start_s
from spotd.decide.situating import Situated, situate, speed_of
from spotd.model import Market, View
from spotd.wishes import Objective


def worths(view: View, market: Market, now_us: int, rows: Sequence[Ranked]) -> Mapping[str, float]:
    """By the offer's key, lower is better: dollars, or hours for `objective: speed`. Empty where
    there is nothing to compare."""
    free = [row for row in rows if not row.excluded]
    if len(free) < 2:
        return {}
    if view.job.spec.wishes.objective is Objective.SPEED:
        return {row.offer.key: _hours(row, view, market) for row in free}
    situated = situate(view, market, now_us, free, None)
    return {} if situated is None else _dollars(situated)


def options(situated: Situated, choice: Choice) -> list[Option]:
    """What could be done and what each is expected to cost, the best first: what the policy
    compared; and what it had no need to compare, as if nothing interrupted it."""
    told = {(one.action, one.pool): one for one in choice.options}
    for action, rows in ((Action.SPOT, situated.spot), (Action.ON_DEMAND, situated.lasting)):
        for pool, row in rows.items():
            if (action, pool) not in told and not row.excluded:
                told[action, pool] = _uninterrupted(situated, action, pool, row)
    return sorted(told.values(), key=lambda one: (one.score_usd, one.action.value, one.pool))


def _uninterrupted(situated: Situated, action: Action, key: str, row: Ranked) -> Option:
    situation = situated.situation
    work, pool = situation.work, next(one for one in situation.pools if one.key == key)
    usd_per_s = row.score_microusd_per_h / 1e6 / 3600
    return Option(
        action,
        key,
        here_usd=usd_per_s * work.left_s / pool.speed,
        start_usd=usd_per_s * (work.restart_s + pool.transfer_s),
        egress_usd=pool.egress_usd,
    )


def _dollars(situated: Situated) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in options(situated, choose(situated.situation)):
        rows = situated.spot if one.action is Action.SPOT else situated.lasting
        if one.action in (Action.SPOT, Action.ON_DEMAND) and one.pool in rows:
            found[rows[one.pool].offer.key] = one.score_usd
    return found


def _hours(row: Ranked, view: View, market: Market) -> float:
    """That an hour's work takes there: each interruption costs a start, and on average half of what
    lies between two saves. (A machine on demand is interrupted as its hardware fails.)"""
    spec, offer = view.job.spec, row.offer
    each_s = start_s(market.past, view.job.id) + lost_s(offer, spec, market) / 2
    apart_s = mtbf_s(offer, (), spec.num_nodes)
    return (1 + each_s / apart_s) / speed_of(spec, offer)
