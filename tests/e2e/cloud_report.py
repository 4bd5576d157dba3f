"""What `make demo-clouds` proves and measures, from what is on record: the daemon's rows, the
clouds' own books, HEAD as it was seen from the outside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from spotd.demo.facts import Recovery, final_losses
from spotd.demo.report import MAX_RELEASE_DELAY_S, cost_fields, preemption_fields
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.store.progress import ProgressRow

CLOUDS = ("aws", "gcp", "azure")


@dataclass(frozen=True)
class Evidence:
    """Everything about the job and the uninterrupted one (of that: the loss of each step) when both
    had finished. `left` is what
    there still is of machines, by the books of each cloud and by processes; `jumps` are log-ins at
    the jump hosts of clouds whose machines are behind one."""

    nodes: Sequence[Node]
    progress: Sequence[ProgressRow]
    reference: Mapping[int, float]
    recoveries: Sequence[Recovery]
    weights_equal: bool
    zombie_commits: int
    orphan_s: float
    giving_back_s: Mapping[str, float]
    left: Mapping[str, Sequence[str]]
    jumps: Mapping[str, int]
    cost: Mapping[str, Any]
    wall_s: float

    @property
    def losses_equal(self) -> bool:
        """Every step's loss, bit for bit, that of the uninterrupted run."""
        ours = final_losses(self.progress)
        return bool(ours) and ours == self.reference

    @property
    def trained(self) -> list[Node]:
        """Machines that took a step, in the order of their generations."""
        found = [node for node in self.nodes if node.training.first_step_at_us]
        return sorted(found, key=lambda node: node.generation)

    def proven(self) -> bool:
        return all(good for good, _ in self.verdicts())

    def verdicts(self) -> list[tuple[bool, str]]:
        """What was to be proven, and whether it is."""
        order = tuple(node.offer.cloud for node in self.trained)
        lost = sum(r.steps_lost for r in self.recoveries)
        left = sum(map(len, self.left.values()))
        slowest_s = max(self.giving_back_s.values(), default=0.0)
        steps = max(final_losses(self.progress), default=0)
        return [
            (order == CLOUDS, f"it trained on {', then on '.join(order)}"),
            (len(self.recoveries) == 2, f"{len(self.recoveries)} of 2 reclaimed machines replaced"),
            (
                self.weights_equal,
                "final weights and optimizer equal the uninterrupted run's, bit for bit",
            ),
            (self.losses_equal, f"so do the losses of all {steps} steps"),
            (lost == 0, f"{lost} steps lost to the two notices"),
            (self.zombie_commits == 0, f"{self.zombie_commits} commits of a machine that was left"),
            *(
                (times > 0, f"{name}'s machines have no address outside: all through its jump host")
                for name, times in self.jumps.items()
            ),
            (left == 0, f"{left} machines left in AWS, Google Cloud and Azure"),
            (
                self.orphan_s == 0,
                f"{self.orphan_s:g} machine-seconds leaked, by the clouds' own records",
            ),
            (
                slowest_s <= MAX_RELEASE_DELAY_S,
                f"machines that were no longer needed ended within {slowest_s:.2f} s",
            ),
        ]

    def clouds(self) -> dict[str, dict[str, Any]]:
        """Of each cloud: seconds from our request to the agent's hello, and from the notice on the
        machine before to the first step on this one; None where there was no notice."""
        notices = {r.to_cloud: r.first_step_s for r in self.recoveries}
        return {
            node.offer.cloud: {
                "instance_type": node.offer.instance_type,
                "zone": node.offer.zone,
                "request_to_instance_s": _since(node.machine.launched_at_us, node),
                "request_to_hello_s": _since(node.startup.hello_at_us, node),
                "request_to_ready_s": _since(node.startup.ready_at_us, node),
                "notice_to_first_step_s": notices.get(node.offer.cloud),
            }
            for node in self.trained
        }

    def to_json(self) -> dict[str, Any]:
        """report.json, with the names of the local demo's; no machine froze here."""
        return {
            "local": True,
            "preemptions": preemption_fields(self.recoveries),
            "clouds": self.clouds(),
            "weights_equal": self.weights_equal,
            "losses_equal": self.losses_equal,
            "steps": max(final_losses(self.progress), default=0),
            "zombie_commits_accepted": self.zombie_commits,
            "zombie_exit_code": None,
            "behind_a_jump_host": sorted(self.jumps),
            "machines_left": {name: len(found) for name, found in self.left.items()},
            "orphan_instance_seconds": self.orphan_s,
            "giving_back_s": self.giving_back_s,
            "giving_back_max_s": max(self.giving_back_s.values(), default=0.0),
            **cost_fields(self.cost),
            "wall_s": round(self.wall_s, 1),
            "proven": self.proven(),
        }

    def write(self, folder: Path) -> None:
        """report.json."""
        (folder / "report.json").write_text(json.dumps(self.to_json(), indent=2) + "\n")


def _since(at_us: int, node: Node) -> float:
    return round((at_us - node.requested_at_us) / S, 3)


def table(evidence: Evidence) -> Table:
    """The figures of each cloud for the terminal."""
    drawn = Table(
        title="in seconds; the gap is without training, lost are steps",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    drawn.add_column("machine", no_wrap=True)
    for heading in ("request → hello", "notice → 1st step", "gap", "lost"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    after = {r.to_cloud: r for r in evidence.recoveries}
    for name, row in evidence.clouds().items():
        found = after.get(name)
        told = (
            [f"{found.first_step_s:.2f}", f"{found.gap_s:.2f}", str(found.steps_lost)]
            if found
            else ["", "", ""]
        )
        drawn.add_row(f"{name} {row['zone']}", f"{row['request_to_hello_s']:.2f}", *told)
    return drawn
