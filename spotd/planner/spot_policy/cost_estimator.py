"""Estimate the cost of a start, a stay, a wait, or on-demand, until the job is done in time.

The next stretch is estimated for each pool by itself: its price, scale, age, and the way there.
What comes after it, wherever that is, is read from one table (value_table.py) made for all pools
together. docs/placement.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import exp, inf

from spotd.planner.spot_policy.choice import Action, Option
from spotd.planner.spot_policy.grid import doubled, rounded
from spotd.planner.spot_policy.hazard import ends_within, fleet_scale, found_age_h, lifted, scale
from spotd.planner.spot_policy.pool_record import expected, rate
from spotd.planner.spot_policy.situation import Pool, RunningGang, Situation
from spotd.planner.spot_policy.value_table import TIME_STEPS, WORK_STEPS, ValueParameters, table

POOLS = 12  # the best, of those that are looked at closely
FREE_USD_PER_H = 1e-6
DEAR = 0.9  # of on-demand: spot that costs more is only taken where it is all there is
# How far two pools of the situation are independent: the chance that another one is up, of its
# share of time, when one goes.
INDEPENDENT = 0.3
ELSEWHERE_LOOKS = 4.0  # what that guess is worth, in looks
OTHERS = 0.3  # what a pool adds to how soon any comes back, of what the best one does
LIFTED_H = 0.25  # how long ends nearby count, once it runs
YOUNG_H = 0.1  # the age of what has just come back
STRETCH_H = 12.0  # longer stretches end in the table
WAITS_H = (0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
RIPE_H = (1 / 6, 1 / 3, 1 / 2, 5 / 6)  # how long young spot is watched before it is taken


@dataclass(frozen=True)
class _Place:
    pool: Pool
    usd_per_h: float
    ends: float  # times the law
    returns: float
    available: float
    lift: float


class CostEstimator:
    """Estimates for a situation with a deadline and spot for sale, in dollars of the whole gang."""

    def __init__(self, situation: Situation) -> None:
        work = situation.work
        self.situation = situation
        self.time_h = ((work.deadline_s or inf) - situation.now_s) / 3600
        self.work_h = work.left_s / 3600
        self.restart_h = work.restart_s / 3600
        self.look_h = work.look_s / 3600
        self.lasting = cheapest_on_demand(situation)
        self.places = _places(situation, self.lasting)
        weights = _first_choices(self.places)
        # Spot for nothing would have no unit to reckon in.
        hourly = sum(p.usd_per_h * weights[key] for key, p in self.places.items())
        self.hourly = max(hourly, FREE_USD_PER_H)
        self.gone_h = max(_gone_h(situation), YOUNG_H)
        self.table = table(self._habits(weights))

    def _habits(self, weights: Mapping[str, float]) -> ValueParameters:
        """Rounded, so that like situations share a table."""
        places = self.places.values()
        missed = 1.0
        for place in places:
            missed *= 1 - INDEPENDENT * place.available
        one = max(place.available for place in places)
        elsewhere = 1 - missed / (1 - INDEPENDENT * one)
        hits, looks = self.situation.elsewhere
        elsewhere = (ELSEWHERE_LOOKS * elsewhere + hits) / (ELSEWHERE_LOOKS + looks)
        ends = sum(p.ends * weights[key] for key, p in self.places.items())
        first, *rest = sorted((place.returns for place in places), reverse=True)
        back = min(max(first + OTHERS * sum(rest), 0.1), 8.0)
        ratio = self._on_demand_usd_per_h() / self.hourly
        lost_h = self.situation.work.lost_s / 3600
        return ValueParameters(
            on_demand=min(round(ratio * 2) / 2, 100.0),
            restart_h=rounded(self.restart_h, 1.1),
            loss_h=rounded(lost_h, 1.25) if lost_h else 0.0,
            ends=rounded(ends, 1.25),
            returns=rounded(back, 1.5),
            elsewhere=round(elsewhere * 5) / 5,
            egress=round(self._egress_usd() / self.hourly * 2.5) / 2.5,
            step_h=_step_h(self.work_h, self.time_h),
        )

    def _on_demand_usd_per_h(self) -> float:
        return usd_per_work(self.lasting)

    def _egress_usd(self) -> float:
        """Return the egress of a start, averaged over where spot comes back soonest."""
        soon = {key: p.returns * self._rate_of_return(p.pool) for key, p in self.places.items()}
        paid = sum(self.places[key].pool.egress_usd * share for key, share in soon.items())
        return paid / sum(soon.values())

    def _rate_of_return(self, pool: Pool) -> float:
        running = self.situation.running
        if pool.record.up is None:
            return rate(2.0)
        if not pool.record.up:
            return rate(pool.record.age_h(self.situation.now_s))
        return rate(0.25 if running is not None and running.pool == pool.key else 1.0)

    def start(
        self, key: str, age_h: float, after_h: float = 0.0, work_h: float | None = None
    ) -> Option:
        """Return the option of requesting spot `after_h` from now in a pool of that age."""
        pool = self.places[key].pool
        starts_h = self.restart_h + pool.transfer_s / 3600
        left_h = self.work_h if work_h is None else work_h
        option = self._stretch(key, age_h, self.time_h - after_h, left_h, starts_h)
        return replace(option, egress_usd=pool.egress_usd)

    def found(self, key: str) -> Option:
        """Return the option of requesting spot now, at the age on record."""
        record = self.places[key].pool.record
        return self.start(key, found_age_h(record, self.situation.now_s))

    def stay(self, running: RunningGang) -> Option:
        """Return the option of continuing on the running spot machine."""
        age_h = found_age_h(self.places[running.pool].pool.record, self.situation.now_s)
        estimate = self._stretch(
            running.pool, age_h, self.time_h, self.work_h, running.starting_s / 3600
        )
        return replace(estimate, action=Action.STAY)

    def _stretch(
        self, key: str, age_h: float, time_h: float, work_h: float, start_h: float
    ) -> Option:
        """Return the option of one run there, from its start to its end, and of what comes
        after."""
        place, loss_h = self.places[key], self.situation.work.lost_s / 3600
        price, speed = place.usd_per_h * place.pool.speed, place.pool.speed
        lives, start_usd, here_usd, lost_usd, rest_usd = 1.0, 0.0, 0.0, 0.0, 0.0
        if start_h > 0:
            ends = ends_within(age_h, start_h, place.ends * place.lift)
            start_usd = price * start_h * (1 - ends / 2)
            rest_usd = ends * self.after_usd(time_h - start_h / 2, work_h)
            lives, age_h, time_h = 1 - ends, age_h + start_h, time_h - start_h
        done_h, step_h = 0.0, 0.25
        while done_h < min(work_h / speed - 1e-9, STRETCH_H) and lives > 0.02:
            now_h = min(step_h, work_h / speed - done_h)
            times = place.ends * (place.lift if done_h < LIFTED_H else 1.0)
            ends = ends_within(age_h, now_h, times)
            here_usd += lives * price * now_h * (1 - ends / 2)
            middle_h = done_h + now_h / 2
            left_h = work_h - middle_h * speed
            after = self.after_usd(time_h - middle_h, left_h)
            rest_usd += lives * ends * after
            if loss_h:
                again = self.after_usd(time_h - middle_h, left_h + loss_h / 2)
                lost_usd += lives * ends * (again - after)
            lives, done_h, age_h = lives * (1 - ends), done_h + now_h, age_h + now_h
            step_h = min(step_h * 1.5, 2.0)
        left_h = work_h - done_h * speed
        if left_h > 1e-6 and lives > 0:
            more_h = min(left_h / speed, 1 / (rate(age_h) * place.ends))
            own_usd = (place.usd_per_h - self.hourly) * more_h * speed
            on = self.table.at(self.table.on, time_h - done_h, left_h, age_h)
            rest_usd += lives * (on * self.hourly + own_usd)
        return Option(Action.SPOT, key, here_usd, start_usd, lost_usd, 0.0, rest_usd)

    def after_usd(self, time_h: float, work_h: float) -> float:
        """Return the cost after an end, wherever the job continues."""
        return self.table.at(self.table.after, time_h, work_h) * self.hourly

    def on_demand(self, after_h: float = 0.0, gone_h: float | None = None) -> Option:
        """Start on demand `after_h` from now, and go back to spot when that pays."""
        price, pool = self._on_demand_usd_per_h() * self.lasting.speed, self.lasting
        starts_h = self.restart_h + pool.transfer_s / 3600
        rest = self._lasting(
            after_h + starts_h, self.work_h, self.gone_h if gone_h is None else gone_h
        )
        paid = starts_h * price
        return Option(
            Action.ON_DEMAND,
            pool.key,
            start_usd=paid,
            egress_usd=pool.egress_usd,
            rest_usd=rest,
        )

    def lasts(self, running: RunningGang) -> Option:
        """Return the option of continuing on the running on-demand machine."""
        look_h = self.look_h
        left_h = max(self.work_h - max(look_h - running.starting_s / 3600, 0.0), 0.0)
        there = next(p for p in self.situation.pools if p.key == running.pool)
        paid = (there.on_demand_usd_per_h or self._on_demand_usd_per_h()) * look_h
        rest = self._lasting(look_h, left_h, self.gone_h)
        return Option(Action.STAY, running.pool, here_usd=paid, rest_usd=rest)

    def _lasting(self, after_h: float, work_h: float, gone_h: float) -> float:
        t = self.table
        return t.at(t.lasting, self.time_h - after_h, work_h, gone_h) * self.hourly

    def wait(self) -> Option:
        """Have nothing until spot comes back, or until on-demand is better than to wait on."""
        most_h = max(self.time_h - self.work_h - self.restart_h - 2 * self.look_h, self.look_h)
        looks = tuple(n * self.look_h for n in range(4))
        times = [h for h in (*looks, *(h for h in WAITS_H if h > looks[-1])) if h <= most_h]
        if len(times) < 2:
            times = [0.0, self.look_h]
        t = self.table
        young = {key: self.start(key, YOUNG_H).score_usd for key in self.places}
        now_usd = t.at(t.there, self.time_h, self.work_h, 0.0)
        last_h = times[-1]
        usd = t.at(t.gone, self.time_h - last_h, self.work_h, self.gone_h + last_h) * self.hourly
        for since_h, until_h in reversed(list(pairwise(times))):
            later = self.time_h - (since_h + until_h) / 2
            slack_usd = (t.at(t.there, later, self.work_h, 0.0) - now_usd) * self.hourly
            comes = weighed = 0.0
            for key, start_usd in young.items():
                if start_usd + slack_usd < usd:
                    share = self._returns(self.places[key], since_h, until_h)
                    comes += share
                    weighed += share * (start_usd + slack_usd)
            if comes > 0:
                back = 1 - exp(-comes)
                usd = (1 - back) * usd + back * weighed / comes
            if since_h > 0:
                usd = min(usd, self.on_demand(since_h, self.gone_h + since_h).score_usd)
        return Option(Action.WAIT, rest_usd=usd)

    def _returns(self, place: _Place, since_h: float, until_h: float) -> float:
        """Return the expected number of returns in that time."""
        record = place.pool.record
        if record.up is None:
            age_h = 2.0
        elif record.up:
            age_h = 0.5
        else:
            age_h = record.age_h(self.situation.now_s)
        return place.returns * expected(age_h + since_h, until_h - since_h)

    def pause(self) -> float:
        """Return the cost in dollars of giving up on-demand now and waiting, from the table."""
        t, look_h, gone_h = self.table, self.look_h, self.gone_h
        back = ends_within(gone_h, look_h, t.habits.returns)
        left = t.at(t.gone, self.time_h - look_h, self.work_h, gone_h) * (1 - back)
        there = t.at(t.there, self.time_h - look_h, self.work_h, 0.0) * back
        return (left + there) * self.hourly

    def ripen(self, key: str, age_h: float, meanwhile: Option) -> float:
        """Return the least cost of a later start in spot of that age, while `meanwhile` continues.

        inf if there is no time for it.
        """
        place, running = self.places[key], self.situation.running
        probe_s = 0.0 if self.situation.signalled else (self.situation.probe_s or 0.0)
        best = float("inf")
        for ripe_h in RIPE_H:
            hours = max(ripe_h, self.look_h)
            paid, left_h, middle_h, lost = 0.0, self.work_h, self.work_h, meanwhile.score_usd
            if running is not None:
                price = self._on_demand_usd_per_h()
                idle_h = running.starting_s / 3600
                left_h = max(self.work_h - max(hours - idle_h, 0.0), 0.0)
                middle_h = max(self.work_h - max(hours / 2 - idle_h, 0.0), 0.0)
                paid = price * hours
                lost = paid / 2 + self._lasting(hours / 2, middle_h, 0.0)
            if self.time_h - hours - left_h < self.restart_h + 2 * self.look_h:
                break
            lives = 1 - ends_within(age_h, hours, place.ends)
            start = self.start(key, age_h + hours, hours, left_h)
            watched = place.usd_per_h * hours / self.look_h * probe_s / 3600
            usd = watched + lives * (paid + start.score_usd) + (1 - lives) * lost
            best = min(best, usd)
        return best


@lru_cache(maxsize=1000)
def paid_per_done(ends: float, restart_h: float) -> float:
    """Hours paid for an hour of work in a pool `ends` times the law, by one who always comes back
    as soon as it does: E[T] / E[max(T - restart, 0)] with T the length of a run, up to a day."""
    paid = done = at_h = 0.0
    lives, step_h = 1.0, 0.05
    while at_h < 24 and lives > 1e-3:
        goes = lives * (1 - ends_within(YOUNG_H / 2 + at_h, step_h, ends))
        mean = (lives + goes) / 2 * step_h
        paid += mean
        done += mean * min(max((at_h + step_h - restart_h) / step_h, 0.0), 1.0)
        at_h, lives, step_h = at_h + step_h, goes, min(step_h * 1.15, 1.0)
    return paid / done if done > 0 else float("inf")


def usd_per_work(pool: Pool) -> float:
    """Dollars of an hour of work on demand there; inf where it is not sold."""
    price = pool.on_demand_usd_per_h
    return inf if price is None else price / pool.speed


def cheapest_on_demand(situation: Situation) -> Pool:
    """Return the pool where the rest costs least on-demand, the move included.

    Some pool has to sell on-demand.
    """

    def costs(pool: Pool) -> tuple[float, str]:
        hours = situation.work.left_s / 3600 / pool.speed
        return (pool.on_demand_usd_per_h or 0.0) * hours + pool.egress_usd, pool.key

    return min((p for p in situation.pools if p.on_demand_usd_per_h is not None), key=costs)


def _places(situation: Situation, lasting: Pool) -> dict[str, _Place]:
    """Return the pools whose spot would be used, the best first, and always the gang's own."""
    running = situation.running
    records = {pool.key: pool.record for pool in situation.pools}
    fleet = fleet_scale(records.values())
    regions = {pool.key: pool.region for pool in situation.pools}
    lift = lifted(records, regions, situation.now_s)
    places = []
    for pool in situation.pools:
        if pool.spot_usd_per_h is None:
            continue
        own = scale(pool.record, fleet)
        usd = pool.spot_usd_per_h / pool.speed
        places.append(_Place(pool, usd, own.ends, own.returns, own.available, lift[pool.key]))
    ceiling = DEAR * usd_per_work(lasting)

    def rank(place: _Place) -> tuple[float, str]:
        return (
            place.usd_per_h * (1 + 0.1 * place.ends) + place.pool.egress_usd / 10,
            place.pool.key,
        )

    places.sort(key=rank)
    worth = [p for p in places if p.usd_per_h < ceiling][:POOLS] or places[:1]
    here = [p for p in places if running and p.pool.key == running.pool and p not in worth]
    return {place.pool.key: place for place in (*worth, *here)}


def _first_choices(places: Mapping[str, _Place]) -> dict[str, float]:
    """Return how often each pool is the first available one in that order."""
    left, probabilities = 1.0, {}
    for key, place in places.items():
        probabilities[key] = left * place.available
        left *= 1 - place.available
    total = sum(probabilities.values())
    return {key: share / total for key, share in probabilities.items()}


def _gone_h(situation: Situation) -> float:
    """Return since when nothing is available anywhere, in hours."""
    downs = [
        (situation.now_s - pool.record.since_s) / 3600
        for pool in situation.pools
        if pool.record.up is False
    ]
    return min(downs, default=0.25)


def _step_h(work_h: float, time_h: float) -> float:
    """Steps of a quarter of an hour times a power of two, so that the table holds all of it. More
    than twice the time of the work is as good as twice."""
    need = max(work_h / WORK_STEPS, min(time_h, 2 * work_h) / TIME_STEPS, 0.01)
    return doubled(need, 0.25)
