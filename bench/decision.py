"""How long does the daemon take to rank 500 offers for 1,000 jobs?

    python -m bench.decision [--offers 500] [--jobs 1000] [--rounds 3] [--profile] [--json FILE]

Each job wants a machine and has none: what is measured is `decide`, the daemon's whole decision
about it, in which offers are filtered, ranked by what the job costs there, and one is asked for.
Half of the jobs are plain, half are steered by the policy, each with its own work and deadline.
The market has three clouds, spot and on-demand in each zone, a few hundred refusals of the last
hour, and 5,000 stays of the last month, read anew for each round as they are every minute.

CPU seconds of one thread, the best of the rounds, and those of a daemon that has just begun. The
parts are of one round more, and cost what measuring them does: `rank` (filter and order), `worths`
(what each offer costs a plain job), `situate` and `choose` (what the policy is told of a steered
job, and what it says). Jobs are decided about in passes of 16, as the loop claims them, each with
a market of its own; offers and past are the same objects as long as they say the same. Nothing is
written: what commits cost is in bench/control_plane.py. Ends with 1 where all together take more
than a second.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import spotd.planner.rules.place_job
import spotd.planner.rules.spot_policy_rule
from providers.base import CapacityType, Offer, OfferRequest, Scope
from providers.catalogs.egress import first_tier_prices
from providers.catalogs.places import places
from spotd.daemon.loop import BATCH
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, Desired, Job, JobProgram, JobResources, JobSpec
from spotd.domain.market import Geography, Market, Refusal, StoreCatalog
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.plan import AddNode, Plan
from spotd.domain.preferences import Preferences
from spotd.domain.states import LeaveReason
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.planner import decide

NOW = 1_800_000_000 * S
HOUR = 3600 * S
GOAL_S = 1.0
STAYS, REFUSALS = 5000, 300
CLOUDS = {"aws": "us-east", "gcp": "europe-west", "azure": "eastus"}
TYPES = (("8xh100", "H100", 8, 30.0), ("8xa100", "A100-80GB", 8, 15.0), ("1xh100", "H100", 1, 4.0))
# (in which module, its name there, which part it is)
PARTS = (
    (spotd.planner.rules.place_job, "rank", "rank"),
    (spotd.planner.rules.place_job, "worths", "worths"),
    (spotd.planner.rules.spot_policy_rule, "situate", "situate"),
    (spotd.planner.rules.spot_policy_rule, "choose", "choose"),
)


def offers(count: int) -> tuple[Offer, ...]:
    """Spot and on-demand in each zone, prices a few percent apart."""
    found: list[Offer] = []
    number = 0
    while len(found) < count:
        cloud = list(CLOUDS)[number % 3]
        kind, accelerator, each, dollars = TYPES[number // 3 % 3]
        region = f"{CLOUDS[cloud]}-{number // 27}"
        zone = f"{region}{'abc'[number // 9 % 3]}"
        for capacity, times in ((CapacityType.SPOT, 1.0), (CapacityType.ON_DEMAND, 3.0)):
            price = int(dollars * times * (1 + number % 17 / 100) * 1e6)
            found.append(
                Offer(
                    provider=cloud,
                    region=region,
                    zone=zone,
                    instance_type=kind,
                    capacity_type=capacity,
                    price_microusd_per_h=price,
                    list_microusd_per_h=int(dollars * 3e6),
                    accelerator=accelerator,
                    accelerator_count=each,
                    cloud=cloud,
                )
            )
        number += 1
    return tuple(found[:count])


def past(sold: Sequence[Offer]) -> FleetHistory:
    """A month: granted and kept, refused, or taken away, in each place."""
    spot = [offer for offer in sold if offer.capacity_type is CapacityType.SPOT]
    stays = []
    for number in range(STAYS):
        asked_us = NOW - (STAYS - number) * 500 * S
        key, node = spot[number * 7 % len(spot)].key, f"j{number % 997:09d}-g{number}-0"
        if number % 3 == 0:
            stays.append(NodeLifetime(node, key, asked_us, "CapacityError"))
            continue
        until_us = min(NOW, asked_us + (1 + number % 40) * HOUR // 4)
        left = LeaveReason.PREEMPTED if number % 3 == 1 else LeaveReason.DONE
        stays.append(
            NodeLifetime(
                node_id=node,
                offer_key=key,
                asked_at_us=asked_us,
                began_at_us=asked_us + S,
                trained_at_us=asked_us + 200 * S,
                until_us=until_us,
                left=left,
            )
        )
    return FleetHistory(tuple(stays), NOW - 30 * 24 * HOUR, NOW)


def market(sold: tuple[Offer, ...]) -> Market:
    refusals = tuple(
        Refusal(
            sold[number * 11 % len(sold)].key,
            Scope.OFFER,
            ("CapacityError", "Preempted", "QuotaError")[number % 3],
            NOW - number * 11 * S,
            f"j{number:09d}-g1-0",
        )
        for number in range(REFUSALS)
    )
    known = places()
    return Market(
        sold,
        refusals,
        deployment="d0",
        history=past(sold),
        stores=StoreCatalog(
            places={"s3://bucket": ("aws", "us-east-0")},
            egress_microusd_per_gb=first_tier_prices(),
        ),
        geography=Geography(countries=known.countries, operators=known.operators),
    )


def views(count: int, *, steered: bool) -> list[View]:
    """Jobs that were submitted an hour ago and have no machine."""
    wants = (
        OfferRequest(accelerator="H100", accelerator_count=8),
        OfferRequest(accelerator="A100-80GB", accelerator_count=8),
        OfferRequest(accelerator="H100", accelerator_count=1),
    )
    saves = CheckpointSpec("s3://bucket/ckpt", "spotd", size_bytes=100_000_000_000)
    found = []
    for number in range(count):
        ident = f"j{number:09d}"
        more: dict[str, Any] = {}
        if steered:
            work_s = 3600.0 * (10 + number % 50)
            more = {
                "preferences": Preferences(work_s=work_s),
                "deadline_us": NOW + int(1.5 * work_s * S),
            }
        spec = changed(
            JobSpec(ident, JobProgram("python train.py"), JobResources(wants), saves), **more
        )
        job = Job(ident, ident, spec, Desired.RUN, 1, NOW - HOUR)
        found.append(View(job, (), (), loaded_at_us=NOW))
    return found


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """While it lasts, CPU seconds of each part are added up; what one does within another is the
    inner one's."""
    running: list[float] = []

    def measured(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            began_s = time.thread_time()
            running.append(0.0)
            try:
                return call(*args, **more)
            finally:
                took_s = time.thread_time() - began_s
                spent[part] += took_s - running.pop()
                if running:
                    running[-1] += took_s

        return run

    with ExitStack() as stack:
        for module, name, part in PARTS:
            call = measured(part, getattr(module, name))
            stack.enter_context(patch.object(module, name, call))
        yield


def ranked(
    sold: tuple[Offer, ...], jobs: Sequence[View], spent: dict[str, float] | None = None
) -> float:
    """Decide once about each, in passes of BATCH jobs; CPU seconds. Nearly all have to ask for a
    machine."""
    stored = market(sold)
    plans: list[Plan] = []
    with timed(spent) if spent is not None else nullcontext():
        began_s = time.thread_time()
        for first in range(0, len(jobs), BATCH):
            now = changed(stored, started_at_us=first)  # another one, as each pass loads it
            plans += [decide(view, now, NOW) for view in jobs[first : first + BATCH]]
        took_s = time.thread_time() - began_s
    asked = sum(any(isinstance(change, AddNode) for change in plan.changes) for plan in plans)
    if asked < 0.9 * len(jobs):
        raise AssertionError(f"only {asked} of {len(jobs)} jobs ask for a machine: {plans[0]}")
    return took_s


def measure(offer_count: int, jobs: int, rounds: int) -> dict[str, Any]:
    sold = offers(offer_count)
    kinds = {
        "plain": views(jobs // 2, steered=False),
        "steered": views(jobs - jobs // 2, steered=True),
    }
    found: dict[str, Any] = {"offers": offer_count, "jobs": jobs, "rounds": rounds, "kinds": {}}
    for kind, of in kinds.items():
        first_s = ranked(sold, of)  # of a daemon that has just begun
        total_s = min(ranked(sold, of) for _ in range(rounds))
        spent: dict[str, float] = defaultdict(float)
        ranked(sold, of, spent)
        parts = {**spent, "total": total_s, "first": first_s}
        found["kinds"][kind] = {name: round(seconds, 4) for name, seconds in parts.items()}
    found["total_s"] = round(sum(one["total"] for one in found["kinds"].values()), 3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Rank offers for many jobs, on one core.")
    parser.add_argument("--offers", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if min(args.offers, args.jobs - 1, args.rounds) < 1:
        parser.error("--offers and --rounds are 1 or more, --jobs 2 or more")
    if args.profile:
        sold = offers(args.offers)
        with cProfile.Profile() as profile:
            for steered in (False, True):
                ranked(sold, views(args.jobs // 2, steered=steered))
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return 0
    found = measure(args.offers, args.jobs, args.rounds)
    for kind, parts in found["kinds"].items():
        told = ", ".join(f"{name} {seconds:.3f}" for name, seconds in parts.items())
        print(f"{kind}: {told} s")
    print(f"{args.jobs} jobs, {args.offers} offers: {found['total_s']:.2f} s of CPU")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["total_s"] > GOAL_S else 0


if __name__ == "__main__":
    sys.exit(main())
