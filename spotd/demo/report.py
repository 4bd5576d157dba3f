"""The demo's report: report.json, an HTML page, two charts, and a table for the terminal."""

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

from providers.dollars import format_usd
from spotd.demo.facts import Recovery, final_losses, losses_by_generation
from spotd.demo.story import CHECKPOINT_EVERY_S, FAULTS, REPORT_EVERY_S, STEP_MS, ProgramExit
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.plots.attempt_timeline import Span, ribbon
from spotd.plots.loss_chart import Attempt, loss_picture
from spotd.store.checkpoints import CheckpointRow
from spotd.store.progress import ProgressRow
from spotd.wire import EXIT_FENCED

PREEMPTIONS = len(FAULTS)
# A death without notice loses the steps since the last save, and those not yet reported.
LOST_MAX_STEPS = (CHECKPOINT_EVERY_S + REPORT_EVERY_S) * 1000 // STEP_MS
# Generous for a busy computer, but far below the minutes that a forgotten machine would cost.
MAX_RELEASE_DELAY_S = 15.0


@dataclass(frozen=True)
class Evidence:
    """The records of both jobs after they have finished."""

    nodes: Sequence[Node]
    progress: Sequence[ProgressRow]
    checkpoints: Sequence[CheckpointRow]
    reference: Sequence[ProgressRow]
    preemptions: Sequence[Mapping[str, Any]]
    recoveries: Sequence[Recovery]
    weights_equal: bool
    zombie_exit: ProgramExit | None
    zombie_commits: int
    orphan_s: float
    release_delay_s: Mapping[str, float]
    cost: Mapping[str, Any]
    wall_s: float

    @property
    def losses_equal(self) -> bool:
        """Whether every step's loss equals that of the uninterrupted run, bit for bit."""
        losses, reference_losses = final_losses(self.progress), final_losses(self.reference)
        return bool(losses) and losses == reference_losses

    def proven(self) -> bool:
        """Return whether all checks passed."""
        return all(passed for passed, _ in checks(self))

    @property
    def zombie_fenced(self) -> bool:
        """Whether the revived machine was fenced."""
        return self.zombie_exit is not None and self.zombie_exit.code == EXIT_FENCED

    def to_json(self) -> dict[str, Any]:
        """Return the content of report.json."""
        return {
            "local": True,
            "preemptions": preemption_fields(self.recoveries),
            "weights_equal": self.weights_equal,
            "losses_equal": self.losses_equal,
            "steps": max(final_losses(self.progress), default=0),
            "zombie_commits_accepted": self.zombie_commits,
            "zombie_exit_code": self.zombie_exit.code if self.zombie_exit else None,
            "orphan_instance_seconds": self.orphan_s,
            "giving_back_s": self.release_delay_s,
            "giving_back_max_s": max(self.release_delay_s.values(), default=0.0),
            **cost_fields(self.cost),
            "wall_s": round(self.wall_s, 1),
            "proven": self.proven(),
        }


def preemption_fields(recoveries: Sequence[Recovery]) -> list[dict[str, Any]]:
    """Return the recoveries for report.json; times in seconds since the notice or the death."""
    return [
        {
            "cloud": recovery.cloud,
            "kind": recovery.kind,
            "notice_s": recovery.notice_s,
            "notice_to_request_s": recovery.request_s,
            "notice_to_instance_s": recovery.instance_s,
            "notice_to_ssh_s": recovery.ssh_s,
            "notice_to_ready_s": recovery.ready_s,
            "notice_to_first_step_s": recovery.first_step_s,
            "gap_s": recovery.gap_s,
            "steps_lost": recovery.steps_lost,
            "failed_over_to": recovery.to_cloud,
        }
        for recovery in recoveries
    ]


def cost_fields(cost: Mapping[str, Any]) -> dict[str, Any]:
    """Return the costs for report.json: paid, and for the same training on-demand."""
    return {
        "cost_usd": cost["spend_usd"],
        "on_demand_cost_usd": cost["on_demand_usd"],
        "on_demand_best_cost_usd": cost["on_demand_best_usd"],
        "on_demand_same_hours_usd": cost["list_usd"],
    }


def timeline_spans(evidence: Evidence) -> list[Span]:
    """Return the timeline of every machine that trained, starting at the first request."""
    trained = [node for node in evidence.nodes if node.training.first_step_at_us]
    begin_us = min(node.requested_at_us for node in trained)
    return [_span(node, begin_us, evidence) for node in trained]


def _span(node: Node, begin_us: int, evidence: Evidence) -> Span:
    def at(us: int) -> float:
        return (us - begin_us) / S

    progress_rows = [row for row in evidence.progress if row.generation == node.generation]
    preemption = next(
        (row for row in evidence.preemptions if row["instance_id"] == node.instance_id), None
    )
    steps_lost = next(
        (
            recovery.steps_lost
            for recovery in evidence.recoveries
            if recovery.generation == node.generation
        ),
        0,
    )
    noticed = preemption is not None and preemption["mode"] == "notice"
    zombie_exit = evidence.zombie_exit if preemption and preemption["thawed_at_us"] else None
    price = node.offer.price_microusd_per_h / 1e6
    return Span(
        label=f"g{node.generation} {node.offer.cloud} {node.offer.zone}",
        cloud=node.offer.cloud,
        asked_s=at(node.requested_at_us),
        first_s=at(min(row.first_at_us for row in progress_rows)),
        last_s=at(max(row.last_at_us for row in progress_rows)),
        ended_s=at(node.machine.gone_at_us or node.training.exited_at_us or node.agent.heard_at_us),
        notice_s=at(int(preemption["published_at_us"])) if preemption and noticed else None,
        died=preemption is not None and not noticed,
        lost_steps=steps_lost,
        checkpoints_s=tuple(
            at(row.committed_at_us)
            for row in evidence.checkpoints
            if row.generation == node.generation
        ),
        refused_s=at(zombie_exit.at_us) if zombie_exit and evidence.zombie_fenced else None,
        note=f"local machine, {format_usd(price)}/h {node.offer.capacity_type.value}",
    )


def charts(evidence: Evidence) -> dict[str, str]:
    """Return the charts as SVG by file name."""
    by_generation = {node.generation: node.offer for node in evidence.nodes}
    attempts = [
        Attempt(
            f"g{generation} {by_generation[generation].cloud}",
            by_generation[generation].cloud,
            losses,
        )
        for generation, losses in losses_by_generation(evidence.progress).items()
    ]
    reference = final_losses(evidence.reference)
    return {
        "ribbon.svg": ribbon("One job on four machines (local clouds)", timeline_spans(evidence)),
        "loss.svg": loss_picture("Loss over steps, across preemptions", attempts, reference),
    }


def write_report(folder: Path, evidence: Evidence) -> None:
    """Write report.json, report.html (self-contained), ribbon.svg and loss.svg."""
    images = charts(evidence)
    for name, text in images.items():
        (folder / name).write_text(text)
    data = json.dumps(evidence.to_json(), indent=2) + "\n"
    (folder / "report.json").write_text(data)
    (folder / "report.html").write_text(_page(evidence, list(images.values()), data))


HEADINGS = ("machine", "lost by", "request", "instance", "SSH", "1st step", "gap", "lost")


def recovery_rows(recoveries: Sequence[Recovery]) -> list[tuple[str, ...]]:
    """Return the cells of the table of recoveries, in the order of HEADINGS."""
    return [
        (
            f"g{recovery.generation} {recovery.cloud} → {recovery.to_cloud}",
            f"{recovery.notice_s:.0f} s notice" if recovery.kind == "notice" else "sudden death",
            f"{recovery.request_s:.2f}",
            f"{recovery.instance_s:.2f}",
            f"{recovery.ssh_s:.2f}",
            f"{recovery.first_step_s:.2f}",
            f"{recovery.gap_s:.2f}",
            str(recovery.steps_lost),
        )
        for recovery in recoveries
    ]


def recovery_table(recoveries: Sequence[Recovery]) -> Table:
    """Return the table of recoveries for the terminal."""
    title = "recoveries, in seconds since the notice or the death"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in HEADINGS:
        is_number = heading not in HEADINGS[:2]
        justify: JustifyMethod = "right" if is_number else "left"
        table.add_column(heading, justify=justify, no_wrap=True, min_width=len(heading))
    for row in recovery_rows(recoveries):
        table.add_row(*row)
    return table


def checks(evidence: Evidence) -> list[tuple[bool, str]]:
    """Return the checks as (passed, text)."""
    commits, orphan_s = evidence.zombie_commits, evidence.orphan_s
    slowest_s = max(evidence.release_delay_s.values(), default=0.0)
    recovered = len(evidence.recoveries)
    steps = max(final_losses(evidence.progress), default=0)
    lost_with_notice = sum(
        recovery.steps_lost for recovery in evidence.recoveries if recovery.kind == "notice"
    )
    lost_by_death = max(
        (recovery.steps_lost for recovery in evidence.recoveries if recovery.kind == "death"),
        default=0,
    )
    return [
        (
            recovered == PREEMPTIONS,
            f"{recovered} of {PREEMPTIONS} machines that were taken away were replaced",
        ),
        (
            evidence.weights_equal,
            "final weights and optimizer equal the uninterrupted run's, bit for bit",
        ),
        (evidence.losses_equal, f"so do the losses of all {steps} steps"),
        (lost_with_notice == 0, f"{lost_with_notice} steps lost after a notice"),
        (
            lost_by_death <= LOST_MAX_STEPS,
            (
                f"{lost_by_death} steps lost after a sudden death: "
                f"at most {LOST_MAX_STEPS} since a checkpoint"
            ),
        ),
        (
            commits == 0 and evidence.zombie_fenced,
            f"the frozen machine woke up and was fenced: {commits} commits accepted",
        ),
        (orphan_s == 0, f"{orphan_s:g} machine-seconds leaked, by the clouds' own records"),
        (
            slowest_s <= MAX_RELEASE_DELAY_S,
            f"machines that were no longer needed ended within {slowest_s:.2f} s",
        ),
    ]


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222;
  max-width: 1072px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: right }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }
ul { list-style: none; padding: 0 } svg { max-width: 100%; height: auto }
.ok { color: #007a5a } .no { color: #b3261e } summary { cursor: pointer }
pre { background: #f6f6f6; padding: 1em; white-space: pre-wrap; overflow-wrap: anywhere }
.wide { overflow-x: auto } * { box-sizing: border-box }
"""


def _page(evidence: Evidence, svgs: Sequence[str], data: str) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in recovery_rows(evidence.recoveries)
    )
    check_items = "".join(
        f"<li class={'ok' if passed else 'no'}>{'✔' if passed else '✘'} {escape(text)}</li>"
        for passed, text in checks(evidence)
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>spotd demo</title>"
        "<meta name=viewport content='width=device-width'>"
        f"<style>{_STYLE}</style><h1>One job, four machines, three clouds</h1>"
        "<p>Real daemon, real SSH, real training; the clouds are processes on one machine.</p>"
        f"<ul>{check_items}</ul>{svgs[0]}"
        "<h2>Recoveries</h2><p>Seconds since the notice was published, or the machine died; "
        "the gap is how long nobody trained; lost are steps trained twice.</p>"
        f"<div class=wide><table><tr>{head}</tr>{body}</table></div>{svgs[1]}"
        f"<h2>Money</h2><p>{escape(_money(evidence))}</p>"
        f"<details><summary>report.json</summary><pre>{escape(data)}</pre></details></html>\n"
    )


def _money(evidence: Evidence) -> str:
    """Describe the cost, and both costs on-demand."""
    cost = evidence.cost
    return (
        f"{format_usd(cost['spend_usd'])} paid; the same training on demand: "
        f"{format_usd(cost['on_demand_usd'])} "
        f"at the prices of the places it moved to, {format_usd(cost['on_demand_best_usd'])} in the "
        "cheapest place (made-up prices: nothing was rented)"
    )


def summary_lines(evidence: Evidence) -> list[str]:
    """Return the checks, the cost and the time, for the terminal."""
    check_lines = [f"{'✔' if passed else '✘'} {text}" for passed, text in checks(evidence)]
    time_text = (
        f"{evidence.wall_s:.0f} s for the preempted job, and additional time for the "
        "uninterrupted one"
    )
    return [*check_lines, _money(evidence), time_text]
