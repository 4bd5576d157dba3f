"""Records of a demo that went well: four machines, a death and two notices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from providers.base import CapacityType, Offer
from spotd.demo.facts import recoveries
from spotd.demo.report import Evidence
from spotd.demo.story import ProgramExit
from spotd.domain.fast_replace import changed
from spotd.domain.node import MachineStatus, Node, NodeStartup, TrainingStatus
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store.checkpoints import CheckpointRow
from spotd.store.progress import ProgressRow

T0 = 1_000_000 * S
STEPS = 40  # a generation trains ten, one a second


def at(seconds: float) -> int:
    return T0 + int(seconds * S)


def node(generation: int, cloud: str, asked_s: float, first_s: float, **fields: Any) -> Node:
    offer = Offer(
        f"local-{cloud}", "r", f"{cloud}-1a", "big", CapacityType.SPOT, 14_000_000, 55_000_000
    )
    base = Node(
        id=f"j1-g{generation}",
        job_id="j1",
        generation=generation,
        rank=0,
        candidate=0,
        token=f"t{generation}",
        offer=replace(offer, cloud=cloud, local=True),
        state=NodeState.GONE,
        requested_at_us=at(asked_s),
        instance_id=f"i{generation}",
        startup=NodeStartup(hello_at_us=at(asked_s + 1), ready_at_us=at(asked_s + 2)),
        machine=MachineStatus(launched_at_us=at(asked_s + 0.5), gone_at_us=at(first_s + 12)),
        training=TrainingStatus(claimed_at_us=at(asked_s + 2.5), first_step_at_us=at(first_s)),
    )
    return changed(base, **fields)


NODES = [
    node(1, "aws", 0, 5),
    node(2, "gcp", 20, 24),
    node(3, "azure", 32, 36),
    node(4, "aws", 44, 48),
]


def progress(generation: int, first: int, began_s: float, **fields: Any) -> ProgressRow:
    """A report of ten steps, one per second."""
    last = first + 9
    losses = tuple(10 / step for step in range(first, last + 1))
    base = ProgressRow(generation, first, last, losses, at(began_s), at(began_s + 9), 10, 9.0)
    return replace(base, **fields)


# The first machine died at step 10, and 8 was its last checkpoint.
PROGRESS = [
    progress(1, 1, 5),
    progress(2, 9, 24),
    progress(3, 19, 36),
    progress(4, 29, 48),
]
REFERENCE = [progress(1, first, 100.0 + first) for first in (1, 11, 21)] + [
    progress(1, 29, 150),
]
CHECKPOINTS = [
    CheckpointRow("j1", 1, 8, "m8", 1, "cadence", False, False, at(12.5), 0.1, 0.2),
    CheckpointRow("j1", 2, 18, "m18", 1, "release", True, False, at(33.5), 0.1, 0.2),
]


def preemption(generation: int, mode: str, when_s: float, **fields: Any) -> dict[str, Any]:
    notice = mode == "notice"
    return {
        "instance_id": f"i{generation}",
        "mode": mode,
        "notice_s": 30.0 if notice else 0.0,
        "published_at_us": at(when_s) if notice else 0,
        "reclaimed_at_us": at(when_s + (30 if notice else 0)),
        "thawed_at_us": 0,
    } | fields


PREEMPTIONS = [
    preemption(1, "silent", 14.5, thawed_at_us=at(46)),
    preemption(2, "notice", 31),
    preemption(3, "notice", 43),
]


# The clouds' billing records: each request arrived a tenth of a second after the decision.
METER = [
    {"token": f"t{number}", "launched_at_us": node.requested_at_us + S // 10}
    for number, node in enumerate(NODES, start=1)
]


def evidence(**fields: Any) -> Evidence:
    base = Evidence(
        nodes=NODES,
        progress=PROGRESS,
        checkpoints=CHECKPOINTS,
        reference=REFERENCE,
        preemptions=PREEMPTIONS,
        recoveries=recoveries(NODES, PROGRESS, PREEMPTIONS, METER),
        weights_equal=True,
        zombie_exit=ProgramExit(76, at(46.5)),
        zombie_commits=0,
        orphan_s=0.0,
        release_delay_s={"j1-g1": 0.0, "j1-g2": 0.25},
        cost={"spend_usd": 0.25, "on_demand_usd": 1.0, "on_demand_best_usd": 0.6, "list_usd": 1.1},
        wall_s=123.4,
    )
    return replace(base, **fields)
