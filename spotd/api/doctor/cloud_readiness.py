"""The doctor's look at the clouds: how ready each says it is for the jobs that there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from providers.base import CapacityType
from providers.readiness import CapacityNeed, Finding, Grade, need_of
from spotd.api.request.request import ApiContext, Check
from spotd.domain.job import Job
from spotd.domain.market import Market, Refusal
from spotd.store.interface import StoreError

NO_QUOTA = "NoQuotaError"

Found = Mapping[str, Sequence[Finding]]  # by provider


@dataclass(frozen=True)
class _Pool:
    """What quotas count together, as far as nobody here knows what they count."""

    provider: str
    region: str
    instance_type: str
    capacity_type: CapacityType


def needs_of(jobs: Iterable[Job], market: Market) -> dict[str, list[CapacityNeed]]:
    """Provider -> what the unfinished `jobs` could be given there, one need for each type of each
    region, the largest number of machines; without a job, one machine of each type on sale. What
    was refused for a quota of zero is among them."""
    found: dict[_Pool, CapacityNeed] = {}
    jobs = [*jobs]
    for offer in market.offers:
        pool = _Pool(offer.provider, offer.region, offer.instance_type, offer.capacity_type)
        for job in jobs:
            if any(want.admits(offer) for want in job.spec.alternatives):
                known = found.get(pool)
                if known is None or known.count < job.spec.num_nodes:
                    found[pool] = need_of(offer, job.spec.num_nodes, job.spec.name)
        if not jobs or any(_same(refusal, pool) for refusal in market.refusals):
            found.setdefault(pool, need_of(offer))
    by_provider: defaultdict[str, list[CapacityNeed]] = defaultdict(list)
    for pool, need in found.items():
        by_provider[pool.provider].append(need)
    return dict(by_provider)


def _same(refusal: Refusal, pool: _Pool) -> bool:
    provider, region, _, kind, capacity = refusal.offer_key.split("/")
    there = (pool.provider, pool.region, pool.instance_type, pool.capacity_type.value)
    return refusal.code == NO_QUOTA and (provider, region, kind, capacity) == there


def mended(found: Found, refusals: Iterable[Refusal]) -> list[str]:
    """The offers that were refused for a quota of zero, and whose quota lets a machine be made by
    now. (A cloud may count one machine against several quotas: all of them have to.)"""
    serves: set[_Pool] = set()
    short: set[_Pool] = set()
    for provider, findings in found.items():
        for finding in findings:
            if finding.check != "quota":
                continue
            for need in finding.serves:
                serves.add(_Pool(provider, need.region, need.instance_type, need.capacity_type))
            for need in finding.lacks:
                short.add(_Pool(provider, need.region, need.instance_type, need.capacity_type))
    return sorted(
        {
            refusal.offer_key
            for refusal in refusals
            if any(_same(refusal, pool) for pool in serves - short)
        }
    )


def check_clouds(backing: ApiContext, now_us: int) -> list[Check]:
    """Each cloud's findings. Offers that were refused for a quota of zero, and have one by now, are
    to be tried again."""
    try:
        jobs, market = backing.store.jobs(False), backing.market(now_us)
    except StoreError:
        return []  # told with the database
    found = backing.examine(needs_of(jobs, market))
    lifted = mended(found, market.refusals)
    if lifted:
        backing.store.lift_refusals(NO_QUOTA, lifted, now_us)
    checks = [check for name, findings in found.items() for check in _checks(name, findings)]
    checks += [
        Check(f"{key.partition('/')[0]} quota", True, f"there is one by now: {key} is tried again")
        for key in lifted
    ]
    return checks


def _checks(provider: str, findings: Sequence[Finding]) -> Iterator[Check]:
    """A quota that is too small matters where none of the cloud's is large enough."""
    enough = any(one.check == "quota" and one.grade is Grade.OK for one in findings)
    for one in _joined(findings):
        grade = one.grade
        if one.check == "quota" and enough and grade is Grade.FAIL:
            grade = Grade.WARN
        name = " ".join(filter(None, (provider, one.place, one.check)))
        yield Check(name, grade is not Grade.FAIL, one.text, one.fix, grade is Grade.WARN)


def _joined(findings: Iterable[Finding]) -> list[Finding]:
    """Those of a place together, in the order in which places are named first."""
    places = list(dict.fromkeys(one.place for one in findings))
    return sorted(findings, key=lambda one: places.index(one.place))
