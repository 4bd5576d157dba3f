"""What a rehearsal showed: from the daemon's own record of the job, pure.

Seconds are counted by the daemon's clock, from the moment that the notice was heard, but for that
itself, which is counted from the request for an interruption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from spotd.base.live_reports import RECOVERY_KIND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Milestone:
    """One thing that had to happen. `seconds` None: it did not."""

    name: str
    text: str = ""
    seconds: float | None = None


@dataclass
class TestObservations:
    """What is known of a rehearsal: the job as the daemon tells it, and what was seen on the way.
    `asked_s` is when the cloud was asked (unix time), `asked` what it answered, `fee_usd` what it
    takes for that at most; `node_id` is the machine that it was asked to take; `saves` are
    checkpoints as they came; `resumed_step` is where the next machine began."""

    job: Row = field(default_factory=dict)
    node_id: str = ""
    asked_s: float = 0.0
    asked: str = ""
    fee_usd: float = 0.0
    saves: list[Row] = field(default_factory=list)
    resumed_step: int | None = None
    cost: Row = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)  # what went wrong, in words

    @property
    def old(self) -> Row:
        """The machine that was to be taken; {} before it is known."""
        return next((n for n in self._nodes() if n["id"] == self.node_id), {})

    @property
    def new(self) -> Row:
        """The machine that went on, or is on its way; {} while there is none."""
        if not self.old:
            return {}
        after = int(self.old["generation"])
        later = [n for n in self._nodes() if n["generation"] > after and not n["launch_error"]]
        trained = [n for n in later if n["first_step_at"]]
        return next(iter([*trained, *sorted(later, key=lambda n: -n["generation"])]), {})

    @property
    def notice(self) -> Row:
        """The first that was heard of those that take the machine away, which the machine itself
        and its cloud may both tell; {} before."""
        told = [n for n in self.old.get("notices", ()) if n["kind"] != "rebalance"]
        return min((n for n in told if not n["withdrawn"]), key=_heard, default={})

    @property
    def save(self) -> Row:
        """The last that the machine committed after its notice."""
        heard_s = seconds_of(self.notice.get("heard_at"))
        own = [s for s in self.saves if s["generation"] == self.old.get("generation")]
        later = [s for s in own if heard_s and seconds_of(s["at"]) >= heard_s]
        return max(later, key=lambda s: int(s["step"]), default={})

    @property
    def steps_lost(self) -> int | None:
        """Steps that were trained twice; None before it is known."""
        if self.resumed_step is None or not self.new.get("first_step_at"):
            return None
        return max(0, int(self.old.get("step", 0)) - self.resumed_step)

    def _nodes(self) -> Sequence[Row]:
        nodes: Sequence[Row] = self.job.get("nodes", ())
        return nodes


def milestones(seen: TestObservations) -> list[Milestone]:
    """In the order in which they are to be; those that have not been, without seconds."""
    old, new, notice, save = seen.old, seen.new, seen.notice, seen.save
    heard_s = seconds_of(notice.get("heard_at"))
    lead_s = seconds_of(notice.get("deadline")) - heard_s if notice.get("deadline") else None
    lead = "no deadline told" if lead_s is None else f"{lead_s:.1f} s before the end"

    def since(row: Row, key: str) -> float | None:
        at_s = seconds_of(row.get(key))
        return round(at_s - heard_s, 3) if at_s and heard_s else None

    saved_s, released_s = since(save, "at"), since(old, "released_at")
    if saved_s is not None and released_s is not None:
        # HEAD is given away with the save or after it; two processes tell of it, in either order.
        saved_s = min(saved_s, released_s)
    place = f"{new['zone']} {new['instance_type']}" if new else ""
    lost = f"from step {seen.resumed_step}; {seen.steps_lost} of {old.get('step')} steps lost"
    asked_s = round(heard_s - seen.asked_s, 3) if heard_s else None
    return [
        Milestone("notice heard", f"{lead}, by {notice.get('source') or 'the machine'}", asked_s),
        Milestone("saved", f"step {save.get('step')}", saved_s),
        Milestone("released", "", released_s),
        Milestone("replacement requested", place, since(new, "requested_at")),
        Milestone("replacement there", place, since(new, "launched_at")),
        Milestone("agent's hello", "", since(new, "hello_at")),
        Milestone("prepared, set up", "", since(new, "ready_at")),
        Milestone("trains again", lost, since(new, "first_step_at")),
        Milestone("old machine gone", old.get("leave_reason") or "", since(old, "gone_at")),
    ]


def report_of(seen: TestObservations, cloud: str, at: str) -> dict[str, Any]:
    """What is kept of it."""
    marks, old, notice = milestones(seen), seen.old, seen.notice
    missing = [f"{mark.name}: it did not happen" for mark in marks if mark.seconds is None]
    wrong = [*seen.failed, *missing]
    heard_s, deadline_s = (seconds_of(notice.get(key)) for key in ("heard_at", "deadline"))
    return {
        "apiVersion": "spotd/v1",
        "kind": RECOVERY_KIND,
        "cloud": cloud,
        "at": at,
        "ok": not wrong,
        "job": {key: seen.job.get(key) for key in ("id", "name", "phase", "outcome_text")},
        "asked": seen.asked,
        "from": _place(old),
        "to": _place(seen.new),
        "notice_lead_s": round(deadline_s - heard_s, 3) if deadline_s and heard_s else None,
        "milestones": [
            {"name": mark.name, "seconds": mark.seconds, "text": mark.text if mark.seconds else ""}
            for mark in marks
        ],
        "saved_step": seen.save.get("step"),
        "reached_step": old.get("step"),
        "resumed_step": seen.resumed_step,
        "steps_lost": seen.steps_lost,
        "cost_usd": seen.cost.get("spend_usd"),
        "interruption_usd": seen.fee_usd,
        "on_demand_usd": seen.cost.get("list_usd"),
        "machines": [
            {**_place(row), "paid_hours": row["paid_hours"], "cost_usd": row["spend_usd"]}
            for row in seen.cost.get("nodes", ())
        ],
        "failed": wrong,
    }


def page_of(report: Row) -> str:
    """The same for people, in Markdown."""
    verdict = "the job went on" if report["ok"] else "**failed**"
    old = report["from"]
    where = f"{old['instance_type']} in {old['zone']}" if old else "no machine"
    paid, listed = report["cost_usd"], report["on_demand_usd"]
    lines = [
        f"# {report['cloud']}, a recovery, live, {report['at']}",
        "",
        f"{where}, taken by {report['asked'] or 'nobody'}: {verdict}.",
        "",
        "| | seconds since the notice | |",
        "|---|---|---|",
    ]
    for number, mark in enumerate(report["milestones"]):
        seconds = "—" if mark["seconds"] is None else f"{mark['seconds']:.1f}"
        seconds += " (since it was asked for)" if number == 0 and mark["seconds"] else ""
        lines.append(f"| {mark['name']} | {seconds} | {mark['text']} |")
    money = "not known" if paid is None else f"{paid:.4f} USD (on demand: {listed:.4f} USD)"
    lines += ["", f"Steps lost: {_known(report['steps_lost'])}. Cost of the machines: {money}."]
    if report["interruption_usd"]:
        lines[-1] += f" The interruption: up to {report['interruption_usd']:.2f} USD, by list."
    for row in report["machines"]:
        hours, usd = row["paid_hours"], row["cost_usd"]
        lines.append(f"- {row['zone']} {row['instance_type']}: {hours:.3f} h, {usd:.4f} USD")
    if report["failed"]:
        lines += ["", "What failed:", *(f"- {text}" for text in report["failed"])]
    return "\n".join(lines) + "\n"


def seconds_of(moment: str | None) -> float:
    """Unix time of a moment as the API tells it; 0.0 for none."""
    return (datetime.fromisoformat(moment) - _EPOCH).total_seconds() if moment else 0.0


def _heard(notice: Row) -> str:
    return str(notice["heard_at"])


def _known(number: int | None) -> str:
    return "not known" if number is None else str(number)


def _place(node: Row) -> dict[str, Any]:
    keys = ("provider", "region", "zone", "instance_type", "capacity_type", "local")
    return {key: node[key] for key in keys if key in node}
