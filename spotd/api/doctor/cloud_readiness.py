"""Doctor checks of the clouds: how ready each is for the unfinished jobs, jump hosts, warnings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from providers.base import CapacityType
from providers.readiness import CapacityNeed, Finding, Grade, need_of
from spotd.api.request.context import ApiContext
from spotd.api.request.request import Check
from spotd.base.log import redactor
from spotd.domain.job import Job
from spotd.domain.market import Market, Refusal
from spotd.store.errors import StoreError

NO_QUOTA = "NoQuotaError"

FindingsByProvider = Mapping[str, Sequence[Finding]]


@dataclass(frozen=True)
class _Pool:
    """The unit in which quotas are compared.

    Real quotas may cover several of these; their scope is not known here.
    """

    provider: str
    region: str
    instance_type: str
    capacity_type: CapacityType


def needs_of(jobs: Iterable[Job], market: Market) -> dict[str, list[CapacityNeed]]:
    """Return provider -> the capacity that the unfinished `jobs` could use there.

    There is one need for each type in each region, for the largest number of machines. Without a
    job, it is one machine of each type on sale. Types that were refused for a quota of zero are
    included.
    """
    needs: dict[_Pool, CapacityNeed] = {}
    jobs = [*jobs]
    for offer in market.offers:
        pool = _Pool(offer.provider, offer.region, offer.instance_type, offer.capacity_type)
        for job in jobs:
            if any(want.admits(offer) for want in job.spec.resources.alternatives):
                largest = needs.get(pool)
                if largest is None or largest.count < job.spec.resources.num_nodes:
                    needs[pool] = need_of(offer, job.spec.resources.num_nodes, job.spec.name)
        if not jobs or any(_is_refusal_of(refusal, pool) for refusal in market.refusals):
            needs.setdefault(pool, need_of(offer))
    by_provider: defaultdict[str, list[CapacityNeed]] = defaultdict(list)
    for pool, need in needs.items():
        by_provider[pool.provider].append(need)
    return dict(by_provider)


def _is_refusal_of(refusal: Refusal, pool: _Pool) -> bool:
    provider, region, _, kind, capacity = refusal.offer_key.split("/")
    key = (pool.provider, pool.region, pool.instance_type, pool.capacity_type.value)
    return refusal.code == NO_QUOTA and (provider, region, kind, capacity) == key


def lifted_refusals(
    findings_by_provider: FindingsByProvider, refusals: Iterable[Refusal]
) -> list[str]:
    """Return the offers refused for a quota of zero whose quota allows a machine now.

    A cloud may count one machine against several quotas: all of them have to allow it.
    """
    sufficient: set[_Pool] = set()
    insufficient: set[_Pool] = set()
    for provider, findings in findings_by_provider.items():
        for finding in findings:
            if finding.check != "quota":
                continue
            for need in finding.serves:
                sufficient.add(_Pool(provider, need.region, need.instance_type, need.capacity_type))
            for need in finding.lacks:
                insufficient.add(
                    _Pool(provider, need.region, need.instance_type, need.capacity_type)
                )
    return sorted(
        {
            refusal.offer_key
            for refusal in refusals
            if any(_is_refusal_of(refusal, pool) for pool in sufficient - insufficient)
        }
    )


def check_clouds(context: ApiContext, now_us: int) -> list[Check]:
    """Return each cloud's findings, and let offers whose quota is no longer zero be tried again."""
    try:
        jobs, market = context.store.jobs.rows(False), context.market(now_us)
    except StoreError:
        return []  # the database check reports it
    findings_by_provider = context.clouds.check_readiness(needs_of(jobs, market))
    lifted = lifted_refusals(findings_by_provider, market.refusals)
    if lifted:
        context.store.market.lift_refusals(NO_QUOTA, lifted, now_us)
    checks = [
        check
        for name, findings in findings_by_provider.items()
        for check in _checks(name, findings)
    ]
    checks += [
        Check(f"{key.partition('/')[0]} quota", True, f"there is quota now: {key} is tried again")
        for key in lifted
    ]
    return checks


def _checks(provider: str, findings: Sequence[Finding]) -> Iterator[Check]:
    """Yield the checks of one cloud.

    A quota that is too small is a failure only where no quota of the cloud is large enough.
    """
    has_large_enough_quota = any(
        finding.check == "quota" and finding.grade is Grade.OK for finding in findings
    )
    for finding in _grouped_by_place(findings):
        grade = finding.grade
        if finding.check == "quota" and has_large_enough_quota and grade is Grade.FAIL:
            grade = Grade.WARN
        name = " ".join(filter(None, (provider, finding.region, finding.check)))
        yield Check(name, grade is not Grade.FAIL, finding.text, finding.fix, grade is Grade.WARN)


def _grouped_by_place(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings grouped by place, in the order of each place's first finding."""
    regions = list(dict.fromkeys(finding.region for finding in findings))
    return sorted(findings, key=lambda finding: regions.index(finding.region))


def check_jump_hosts(context: ApiContext) -> list[Check]:
    """Return one check for each provider with a jump host.

    A jump host passes when it answers with the pinned key, accepts the login, and forwards.
    """
    return [
        Check(f"jump host of {name}", ok, message, f"see jump in [providers.{name}] of config.toml")
        for name, (ok, message) in sorted(context.clouds.try_jump_hosts().items())
    ]


def check_provider_warnings(context: ApiContext) -> list[Check]:
    """Return one check for each warning.

    None is a failure by itself, because spotd continues in spite of it.
    """
    return [
        Check(
            f"answers of {name}", True, f"{_times(warning.times)}: {redactor.clean(warning.text)}"
        )
        for _, (name, warning) in sorted(context.clouds.provider_warnings().items())
    ]


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times} times"
