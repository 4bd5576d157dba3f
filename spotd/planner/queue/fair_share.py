"""Order the jobs that wait for room under the limits: by priority, then fair share, then age.

The commit calls `no_room` under its lock (store/limits.py), so that of two daemons only one takes
the last room. A refused job enters the queue and keeps its place as long as it asks again. A job
further back does not take the room that a job ahead is still collecting, so no job starves;
unused room costs nothing.

Fair share is recent use, of a project and of a user within it:

    U(t) = sum over machines of  rate * integral of 2^(-(t - x) / H) dx  over the time they ran

in micro-USD, H = 24 h, nothing older than 7 d. Jobs without a project are one project.

A job of higher priority takes machines from jobs of lower priority if nothing else makes room;
`taken` selects them. They are asked to save, and drain once spotd itself has read in HEAD that they
did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp2, log

from providers.dollars import format_microusd
from spotd.domain.events import Severity
from spotd.domain.job import Desired
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.queue import Limits, QueueEntry, QueueSnapshot, ResourceHolder
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import US_PER_H, S
from spotd.planner.core.gangs import size_of
from spotd.planner.core.next_effect import may_write
from spotd.planner.core.plan_builder import PlanBuilder, place

HALF_LIFE_US = 24 * US_PER_H
USE_US = 7 * 24 * US_PER_H  # how far back use counts
KEPT_US = (
    120 * S
)  # a place in the queue is reserved for so long after its job last requested; it does each 15 s
PATIENCE_US = 60 * S  # in line, before machines of others are taken
TRAINS_US = 600 * S  # so long has a job trained before its machines are taken: it gets somewhere
COOLDOWN_US = 3600 * S  # and so long is it left alone after it gave them: two do not alternate
SAVE_US = 600 * S  # for a job to save before it is left alone


def use_of_late(rate_microusd_per_h: int, start_us: int, end_us: int, now_us: int) -> int:
    """Return what a machine at that rate adds to U(now), in micro-USD."""
    start_us, end_us = max(start_us, now_us - USE_US), min(end_us, now_us)
    if end_us <= start_us:
        return 0
    last, first = (exp2((at_us - now_us) / HALF_LIFE_US) for at_us in (end_us, start_us))
    return round(rate_microusd_per_h * HALF_LIFE_US / US_PER_H / log(2) * (last - first))


# --- who gets the room


def sort_key(entry: QueueEntry) -> tuple[int, tuple[int, int], int, str]:
    """Return priority, then fair share, then age; lower is earlier."""
    return -entry.priority, entry.used_microusd, entry.created_at_us, entry.job_id


def in_order(entries: Iterable[QueueEntry]) -> tuple[QueueEntry, ...]:
    """Return the entries in the order of the queue."""
    return tuple(sorted(entries, key=sort_key))


@dataclass(frozen=True)
class ResourceAmount:
    """Machines, micro-USD an hour, and machines of one project: in use, or lacking."""

    nodes: int = 0
    microusd_per_h: int = 0
    of_project: int = 0

    @property
    def some(self) -> bool:
        return self.nodes > 0 or self.microusd_per_h > 0 or self.of_project > 0

    def plus(
        self, other: QueueEntry | ResourceHolder, project: str, sign: int = 1
    ) -> ResourceAmount:
        mine = other.nodes if other.project == project else 0
        return ResourceAmount(
            self.nodes + sign * other.nodes,
            self.microusd_per_h + sign * other.microusd_per_h,
            self.of_project + sign * mine,
        )


def _short(limits: Limits, use: ResourceAmount, turn: QueueEntry) -> ResourceAmount:
    """Return what `turn` lacks beside the given use; nothing without a limit."""
    wanted, most = use.plus(turn, turn.project), limits.projects.get(turn.project)
    return ResourceAmount(
        wanted.nodes - limits.max_nodes if limits.max_nodes else 0,
        wanted.microusd_per_h - limits.max_microusd_per_h if limits.max_microusd_per_h else 0,
        wanted.of_project - most if most else 0,
    )


def no_room(
    limits: Limits, nodes: int, microusd_per_h: int, line: QueueSnapshot, turn: QueueEntry
) -> str:
    """Return why `turn` may not launch now: a limit, or entries ahead of it; "" if it may.

    `nodes` and `microusd_per_h` are in use.
    """
    ahead = _ahead(limits, line, turn)
    use = ResourceAmount(nodes, microusd_per_h, line.nodes_of(turn.project))
    short = _short(limits, use, turn)
    if short.some:
        return _limit_text(limits, use, turn, short) + _others(ahead)
    remaining = use
    for one in ahead:
        remaining = remaining.plus(one, turn.project)
    if not _short(limits, remaining, turn).some:
        return ""
    return (
        f"the room is reserved for {named(ahead[0])}, ahead by {ahead_by(ahead[0], turn)}: wait "
        "until it has its machines, or raise the limits"
    )


def _ahead(limits: Limits, line: QueueSnapshot, turn: QueueEntry) -> list[QueueEntry]:
    """Return the entries before `turn` for which room is reserved.

    An entry is left out if it could not launch even with everything free, or if its own project's
    limit is the obstacle.
    """
    entries: list[QueueEntry] = []
    for one in line.waiting:
        if one.job_id == turn.job_id or sort_key(one) > sort_key(turn):
            continue
        in_project = line.nodes_of(one.project)
        in_project += sum(other.nodes for other in entries if other.project == one.project)
        if not _short(limits, ResourceAmount(), one).some:
            full = _short(limits, ResourceAmount(of_project=in_project), one).of_project > 0
            entries += [] if full else [one]
    return entries


def _limit_text(
    limits: Limits, use: ResourceAmount, turn: QueueEntry, short: ResourceAmount
) -> str:
    if short.nodes > 0:
        return (
            f"limits.max_nodes is {limits.max_nodes} and {use.nodes} are in use: wait until one "
            "has ended, or raise the limit"
        )
    if short.microusd_per_h > 0:
        rate = use.microusd_per_h + turn.microusd_per_h
        return (
            f"limits.max_usd_per_hour is {format_microusd(limits.max_microusd_per_h)}, and this "
            f"would make it {format_microusd(rate)}: wait until a machine has ended, or raise the "
            "limit"
        )
    return (
        f"projects.{turn.project}.max_nodes is {limits.projects[turn.project]} and "
        f"{use.of_project} are in use: wait until one has ended, or raise the limit"
    )


def _others(ahead: Sequence[QueueEntry]) -> str:
    more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    return f"; ahead of it: {named(ahead[0])}{more}" if ahead else ""


def named(turn: QueueEntry) -> str:
    """Return the job's name as people know it."""
    return f"{turn.name} (priority {turn.priority})"


def ahead_by(first: QueueEntry, turn: QueueEntry) -> str:
    """Return why `first` comes before `turn`."""
    if first.priority != turn.priority:
        return f"priority (this one has {turn.priority})"
    if first.used_microusd != turn.used_microusd:
        used, mine = (one.used_microusd for one in (first, turn))
        which = int(used[0] == mine[0])
        whose = ("project", "user")[which]
        return (
            f"fair share: its {whose} used {format_microusd(used[which])} recently, this one's "
            f"{format_microusd(mine[which])}"
        )
    return "age"


# --- who gives it


def taken(
    limits: Limits, nodes: int, microusd_per_h: int, line: QueueSnapshot, now_us: int
) -> tuple[QueueEntry, tuple[ResourceHolder, ...]] | None:
    """Return the first entry that gets room only from jobs of lower priority, and those jobs.

    As few as suffice, the lowest priority first, and among equals the one that began last. None if
    room exists, comes by itself, or would not suffice even with all of them.
    """
    for turn in line.waiting:
        if _short(limits, ResourceAmount(), turn).some:
            continue  # not to be had if nobody had any
        use = ResourceAmount(nodes, microusd_per_h, line.nodes_of(turn.project))
        for one in line.holding:
            going = replace(one, nodes=one.leaving_nodes, microusd_per_h=one.leaving_microusd_per_h)
            use = use.plus(going, turn.project, -1)
        short = _short(limits, use, turn)
        if not short.some or now_us - turn.since_us < PATIENCE_US:
            return None
        holders = _enough(limits, use, turn, line, now_us)
        if holders:
            return turn, holders
        if short.of_project <= 0:
            return None  # who is behind does not take what this one waits for
    return None


def _enough(
    limits: Limits, use: ResourceAmount, turn: QueueEntry, line: QueueSnapshot, now_us: int
) -> tuple[ResourceHolder, ...]:
    """Return the holders that have to give up their machines, or none."""

    def do(givers: Sequence[ResourceHolder]) -> bool:
        left = use
        for giver in givers:
            left = left.plus(giver, turn.project, -1)
        return not _short(limits, left, turn).some

    able = [one for one in line.holding if _may_give(one, turn, now_us)]
    able.sort(
        key=lambda one: (
            one.yields_to != turn.job_id,
            one.priority,
            -one.trains_since_us,
            one.job_id,
        )
    )
    holders: list[ResourceHolder] = []
    for one in able:
        if not do(holders):
            holders.append(one)
    if not do(holders):
        return ()
    for one in holders[::-1]:
        rest = [other for other in holders if other is not one]
        holders = rest if do(rest) else holders
    return tuple(holders)


def _may_give(one: ResourceHolder, turn: QueueEntry, now_us: int) -> bool:
    lower = one.priority < turn.priority and not one.leaving_nodes
    settled = bool(one.trains_since_us) and now_us - one.trains_since_us >= TRAINS_US
    rested = not one.yielded_at_us or now_us - one.yielded_at_us >= COOLDOWN_US
    return lower and settled and rested


def _taken_now(market: Market, now_us: int) -> tuple[QueueEntry, tuple[ResourceHolder, ...]] | None:
    """`taken`, of what the market knows of limits, use and queue."""
    use = market.use
    return taken(use.limits, use.nodes, use.microusd_per_h, market.queue.snapshot, now_us)


def givers(market: Market, now_us: int) -> list[str]:
    """Return the jobs that have to give up their machines now: a periodic task makes them due."""
    holders = taken(
        market.use.limits,
        market.use.nodes,
        market.use.microusd_per_h,
        market.queue.snapshot,
        now_us,
    )
    return [one.job_id for one in holders[1]] if holders else []


# --- in a pass


def stand_in_line(d: PlanBuilder, microusd_per_h: int) -> None:
    """The limits have no room for the job now."""
    if d.job.queue.yields_to:
        name = d.market.queue.snapshot.name_of(d.job.queue.yields_to)
        d.add_reason(f"its machines went to {name}")
    d.set_job(
        room_since_us=d.job.queue.room_since_us or d.now_us,
        room_asked_us=d.now_us,
        room_microusd_per_h=microusd_per_h,
    )
    holders = _taken_now(d.market, d.now_us)
    if holders and holders[0].job_id == d.job.id:
        names = ", ".join(f"{one.name} (priority {one.priority})" for one in holders[1])
        d.add_reason(f"{names} saves first, then gives its machines away")


def leave_line(d: PlanBuilder, *, placed: bool = False) -> None:
    """Take the job out of the queue; with `placed` it has got its room."""
    d.set_job(room_since_us=0, room_asked_us=0, room_microusd_per_h=0)
    if placed:
        d.set_job(yields_to="")


def giving(d: PlanBuilder) -> bool:
    """Return whether the job's machines drain for another job; it requests none before they
    have."""
    since_us = d.job.queue.yielded_at_us
    gives = bool(since_us) and any(
        n.state is NodeState.DRAINING and n.departure.drained_at_us == since_us for n in d.nodes
    )
    if gives:
        d.add_reason(f"its machines go to {d.market.queue.snapshot.name_of(d.job.queue.yields_to)}")
    return gives


def give_way(d: PlanBuilder) -> None:
    """A job of higher priority waits for the room of this one: save, then drain."""
    market, since_us = d.market, d.job.queue.yields_since_us
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    holders = _taken_now(market, d.now_us)
    mine = holders is not None and any(one.job_id == d.job.id for one in holders[1])
    requested = not d.ended and d.job.desired is Desired.RUN and not d.job.end.stop_text
    if holders is None or not mine or not requested or not _whole(d, running):
        if since_us:
            d.set_job(yields_to="", yields_since_us=0)
        return
    turn = holders[0]
    if not since_us or d.job.queue.yields_to != turn.job_id:
        d.set_job(yields_to=turn.job_id, yields_since_us=d.now_us, save_wanted_at_us=d.now_us)
        d.event("yield_asked", f"saving: {named(turn)} waits for its machines", running[0])
    elif (step := _saved(d, since_us)) is not None:
        _drain(d, running, turn, step)
        return
    elif d.now_us - since_us >= SAVE_US:
        d.set_job(yields_to="", yields_since_us=0, yielded_at_us=d.now_us)
        message = f"{d.job.name} saved nothing in {SAVE_US // S} s: {turn.name} keeps waiting"
        d.event("yield_in_vain", message, running[0], severity=Severity.WARNING, alert=True)
        return
    d.add_reason(f"saving before its machines go to {named(turn)}")
    d.wake_at(min(d.job.queue.yields_since_us + SAVE_US, d.now_us + 15 * S))


def _whole(d: PlanBuilder, running: Sequence[Node]) -> bool:
    size = size_of(running[0], d.job.spec) if running else d.job.spec.resources.num_nodes
    whole = len(running) >= size and all(may_write(node) for node in running)
    return whole and len([node for node in d.nodes if node.active]) == len(running)


def _saved(d: PlanBuilder, since_us: int) -> int | None:
    """The step to which HEAD moved since, where spotd read that itself."""
    head = d.job.head
    if head is None or head.generation != d.job.generation:
        return None
    return head.step if since_us < head.seen_at_us <= head.read_at_us else None


def _drain(d: PlanBuilder, running: Sequence[Node], turn: QueueEntry, step: int) -> None:
    message = f"its room goes to {named(turn)}"
    for node in running:
        d.drain(node, LeaveReason.CANCELLED, message)
    d.set_job(yields_since_us=0, yielded_at_us=d.now_us)
    text = (
        f"{d.job.name} (priority {d.job.spec.queue.priority}) gives {place(running[0])} to "
        f"{named(turn)}: step {step} is saved, and it continues from its last save when there "
        "is room"
    )
    d.event(
        "yielded",
        text,
        running[0],
        severity=Severity.WARNING,
        alert=True,
        to=turn.job_id,
        step=step,
    )
