"""Report of an interruption test, computed from the daemon's record of the job. Pure.

Times are by the daemon's clock, in seconds since the notice was received. The delay of the notice
itself is counted from the request for an interruption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from providers.dollars import format_usd
from spotd.base.live_reports import RECOVERY_KIND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Milestone:
    """An expected event; `seconds` is None if it did not happen."""

    name: str
    text: str = ""
    seconds: float | None = None


@dataclass
class TestObservations:
    """Everything observed during an interruption test.

    `job` is the newest API object of the job, `node_id` the machine that the cloud was asked to
    interrupt, and `requested_at_s` the Unix time of that request. `request_text` describes the call
    and its answer, and `fee_usd` is the most that the cloud charges for it. `saves` are the
    checkpoints in order, and `resumed_step` is the step at which the replacement resumed.
    """

    job: Row = field(default_factory=dict)
    node_id: str = ""
    requested_at_s: float = 0.0
    request_text: str = ""
    fee_usd: float = 0.0
    saves: list[Row] = field(default_factory=list)
    resumed_step: int | None = None
    cost: Row = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)  # messages for the report

    @property
    def interrupted_node(self) -> Row:
        """The machine to be interrupted; {} if not yet known."""
        return next((node for node in self._nodes() if node["id"] == self.node_id), {})

    @property
    def replacement(self) -> Row:
        """The machine that continues the job, or is starting; {} if there is none."""
        if not self.interrupted_node:
            return {}
        generation = int(self.interrupted_node["generation"])
        candidates = [
            node
            for node in self._nodes()
            if node["generation"] > generation and not node["launch_error"]
        ]
        trained = [node for node in candidates if node["first_step_at"]]
        newest_first = sorted(candidates, key=lambda node: -node["generation"])
        return next(iter([*trained, *newest_first]), {})

    @property
    def notice(self) -> Row:
        """The first notice that ends the machine; {} before one arrives.

        Both the machine and its cloud may report the same interruption.
        """
        notices = [
            notice
            for notice in self.interrupted_node.get("notices", ())
            if notice["kind"] != "rebalance" and not notice["withdrawn"]
        ]
        return min(notices, key=_received_at, default={})

    @property
    def final_save(self) -> Row:
        """The last checkpoint that the machine committed after the notice; {} if none."""
        received_s = unix_seconds(self.notice.get("heard_at"))
        generation = self.interrupted_node.get("generation")
        saves = [
            save
            for save in self.saves
            if save["generation"] == generation
            and received_s
            and unix_seconds(save["at"]) >= received_s
        ]
        return max(saves, key=lambda save: int(save["step"]), default={})

    @property
    def steps_lost(self) -> int | None:
        """Number of steps that were trained twice; None if not yet known."""
        if self.resumed_step is None or not self.replacement.get("first_step_at"):
            return None
        return max(0, int(self.interrupted_node.get("step", 0)) - self.resumed_step)

    def _nodes(self) -> Sequence[Row]:
        nodes: Sequence[Row] = self.job.get("nodes", ())
        return nodes


def milestones(observations: TestObservations) -> list[Milestone]:
    """Return all milestones in the expected order; those not reached have no seconds."""
    interrupted, replacement = observations.interrupted_node, observations.replacement
    notice, final_save = observations.notice, observations.final_save
    received_s = unix_seconds(notice.get("heard_at"))
    lead_s = unix_seconds(notice.get("deadline")) - received_s if notice.get("deadline") else None
    lead_text = "no deadline known" if lead_s is None else f"{lead_s:.1f} s before the end"

    def since(row: Row, key: str) -> float | None:
        at_s = unix_seconds(row.get(key))
        return round(at_s - received_s, 3) if at_s and received_s else None

    saved_s, released_s = since(final_save, "at"), since(interrupted, "released_at")
    if saved_s is not None and released_s is not None:
        # HEAD is released with the save or after it, but the two reports may arrive in any order.
        saved_s = min(saved_s, released_s)
    location = f"{replacement['zone']} {replacement['instance_type']}" if replacement else ""
    lost_text = f"{observations.steps_lost} of {interrupted.get('step')} steps lost"
    resume_text = f"from step {observations.resumed_step}; {lost_text}"
    notice_delay_s = round(received_s - observations.requested_at_s, 3) if received_s else None
    return [
        Milestone(
            "notice heard",
            f"{lead_text}, by {notice.get('source') or 'the machine'}",
            notice_delay_s,
        ),
        Milestone("saved", f"step {final_save.get('step')}", saved_s),
        Milestone("released", "", released_s),
        Milestone("replacement requested", location, since(replacement, "requested_at")),
        Milestone("replacement there", location, since(replacement, "launched_at")),
        Milestone("agent's hello", "", since(replacement, "hello_at")),
        Milestone("prepared, set up", "", since(replacement, "ready_at")),
        Milestone("trains again", resume_text, since(replacement, "first_step_at")),
        Milestone(
            "old machine gone", interrupted.get("leave_reason") or "", since(interrupted, "gone_at")
        ),
    ]


def build_report(observations: TestObservations, cloud: str, at: str) -> dict[str, Any]:
    """Return the report that is stored as JSON. `at` is the time of the test, ISO 8601."""
    reached = milestones(observations)
    interrupted, notice = observations.interrupted_node, observations.notice
    missing = [
        f"{milestone.name}: it did not happen" for milestone in reached if milestone.seconds is None
    ]
    failures = [*observations.failures, *missing]
    received_s, deadline_s = (unix_seconds(notice.get(key)) for key in ("heard_at", "deadline"))
    return {
        "apiVersion": "spotd/v1",
        "kind": RECOVERY_KIND,
        "cloud": cloud,
        "at": at,
        "ok": not failures,
        "job": {key: observations.job.get(key) for key in ("id", "name", "phase", "outcome_text")},
        "asked": observations.request_text,
        "from": _location(interrupted),
        "to": _location(observations.replacement),
        "notice_lead_s": round(deadline_s - received_s, 3) if deadline_s and received_s else None,
        "milestones": [
            {
                "name": milestone.name,
                "seconds": milestone.seconds,
                "text": milestone.text if milestone.seconds else "",
            }
            for milestone in reached
        ],
        "saved_step": observations.final_save.get("step"),
        "reached_step": interrupted.get("step"),
        "resumed_step": observations.resumed_step,
        "steps_lost": observations.steps_lost,
        "cost_usd": observations.cost.get("spend_usd"),
        "interruption_usd": observations.fee_usd,
        "on_demand_usd": observations.cost.get("list_usd"),
        "machines": [
            {**_location(node), "paid_hours": node["paid_hours"], "cost_usd": node["spend_usd"]}
            for node in observations.cost.get("nodes", ())
        ],
        "failed": failures,
    }


def render_markdown(report: Row) -> str:
    """Render a report of `build_report` as Markdown."""
    verdict = "the job continued" if report["ok"] else "**failed**"
    interrupted = report["from"]
    machine = (
        f"{interrupted['instance_type']} in {interrupted['zone']}" if interrupted else "no machine"
    )
    cost_usd, on_demand_usd = report["cost_usd"], report["on_demand_usd"]
    lines = [
        f"# {report['cloud']}, a recovery, live, {report['at']}",
        "",
        f"{machine}, interrupted by {report['asked'] or 'nothing'}: {verdict}.",
        "",
        "| | seconds since the notice | |",
        "|---|---|---|",
    ]
    for number, milestone in enumerate(report["milestones"]):
        seconds = "—" if milestone["seconds"] is None else f"{milestone['seconds']:.1f}"
        seconds += " (since it was requested)" if number == 0 and milestone["seconds"] else ""
        lines.append(f"| {milestone['name']} | {seconds} | {milestone['text']} |")
    money = (
        "not known"
        if cost_usd is None
        else f"{format_usd(cost_usd)} (on demand: {format_usd(on_demand_usd)})"
    )
    lines += [
        "",
        f"Steps lost: {_number_text(report['steps_lost'])}. Cost of the machines: {money}.",
    ]
    if report["interruption_usd"]:
        lines[-1] += f" The interruption: up to {format_usd(report['interruption_usd'])}, by list."
    for node in report["machines"]:
        hours, usd = node["paid_hours"], node["cost_usd"]
        lines.append(f"- {node['zone']} {node['instance_type']}: {hours:.3f} h, {format_usd(usd)}")
    if report["failed"]:
        lines += ["", "What failed:", *(f"- {text}" for text in report["failed"])]
    return "\n".join(lines) + "\n"


def unix_seconds(moment: str | None) -> float:
    """Convert an ISO 8601 time of the API to Unix time; 0.0 for None."""
    return (datetime.fromisoformat(moment) - _EPOCH).total_seconds() if moment else 0.0


def _received_at(notice: Row) -> str:
    return str(notice["heard_at"])


def _number_text(number: int | None) -> str:
    return "not known" if number is None else str(number)


def _location(node: Row) -> dict[str, Any]:
    keys = ("provider", "region", "zone", "instance_type", "capacity_type", "local")
    return {key: node[key] for key in keys if key in node}
