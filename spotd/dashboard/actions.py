"""Actions on a job's page: pause, resume, cancel and drill, each behind a confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.api_routes.operation import Operation
from spotd.base.errors import UserError
from spotd.base.text import money, span
from spotd.dashboard.components import PageContext, count
from spotd.dashboard.html import Child, Html, el, join
from spotd.domain.fault_drill import SAYS, DrillKind

Data = dict[str, Any]


@dataclass(frozen=True)
class Action:
    """One action.

    `fits` tells whether it makes sense for a job now. `consequences` lists what it does and costs,
    for the confirmation.
    """

    operation: Operation[...]
    title: str
    fits: Callable[[Data], bool]
    consequences: Callable[[PageContext, Data], list[Child]]


def _unfinished(job: Data, *desired: str) -> bool:
    return job["outcome"] is None and job["desired"] in desired


def _rented(job: Data) -> list[Data]:
    return [node for node in job["nodes"] if node["gone_at"] is None]


def _released(context: PageContext, job: Data) -> list[Child]:
    """Return what becomes of the machines and of the work that is not saved."""
    nodes = _rented(job)
    if not nodes:
        return ["It has no machine now."]
    rate = money(sum(node["price_usd_per_h"] for node in nodes))
    machines = count(len(nodes), "machine is", "machines are")
    saved: list[Child] = [f"Its program saves; then its {machines} terminated ({rate}/h)."]
    checkpoint = job["last_checkpoint"]
    if checkpoint is None:
        return [*saved, "Nothing is saved yet. If this save fails, all its work is lost."]
    steps = max(0, job["step"] - checkpoint["step"])
    since = context.age(checkpoint["at"])
    # A program that reports no steps has worked all the same.
    work = f", {count(steps, 'step')}" if steps else ""
    return [
        *saved,
        ("If this save fails, the work since the last one, ", since, f"{work}, is lost."),
    ]


def _pause(context: PageContext, job: Data) -> list[Child]:
    return [
        *_released(context, job),
        "Until it is resumed it rents nothing. Its checkpoints stay, at the price of their store.",
        "To continue, it needs an available machine, and the time to boot it.",
    ]


def _resume(_: PageContext, job: Data) -> list[Child]:
    checkpoint = job["last_checkpoint"]
    step = f"from step {checkpoint['step']:,}" if checkpoint else "from the beginning"
    before = max((node["generation"] for node in job["nodes"]), default=0)
    last = [node["price_usd_per_h"] for node in job["nodes"] if node["generation"] == before]
    price = f" Its last ones cost {money(sum(last))}/h." if last else " The price is not known."
    return [
        f"It rents {count(job['num_nodes'], 'machine')} again, at the prices of then.{price}",
        f"It continues {step}. If a budget is used up, this is refused.",
    ]


def _cancel(context: PageContext, job: Data) -> list[Child]:
    return [
        *_released(context, job),
        f"The job ends and cannot be resumed. It has cost {money(job['cost_usd'])}.",
        "Its checkpoints stay.",
    ]


def _drill(_: PageContext, job: Data) -> list[Child]:
    return [f"A fault is injected into {job['name']}, to see whether it recovers."]


ACTIONS: Mapping[str, Action] = {
    "pause": Action(routes.PAUSE_JOB, "Pause", lambda job: _unfinished(job, "run"), _pause),
    "resume": Action(routes.RESUME_JOB, "Resume", lambda job: _unfinished(job, "pause"), _resume),
    "cancel": Action(
        routes.CANCEL_JOB, "Cancel", lambda job: _unfinished(job, "run", "pause"), _cancel
    ),
    "drill": Action(
        routes.RUN_DRILL,
        "Drill",
        lambda job: _unfinished(job, "run") and job["phase"] == "running",
        _drill,
    ),
}


def links(context: PageContext, job: Data) -> Html | None:
    """Return links to the confirmations that this person may see; None where there are none."""
    if context.visitor is None:
        return None
    shown = [
        el("a", action.title, href=context.url("job", job["id"], name), cls="button")
        for name, action in ACTIONS.items()
        if name in context.visitor.allowed and action.fits(job)
    ]
    return el("p", *shown, cls="actions", id="actions") if shown else None


def confirmation(context: PageContext, name: str, job: Data, client: Client, kind: str) -> Html:
    """Return the page that says what an action does and costs, with the button that does it."""
    action = ACTIONS[name]
    back = el("a", f"Back to {job['name']}", href=context.url("job", job["id"]), cls="button")
    if not action.fits(job):
        text = f"There is nothing to {name}: {job['name']} is {job['phase']}."
        return join(el("p", text, cls="reason"), el("p", back))
    facts = action.consequences(context, job)
    fields: list[Html] = []
    if name == "drill":
        try:
            facts += _terms(client, job, kind)
        except UserError as error:
            refused = el("p", error.text, cls="reason")
            return join(_kinds(context, job, kind), refused, el("p", back))
        fields.append(el("input", type="hidden", name="kind", value=kind))
    visitor = context.visitor
    form = el(
        "form",
        el("input", type="hidden", name="csrf", value=visitor.csrf if visitor else ""),
        *fields,
        el("button", f"{action.title} {job['name']}", type="submit", id="confirm", cls="strong"),
        " ",
        back,
        method="post",
        action=context.url("job", job["id"], name),
    )
    choice = _kinds(context, job, kind) if name == "drill" else None
    return join(choice, el("ul", *(el("li", fact) for fact in facts)), form)


def _terms(client: Client, job: Data, kind: str) -> list[Child]:
    """Return what a drill of that kind does and costs. Raises UserError where it would do harm."""
    terms = client.call(routes.DRILL_TERMS(job=job["id"]), query={"kind": kind})
    return [
        f"{terms['what'][:1].upper()}{terms['what'][1:]}.",
        f"It costs at most {money(terms['most_usd'])}.",
        f"It passes if the job trains again within {span(terms['within_s'])}.",
    ]


def _kinds(context: PageContext, job: Data, chosen: str) -> Html:
    """Return the kinds of drills, of which one is chosen."""
    page = context.url("job", job["id"], "drill")
    items = (
        el(
            "li",
            el(
                "a",
                kind.value,
                href=f"{page}?kind={kind.value}",
                aria_current="true" if kind.value == chosen else None,
            ),
            f": {SAYS[kind]}",
        )
        for kind in DrillKind
    )
    return join(el("h2", "Fault"), el("ul", *items))


def perform(client: Client, name: str, job_id: str, form: Mapping[str, str]) -> None:
    """Perform a confirmed action with the rights of the client's person. Raises UserError."""
    body = {"kind": form.get("kind", "")} if name == "drill" else None
    client.call(ACTIONS[name].operation(job=job_id), body)
