"""What the store has on record of a job, as an account of money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from providers.egress import first_prices
from providers.storage import GB, storage_of
from spotd.decide.carriage import gb_microusd, place_of, store_of
from spotd.model import Job, LeaveReason, Market, Node, S
from spotd.money.report import Account, Item, Kind
from spotd.money.split import Machine, Save
from spotd.money.units import US_PER_H, cost_microusd, share_out
from spotd.serve.bill import all_reports
from spotd.store.base import CheckpointRow, SegmentRow, Store
from spotd.store.stretches import steps_of, stretch_of

MONTH_H = 730  # that storage is prorated by
NO_STEPS = (
    "of {name} no steps are on record (none reported, or no longer kept): what its hours "
    "went into is untold, and savings are for the same hours"
)
NO_STORE_PRICE = "what {name}'s checkpoints cost in {store} is not known: no price is listed"
NO_BOX = "what the control box costs is not known: [money] control_box_usd_per_hour is not set"
NO_EGRESS = "what {name}'s checkpoints cost on their way from {place} to {store} is not known"


@dataclass(frozen=True)
class Window:
    """The time that a report is about, by our clock."""

    since_us: int
    until_us: int


@dataclass(frozen=True)
class Box:
    """What the control box costs, and the machine time of each job in the window that it is shared
    out by. 0: nobody has said."""

    microusd_per_h: int
    billed_us: Mapping[str, int]
    since_us: int  # of the first machine, or of the window

    def share(self, job_id: str, window: Window) -> int:
        """Micro-USD of one job; those of all jobs add up to what the box costs in that time."""
        jobs = sorted(self.billed_us)
        if job_id not in self.billed_us:
            return 0
        whole = cost_microusd(self.microusd_per_h, self.since_us, window.until_us)
        return share_out(whole, [self.billed_us[one] for one in jobs])[jobs.index(job_id)]


def box_of(rows: Sequence[SegmentRow], microusd_per_h: int, window: Window, now_us: int) -> Box:
    """Of all segments of the ledger."""
    billed: dict[str, int] = {}
    for row in rows:
        start_us, end_us = stretch_of(row, now_us).within(window.since_us, window.until_us)
        if row.state != "void" and end_us > start_us:
            billed[row.job_id] = billed.get(row.job_id, 0) + end_us - start_us
    first_us = min((row.start_us for row in rows if row.state != "void"), default=now_us)
    return Box(microusd_per_h, billed, max(first_us, window.since_us))


def account_of(
    store: Store, job: Job, market: Market, box: Box, window: Window, now_us: int
) -> Account:
    """Extras are those of the window; machines are whole."""
    nodes = store.job_nodes(job.id)
    segments = store.segments(job.id)
    progress = all_reports(store.progress(job.id), job.first_step_at_us)
    rows = store.checkpoints(job.id)
    extras, unknown = _extras(job, nodes, rows, market, window, now_us)
    share = box.share(job.id, window)
    if share:
        hours = box.billed_us[job.id] / US_PER_H
        what = "control box, shared by machine hours"
        extras.append(Item(Kind.CONTROL, "control", what, hours, "Hours", share))
    if not box.microusd_per_h:
        unknown.append(NO_BOX)
    if nodes and not progress and any(row.state != "void" for row in segments):
        unknown.insert(0, NO_STEPS.format(name=job.name))
    return Account(
        job.id,
        job.name,
        store.job_users([job.id]).get(job.id, ""),
        job.spec.num_nodes,
        tuple(
            _machine(node, [row for row in segments if row.node_id == node.id], now_us)
            for node in nodes
        ),
        steps=tuple(map(steps_of, progress)),
        saves=tuple(_save(row) for row in rows),
        extras=tuple(extras),
        unknown=tuple(unknown),
        project=job.spec.project,
    )


def _machine(node: Node, segments: Sequence[SegmentRow], now_us: int) -> Machine:
    lost = node.leave_reason is LeaveReason.HEDGE_LOST
    what = f"{node.offer.instance_type} {node.offer.capacity_type.value}"
    return Machine(
        node.id,
        node.generation,
        tuple(stretch_of(row, now_us) for row in segments if row.state != "void"),
        gpus=node.offer.accelerator_count,
        rank=node.rank,
        chosen=not lost and (node.chosen or bool(node.started_at_us)),
        hedge_lost=lost,
        ready_at_us=node.ready_at_us,
        claimed_at_us=node.claimed_at_us,
        ended_at_us=node.released_at_us or node.exited_at_us,
        details={"what": what, "node": node.id, **_details(node)},
    )


def _details(node: Node) -> dict[str, str]:
    """What exports say of a machine."""
    offer = node.offer
    taken = node.leave_reason in (LeaveReason.PREEMPTED, LeaveReason.LOST)
    return {
        "provider": offer.provider,
        "cloud": offer.cloud,
        "region": offer.region,
        "zone": offer.zone_id or offer.zone,
        "type": offer.instance_type,
        "capacity": offer.capacity_type.value,
        "reservation": offer.reservation,
        "accelerator": offer.accelerator,
        "instance_id": node.instance_id,
        "interrupted": "true" if taken else "false",
    }


def _save(row: CheckpointRow) -> Save:
    return Save(row.generation, row.step, round(row.stage_s * S), round(row.write_s * S))


def _extras(
    job: Job,
    nodes: Sequence[Node],
    rows: Sequence[CheckpointRow],
    market: Market,
    window: Window,
    now_us: int,
) -> tuple[list[Item], list[str]]:
    """Storage and egress of the job's checkpoints in that time, and what is not known of them."""
    sized = sorted((row for row in rows if row.bytes), key=lambda row: row.committed_at_us)
    if not sized:
        return [], []
    items, unknown = _storage(job, sized, window, now_us)
    more, missing = _egress(job, nodes, sized, market, window)
    return items + more, unknown + missing


def _storage(
    job: Job, rows: Sequence[CheckpointRow], window: Window, now_us: int
) -> tuple[list[Item], list[str]]:
    """Each checkpoint lies there from its commit until `keep` newer ones are committed."""
    url = job.spec.checkpoint.store
    price = storage_of(url)
    if price is None:
        local = url.startswith("file:")
        return [], [] if local else [NO_STORE_PRICE.format(name=job.name, store=url)]
    keep, gb_us = job.spec.checkpoint.keep, 0.0
    for number, row in enumerate(rows):
        newer = rows[number + keep].committed_at_us if number + keep < len(rows) else now_us
        from_us, to_us = max(row.committed_at_us, window.since_us), min(newer, window.until_us)
        gb_us += row.bytes / GB * max(0, to_us - from_us)
    months = gb_us / (MONTH_H * US_PER_H)
    cost = price.microusd_per_month(round(months * GB))
    what = f"checkpoints, {price.storage_class}, {price.region}, list price of {price.dated}"
    cloud = place_of(url, {}).cloud
    return [Item(Kind.STORAGE, "storage", what, months, "GB-Months", cost, cloud=cloud)], []


def _egress(
    job: Job,
    nodes: Sequence[Node],
    rows: Sequence[CheckpointRow],
    market: Market,
    window: Window,
) -> tuple[list[Item], list[str]]:
    """Every byte of a checkpoint that does not stay in its machine's region leaves it once, by the
    first tier's price."""
    place = store_of(job.spec, market)
    leaving = market.leaving or first_prices()
    first = {node.generation: node for node in nodes if node.rank == 0 and node.claimed_at_us}
    found: dict[tuple[str, str], tuple[float, int]] = {}
    unknown: list[str] = []
    for row in rows:
        node = first.get(row.generation)
        if (
            node is None
            or row.near_bytes >= row.bytes
            or not window.since_us <= row.committed_at_us < window.until_us
        ):
            continue
        price = gb_microusd(node.offer, place, leaving)
        where = f"{node.offer.provider}/{node.offer.region}"
        if price is None:
            url = job.spec.checkpoint.store
            unknown.append(NO_EGRESS.format(name=job.name, place=where, store=url))
        elif price:
            gb, cost = found.get((where, node.offer.cloud), (0.0, 0))
            size_gb = (row.bytes - row.near_bytes) / 1e9
            found[where, node.offer.cloud] = gb + size_gb, cost + round(size_gb * price)
    items = [
        Item(
            *(Kind.EGRESS, "egress", f"checkpoints out of {where}, list price", gb, "GB", cost),
            cloud=cloud,
        )
        for (where, cloud), (gb, cost) in found.items()
    ]
    return items, list(dict.fromkeys(unknown))
