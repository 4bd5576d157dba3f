"""The cost report of jobs: line items that add up to the ledger, hours by use, counterfactuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spotd.money.counterfactual import (
    AS_IS,
    NEEDED,
    SAME,
    Counterfactual,
    PaidTotals,
    added,
    counterfactuals,
    known_together,
)
from spotd.money.hour_breakdown import (
    END_US,
    Machine,
    Save,
    Segment,
    Span,
    Steps,
    TimeUse,
    split_segment,
    timeline,
    trained,
)
from spotd.money.units import GpuHours, NodeHours, per_hour


class Kind(str, Enum):
    """The kind of a line item."""

    COMPUTE = "compute"
    STORAGE = "storage"
    EGRESS = "egress"
    CONTROL = "control"


@dataclass(frozen=True)
class Item:
    """One line.

    `quantity` is in `unit`; for compute, machine hours. `estimated`: by prices and times, not
    confirmed by an invoice.
    """

    kind: Kind
    phase: str
    what: str
    quantity: float
    unit: str
    cost_microusd: int
    estimated: bool = True
    hedge_lost: bool = False
    cloud: str = ""  # whose it is, or whose price list it is by; "": nobody's

    @classmethod
    def egress(cls, what: str, gb: float, cost_microusd: int, cloud: str) -> Item:
        """Return the line of `gb` that left a cloud."""
        return cls(Kind.EGRESS, "egress", what, gb, "GB", cost_microusd, cloud=cloud)


@dataclass(frozen=True)
class Account:
    """The record of one job.

    `extras` are line items beside machines, `unknown` what the record cannot say, in words. `spans`
    replaces `steps`: how each machine's time was used. `script` is the same by generation, for a
    program that reports no steps, as far as its saves tell. `no_result`: it failed or kept nothing.
    """

    job_id: str
    name: str
    user: str
    num_nodes: int
    machines: tuple[Machine, ...]
    steps: tuple[Steps, ...] = ()
    saves: tuple[Save, ...] = ()
    extras: tuple[Item, ...] = ()
    unknown: tuple[str, ...] = ()
    spans: tuple[tuple[Span, ...], ...] = ()
    project: str = ""
    script: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    no_result: bool = False


@dataclass
class Report:
    """Sums over one job, or several. Time and money by use add up to those of all machines."""

    job_id: str = ""
    name: str = ""
    user: str = ""
    project: str = ""
    uses: dict[TimeUse, NodeHours] = field(default_factory=dict)
    gpu_uses: dict[TimeUse, GpuHours] = field(default_factory=dict)
    costs: dict[TimeUse, int] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    prepaid: NodeHours = field(default_factory=NodeHours)
    hedge_losers: int = 0
    hedge: NodeHours = field(default_factory=NodeHours)
    hedge_microusd: int = 0
    invoiced_microusd: int = 0  # of the total, what invoices have confirmed
    running: bool = False
    instead: list[Counterfactual] = field(default_factory=list)
    known: list[Counterfactual] = field(default_factory=list)  # of the jobs that are known to save
    unknown: list[str] = field(default_factory=list)

    @property
    def told(self) -> Counterfactual | None:
        """Return what the saving is told by: the same work on demand, in the same places.

        None where the work is not known, none of it survives, or it had no result. This is the one
        definition of a saving, for every view.
        """
        return known_together(self.known)

    @property
    def discount(self) -> float | None:
        """Return how far the hours paid for were below their on-demand price; None if unknown."""
        same = (item for item in self.instead if (item.name, item.basis) == (AS_IS, SAME))
        return next((item.discount for item in same), None)

    @property
    def total_microusd(self) -> int:
        return sum(item.cost_microusd for item in self.items)

    @property
    def billed(self) -> NodeHours:
        return NodeHours(sum(time.us for time in self.uses.values()))

    @property
    def gpu_hours(self) -> GpuHours:
        return GpuHours(sum(time.us for time in self.gpu_uses.values()))

    @property
    def useful(self) -> NodeHours:
        return self.uses.get(TimeUse.USEFUL, NodeHours())

    @property
    def useful_gpus(self) -> GpuHours:
        return self.gpu_uses.get(TimeUse.USEFUL, GpuHours())

    @property
    def microusd_per_useful_gpu_h(self) -> int | None:
        """Return everything paid per GPU-hour whose steps survive, or None.

        None if there is no such hour, or if some time is unknown, because some of it may have been
        useful.
        """
        if TimeUse.UNTOLD in self.uses:
            return None
        return per_hour(self.total_microusd, self.useful_gpus)

    @property
    def provisional(self) -> bool:
        """Return whether some of it is an estimate, or still running."""
        return self.running or any(item.estimated for item in self.items)

    def kind_microusd(self, kind: Kind) -> int:
        return sum(item.cost_microusd for item in self.items if item.kind is kind)


def report_of(account: Account, since_us: int = 0, until_us: int = END_US) -> Report:
    """Return what the job cost in that time. Reports of adjacent times add up."""
    report = Report(account.job_id, account.name, account.user, account.project)
    report.unknown += account.unknown
    compute = listed = best = 0
    paid_uses: dict[TimeUse, int] = {}
    for machine, spans in timed(account):
        cost, parts = 0, []
        for segment in machine.stretches:
            times, costs = split_segment(segment, spans, since_us, until_us)
            if not times and not costs:
                continue
            parts.append(segment)
            _count(report, machine, times, costs)
            report.running |= segment.running and segment.end_us <= until_us
            spent = sum(costs.values())
            cost += spent
            if segment.reconciled:
                report.invoiced_microusd += spent
            if segment.prepaid:
                report.prepaid += NodeHours(sum(times.values()))
                continue
            compute += spent
            listed += segment.at_rate(segment.list_rate_microusd_per_h, since_us, until_us)
            best += segment.at_rate(segment.best_rate_microusd_per_h, since_us, until_us)
            for use, us in times.items():
                paid_uses[use] = paid_uses.get(use, 0) + us
        if parts:
            report.items.append(_item(machine, parts, cost, since_us, until_us))
            _hedge(report, machine, report.items[-1])
    report.items += account.extras
    storage = report.kind_microusd(Kind.STORAGE)
    other = report.kind_microusd(Kind.EGRESS) + report.kind_microusd(Kind.CONTROL)
    start_us = _min_start_us(account)
    paid = PaidTotals(compute, storage, other, listed, best, paid_uses, start_us)
    report.instead = counterfactuals(paid)
    if not account.no_result and TimeUse.UNTOLD not in report.uses:
        needed = (item for item in report.instead if (item.name, item.basis) == (AS_IS, NEEDED))
        report.known = list(needed)
    return report


def timed(account: Account) -> list[tuple[Machine, Sequence[Span]]]:
    """Return each machine with the uses of its time."""
    if account.spans:
        return list(zip(account.machines, account.spans, strict=True))
    spans: Mapping[int, Sequence[Span]] = trained(account.steps, account.saves) or account.script
    steps_reported = bool(spans)
    return [
        (
            machine,
            timeline(
                machine,
                spans.get(machine.generation, ()),
                account.saves,
                steps_reported=steps_reported,
            ),
        )
        for machine in account.machines
    ]


def _count(
    report: Report, machine: Machine, times: dict[TimeUse, int], costs: dict[TimeUse, int]
) -> None:
    for use, us in times.items():
        report.uses[use] = report.uses.get(use, NodeHours()) + NodeHours(us)
        gpus = NodeHours(us).of_gpus(machine.gpus)
        report.gpu_uses[use] = report.gpu_uses.get(use, GpuHours()) + gpus
    for use, cost in costs.items():
        report.costs[use] = report.costs.get(use, 0) + cost


def _item(
    machine: Machine, parts: Sequence[Segment], cost: int, since_us: int, until_us: int
) -> Item:
    ends = [part.within(since_us, until_us) for part in parts]
    hours = NodeHours(sum(end - start for start, end in ends)).hours
    estimated = not all(part.reconciled or part.prepaid for part in parts)
    phase = machine.details.get("phase") or f"g{machine.generation}.{machine.rank}"
    what = machine.details.get("what", "")
    lost = machine.hedge_lost
    cloud = machine.details.get("cloud") or machine.details.get("provider", "")
    paid = (Kind.COMPUTE, phase, what, hours, "Hours", cost, estimated)
    return Item(*paid, hedge_lost=lost, cloud=cloud)


def _hedge(report: Report, machine: Machine, item: Item) -> None:
    if machine.hedge_lost:
        report.hedge_losers += 1
        report.hedge += NodeHours(round(item.quantity * 3.6e9))
        report.hedge_microusd += item.cost_microusd


def _min_start_us(account: Account) -> int:
    """Return the time of one start of all the job's machines.

    For each of them the shortest time that one needed until its first step.
    """
    starts = []
    for machine, spans in timed(account):
        first = next(
            (span for span in spans if span[2] in (TimeUse.USEFUL, TimeUse.REPLAYED)), None
        )
        if first is None or not machine.stretches or not machine.chosen:
            continue
        started_us = min(part.start_us for part in machine.stretches)
        boot_us = sum(
            max(0, min(to_us, first[0]) - max(from_us, started_us))
            for from_us, to_us, use in spans
            if use is TimeUse.STARTUP
        )
        starts.append(boot_us)
    return min(starts, default=0) * account.num_nodes


def together(reports: Sequence[Report]) -> Report:
    """Return all reports as one. Its total is their sum to the micro-dollar."""
    combined = Report()
    for report in reports:
        for use, us in report.uses.items():
            combined.uses[use] = combined.uses.get(use, NodeHours()) + us
        for use, gpus in report.gpu_uses.items():
            combined.gpu_uses[use] = combined.gpu_uses.get(use, GpuHours()) + gpus
        for use, cost in report.costs.items():
            combined.costs[use] = combined.costs.get(use, 0) + cost
        combined.items += report.items
        combined.prepaid += report.prepaid
        combined.hedge_losers += report.hedge_losers
        combined.hedge += report.hedge
        combined.hedge_microusd += report.hedge_microusd
        combined.invoiced_microusd += report.invoiced_microusd
        combined.running |= report.running
    combined.unknown = list(dict.fromkeys(text for report in reports for text in report.unknown))
    combined.instead = added([report.instead for report in reports])
    combined.known = [item for report in reports for item in report.known]
    return combined


SUMS = ("job", "user", "project", "provider", "day")


def by_name(reports: Sequence[Report], by: str) -> dict[str, int]:
    """Return micro-USD by "user", "project" or "provider"; each adds up to the total."""
    sums: dict[str, int] = {}
    for report in reports:
        for item in report.items:
            name = _provider(item) if by == "provider" else getattr(report, by)
            sums[name] = sums.get(name, 0) + item.cost_microusd
    return sums


def _provider(item: Item) -> str:
    return "control box" if item.kind is Kind.CONTROL else item.cloud


@dataclass(frozen=True)
class Claim:
    """A claimed total cost, baseline cost, and saving (a fraction)."""

    total_microusd: int
    baseline_microusd: int = 0
    saving: float = 0.0


@dataclass(frozen=True)
class Unexplained:
    """The part of a claim that no line item explains: of the total, and of the baseline."""

    total_microusd: int
    share: float
    baseline_microusd: int
    baseline_share: float
    saving: float | None  # that line items do explain


def unexplained(claim: Claim, report: Report) -> Unexplained:
    """Compare a claim with the same hours on-demand, by the same line items."""
    missing = claim.total_microusd - report.total_microusd
    share = missing / claim.total_microusd if claim.total_microusd else 0.0
    same = next(iter(report.instead), None)
    priced = same.total_microusd if same else 0
    over = max(0, claim.baseline_microusd - priced)
    over_share = over / claim.baseline_microusd if claim.baseline_microusd else 0.0
    return Unexplained(missing, share, over, over_share, same.bound if same else None)
