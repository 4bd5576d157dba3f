"""The demo's report: report.json for machines, a page and two pictures for people, a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table

from spotd.demo.facts import Recovery, lineage, losses_by_generation
from spotd.demo.story import EVERY_S, REPORT_S, STEP_MS, STRIKES, Ended
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.plots.attempt_timeline import Span, ribbon
from spotd.plots.loss_chart import Attempt, loss_picture
from spotd.store.interface import CheckpointRow, ProgressRow
from spotd.wire import EXIT_FENCED

TAKEN = len(STRIKES)
# A death without notice costs what came after the last save; one may still have been on its way.
LOST_MAX_STEPS = (EVERY_S + REPORT_S) * 1000 // STEP_MS
# Generous, for a box that is busy, and far from the minutes that a forgotten machine costs.
GIVING_BACK_MAX_S = 15.0


@dataclass(frozen=True)
class Evidence:
    """Everything on record about the two jobs when they had finished."""

    nodes: Sequence[Node]
    progress: Sequence[ProgressRow]
    checkpoints: Sequence[CheckpointRow]
    reference: Sequence[ProgressRow]
    takings: Sequence[Mapping[str, Any]]
    recoveries: Sequence[Recovery]
    weights_equal: bool
    zombie: Ended | None
    zombie_commits: int
    orphan_s: float
    giving_back_s: Mapping[str, float]
    cost: Mapping[str, Any]
    wall_s: float

    @property
    def losses_equal(self) -> bool:
        """Every step's loss, bit for bit, that of the uninterrupted run."""
        ours, theirs = lineage(self.progress), lineage(self.reference)
        return bool(ours) and ours == theirs

    def proven(self) -> bool:
        """Whether the demo shows what it set out to show: every verdict."""
        return all(good for good, _ in verdicts(self))

    @property
    def refused(self) -> bool:
        """The zombie was told that its place is taken."""
        return self.zombie is not None and self.zombie.code == EXIT_FENCED

    def to_json(self) -> dict[str, Any]:
        """report.json."""
        return {
            "local": True,
            "preemptions": preemptions(self.recoveries),
            "weights_equal": self.weights_equal,
            "losses_equal": self.losses_equal,
            "steps": max(lineage(self.progress), default=0),
            "zombie_commits_accepted": self.zombie_commits,
            "zombie_exit_code": self.zombie.code if self.zombie else None,
            "orphan_instance_seconds": self.orphan_s,
            "giving_back_s": self.giving_back_s,
            "giving_back_max_s": max(self.giving_back_s.values(), default=0.0),
            **money(self.cost),
            "wall_s": round(self.wall_s, 1),
            "proven": self.proven(),
        }


def preemptions(found: Sequence[Recovery]) -> list[dict[str, Any]]:
    """Of report.json: seconds since the notice, or since the death."""
    return [
        {
            "cloud": r.cloud,
            "kind": r.kind,
            "notice_s": r.notice_s,
            "notice_to_request_s": r.request_s,
            "notice_to_instance_s": r.instance_s,
            "notice_to_ssh_s": r.ssh_s,
            "notice_to_ready_s": r.ready_s,
            "notice_to_first_step_s": r.first_step_s,
            "gap_s": r.gap_s,
            "steps_lost": r.steps_lost,
            "failed_over_to": r.to_cloud,
        }
        for r in found
    ]


def money(cost: Mapping[str, Any]) -> dict[str, Any]:
    """Of report.json: what was paid, and what the same would have cost otherwise."""
    return {
        "cost_usd": cost["spend_usd"],
        "on_demand_cost_usd": cost["on_demand_usd"],
        "on_demand_best_cost_usd": cost["on_demand_best_usd"],
        "on_demand_same_hours_usd": cost["list_usd"],
    }


def spans(evidence: Evidence) -> list[Span]:
    """The rows of the ribbon: every machine that trained, from the first request on."""
    trained = [node for node in evidence.nodes if node.first_step_at_us]
    begin_us = min(node.requested_at_us for node in trained)
    return [_span(node, begin_us, evidence) for node in trained]


def _span(node: Node, begin_us: int, evidence: Evidence) -> Span:
    def at(us: int) -> float:
        return (us - begin_us) / S

    rows = [row for row in evidence.progress if row.generation == node.generation]
    taking = next((t for t in evidence.takings if t["instance_id"] == node.instance_id), None)
    lost = next((r.steps_lost for r in evidence.recoveries if r.generation == node.generation), 0)
    noticed = taking is not None and taking["mode"] == "notice"
    zombie = evidence.zombie if taking and taking["thawed_at_us"] else None
    price = node.offer.price_microusd_per_h / 1e6
    return Span(
        label=f"g{node.generation} {node.offer.cloud} {node.offer.zone}",
        cloud=node.offer.cloud,
        asked_s=at(node.requested_at_us),
        first_s=at(min(row.first_at_us for row in rows)),
        last_s=at(max(row.last_at_us for row in rows)),
        ended_s=at(node.gone_at_us or node.exited_at_us or node.heard_at_us),
        notice_s=at(int(taking["published_at_us"])) if taking and noticed else None,
        died=taking is not None and not noticed,
        lost_steps=lost,
        checkpoints_s=tuple(
            at(row.committed_at_us)
            for row in evidence.checkpoints
            if row.generation == node.generation
        ),
        refused_s=at(zombie.at_us) if zombie and evidence.refused else None,
        note=f"local machine, ${price:.2f}/h {node.offer.capacity_type.value}",
    )


def pictures(evidence: Evidence) -> dict[str, str]:
    """File name -> SVG."""
    by_generation = {node.generation: node.offer for node in evidence.nodes}
    attempts = [
        Attempt(f"g{g} {by_generation[g].cloud}", by_generation[g].cloud, losses)
        for g, losses in losses_by_generation(evidence.progress).items()
    ]
    reference = lineage(evidence.reference)
    return {
        "ribbon.svg": ribbon("One job on four machines (local clouds)", spans(evidence)),
        "loss.svg": loss_picture("Loss over steps, across preemptions", attempts, reference),
    }


def write_report(folder: Path, evidence: Evidence) -> None:
    """report.json, report.html (self-contained), ribbon.svg and loss.svg."""
    drawn = pictures(evidence)
    for name, text in drawn.items():
        (folder / name).write_text(text)
    data = json.dumps(evidence.to_json(), indent=2) + "\n"
    (folder / "report.json").write_text(data)
    (folder / "report.html").write_text(_page(evidence, list(drawn.values()), data))


HEADINGS = ("machine", "lost by", "asked", "instance", "SSH", "1st step", "gap", "lost")


def rows(found: Sequence[Recovery]) -> list[tuple[str, ...]]:
    """The table of recoveries as text; seconds since the notice or the death, and the gap in which
    nobody trained."""
    return [
        (
            f"g{r.generation} {r.cloud} → {r.to_cloud}",
            f"{r.notice_s:.0f} s notice" if r.kind == "notice" else "sudden death",
            f"{r.request_s:.2f}",
            f"{r.instance_s:.2f}",
            f"{r.ssh_s:.2f}",
            f"{r.first_step_s:.2f}",
            f"{r.gap_s:.2f}",
            str(r.steps_lost),
        )
        for r in found
    ]


def table(found: Sequence[Recovery]) -> Table:
    """The table for the terminal: the gap is how long nobody trained, lost is in steps."""
    title = "recoveries, in seconds since the notice or the death"
    drawn = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in HEADINGS:
        right = heading not in HEADINGS[:2]
        justify: JustifyMethod = "right" if right else "left"
        drawn.add_column(heading, justify=justify, no_wrap=True, min_width=len(heading))
    for row in rows(found):
        drawn.add_row(*row)
    return drawn


def verdicts(evidence: Evidence) -> list[tuple[bool, str]]:
    """What was to be proven, and whether it is."""
    commits, orphan_s = evidence.zombie_commits, evidence.orphan_s
    slowest_s = max(evidence.giving_back_s.values(), default=0.0)
    recovered = len(evidence.recoveries)
    steps = max(lineage(evidence.progress), default=0)
    noticed = sum(r.steps_lost for r in evidence.recoveries if r.kind == "notice")
    died = max((r.steps_lost for r in evidence.recoveries if r.kind == "death"), default=0)
    return [
        (recovered == TAKEN, f"{recovered} of {TAKEN} machines that were taken away were replaced"),
        (
            evidence.weights_equal,
            "final weights and optimizer equal the uninterrupted run's, bit for bit",
        ),
        (evidence.losses_equal, f"so do the losses of all {steps} steps"),
        (noticed == 0, f"{noticed} steps lost where there was a notice"),
        (
            died <= LOST_MAX_STEPS,
            f"{died} steps lost by a sudden death: at most {LOST_MAX_STEPS} since a checkpoint",
        ),
        (
            commits == 0 and evidence.refused,
            f"the frozen machine woke up and was fenced: {commits} commits accepted",
        ),
        (orphan_s == 0, f"{orphan_s:g} machine-seconds leaked, by the clouds' own meters"),
        (
            slowest_s <= GIVING_BACK_MAX_S,
            f"machines not wanted any more ended within {slowest_s:.2f} s",
        ),
    ]


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1040px; margin: 2em auto; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: right }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }
ul { list-style: none; padding: 0 } svg { max-width: 100%; height: auto }
.ok { color: #007a5a } .no { color: #b3261e } pre { background: #f6f6f6; padding: 1em }
"""


def _page(evidence: Evidence, drawn: Sequence[str], data: str) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(evidence.recoveries)
    )
    marks = "".join(
        f"<li class={'ok' if good else 'no'}>{'✔' if good else '✘'} {escape(text)}</li>"
        for good, text in verdicts(evidence)
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>spotd demo</title>"
        f"<style>{_STYLE}</style><h1>One job, four machines, three clouds</h1>"
        "<p>Real daemon, real SSH, real training; the clouds are processes on one machine.</p>"
        f"<ul>{marks}</ul>{drawn[0]}"
        "<h2>Recoveries</h2><p>Seconds since the notice was published, or the machine died; "
        "the gap is how long nobody trained; lost are steps trained twice.</p>"
        f"<table><tr>{head}</tr>{body}</table>{drawn[1]}<h2>Money</h2><p>{escape(_money(evidence))}</p>"
        f"<h2>report.json</h2><pre>{escape(data)}</pre></html>\n"
    )


def _money(evidence: Evidence) -> str:
    """What was paid, and both counterfactuals by name."""
    cost = evidence.cost
    return (
        f"${cost['spend_usd']:.2f} paid; the same training on demand: ${cost['on_demand_usd']:.2f} "
        f"at the prices of the places it fled to, ${cost['on_demand_best_usd']:.2f} in the "
        "cheapest place (pretend prices: nothing was rented)"
    )


def lines(evidence: Evidence) -> list[str]:
    """The verdicts, the money and the time, for the terminal."""
    marks = [f"{'✔' if good else '✘'} {text}" for good, text in verdicts(evidence)]
    took = f"{evidence.wall_s:.0f} s for the preempted job; the undisturbed one came on top"
    return [*marks, _money(evidence), took]
