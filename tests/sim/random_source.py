"""Any calls in any order: what chance, seeded, asks of a store."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from providers.base import (
    CapacityType,
    Instance,
    InstanceState,
    Notice,
    NoticeKind,
    Offer,
    OfferRequest,
    Scope,
)
from spotd.domain.events import AuditOutcome, Event, Severity
from spotd.domain.fast_replace import changed
from spotd.domain.health import HealthSpec
from spotd.domain.job import Attempt, Desired, HeadSnapshot, Job
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import AddNode, Change, ChangeJob, ChangeNode, OpenAttempt, Plan
from spotd.domain.queue import Limits
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.planner import decide
from spotd.store.audit import AuditRow
from spotd.store.interface import Store
from spotd.store.secrets import SecretRow
from spotd.store.users import DisabledUser
from spotd.wire import JOURNAL_KINDS
from tests.sim.memory_store import MemoryStore
from tests.spotd.store.build import NOW, Bell, instance, new_node, offer, said, spec, submission
from tests.spotd.store.conftest import DEPLOYMENT

JOBS = ("j0", "j1", "j2", "j3")
ZONES = ("aws-1a", "aws-1b", "gcp-1a")
EFFECTS = (EffectKind.BOOT, EffectKind.SURVEY, EffectKind.TERMINATE)
FINE_S = HealthSpec(checks=2, check_every_s=10.0)

Call = tuple[Any, ...]


class Chance:
    """Chooses calls that mean something to `store`, and many that do not."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.now_us = NOW
        self.submitted = 0
        self.seqs: dict[str, int] = {}
        self.old: list[View] = []

    def call(self) -> Call:
        """The name of a method of Store and its arguments. Time goes on, mostly."""
        self.now_us += self.random.choice((0, 1, 7, S, 5 * S, 40 * S, 400 * S, -3 * S))
        [maker] = self.random.choices(list(MAKERS), list(MAKERS.values()))
        return maker(self)

    # --- what chance chooses from

    @property
    def views(self) -> list[View]:
        return list(self.store.load_views(JOBS, self.now_us).values())

    @property
    def nodes(self) -> list[Node]:
        nodes = [node for job in JOBS for node in self.store.nodes.of_job(job)]
        return [*nodes, new_node("nobody")]

    def job(self) -> str:
        return self.random.choice((*JOBS, "nobody"))

    def node(self) -> Node:
        """Rather one of the last."""
        nodes = sorted(self.nodes, key=lambda node: node.state is not NodeState.GONE)
        return self.random.choice(nodes[-4:] if self.random.random() < 0.8 else nodes)

    def moment(self) -> int:
        return self.now_us - self.random.choice((0, 0, 0, S, 30 * S))

    def epoch(self) -> int:
        """Of the master key; now and then one that is not in force."""
        return self.store.secrets.key_state().epoch + (self.random.random() < 0.1)

    def text(self) -> str:
        return self.random.choice(("", "plain", "odd \x00 and ☃ \ud800"))

    def offers(self) -> list[Offer]:
        kinds = [CapacityType.SPOT, CapacityType.SPOT, CapacityType.ON_DEMAND]
        some = self.random.sample(ZONES, self.random.randint(0, 3))
        return [
            offer(zone, self.random.choice((8, 10, 12)), capacity_type=self.random.choice(kinds))
            for zone in [*some, *some[:1]]
        ]

    def instances(self) -> list[Instance]:
        known = [n for n in self.nodes if self.random.random() < 0.7]
        states = [*[InstanceState.RUNNING] * 4, *InstanceState]
        found = [
            instance(
                node,
                node.instance_id or f"i-{node.id}",
                state=self.random.choice(states),
                launched_at_us=self.random.choice((0, node.requested_at_us + S)),
                error_code=self.random.choice(("", "QuotaError", "nonsense")),
            )
            for node in known
        ]
        return [*found, *found[:1], *[replace(i, instance_id="i-other") for i in found[:1]]]


# --- calls


def _submit(c: Chance) -> Call:
    c.submitted += 1
    made = spec(
        f"name{c.random.randint(0, 5)}",
        alternatives=(OfferRequest(accelerator="H100"),),
        alerts=c.random.choice((("default",), (), ("ops", "ml"))),
        health=c.random.choice((HealthSpec(), FINE_S)),
        max_cost_microusd=c.random.choice((0, 0, 90_000_000)),
        candidates=c.random.choice((1, 2)),
        priority=c.random.choice((100, 500, 500)),
        project=c.random.choice(("", "llm")),
        checkpoint=replace(spec().checkpoint, engine=c.random.choice(("spotd", "none"))),
    )
    request = c.random.choice(("", "", f"r{c.submitted - 1}", f"r{c.submitted}"))
    new = submission(c.random.choice(JOBS), spec=made, request_id=request, secrets={"B": b"2"})
    user = ("dave", "dave", "alice", "bob")[c.submitted % 4]  # nobody shuts dave out
    new = replace(new, key_epoch=c.epoch(), user=user)
    return "jobs.submit", new, c.moment()


def _commit_decided(c: Chance) -> Call:
    """What the rules themselves decide."""
    market = c.store.market.load(c.now_us)
    market = changed(market, started_at_us=NOW, listening_since_us=NOW)
    return "commit_many", [(view, decide(view, market, c.now_us)) for view in c.views], c.now_us


def _commit_anything(c: Chance) -> Call:
    """Plans that no rule would make, broken ones and late ones among them."""
    views = c.views or [View(_foreign_job(), (), ())]
    c.old = [*c.old[-3:], *views]
    some = [c.random.choice(views if c.random.random() < 0.9 else c.old) for _ in range(2)]
    return "commit_many", [(view, _plan(c, view)) for view in some], c.now_us


def _foreign_job() -> Job:
    """A job that no store has."""
    store = MemoryStore(DEPLOYMENT, Bell())
    return store.jobs.submit(submission("nobody"), NOW)


def _plan(c: Chance, view: View) -> Plan:
    makers = [_change_node, _change_node, _change_job, _open, _open, _launch]
    chosen = [c.random.choice(makers) for _ in range(c.random.randint(0, 3))]
    changes = [change for maker in chosen for change in maker(c, view)]
    events = tuple(_event(c) for _ in range(c.random.randint(0, 2)))
    wake_us = c.random.choice((0, c.now_us, c.now_us + 30 * S))
    reason = c.random.choice(("waiting", c.text()))
    return Plan(tuple(changes), events, wake_us, reason, (reason, "more"))


def _change_node(c: Chance, view: View) -> list[Change]:
    if not view.nodes:
        return []
    node = c.random.choice(view.nodes)
    fields = {
        "state": c.random.choice(list(NodeState)),
        "chosen": c.random.random() < 0.6,
        "leave_reason": c.random.choice([None, *LeaveReason]),
        "left_at_us": c.moment(),
        "effect": c.random.choice([None, *EFFECTS]),
        "effect_armed_at_us": c.random.choice((0, node.requested_at_us, c.now_us)),
        "leave_text": c.text(),
    }
    names = c.random.sample(sorted(fields), c.random.randint(1, 3))
    return [ChangeNode(node.id, {name: fields[name] for name in names})]


def _change_job(c: Chance, view: View) -> list[Change]:
    if c.random.random() < 0.5:
        asked_us = c.random.choice((0, c.now_us, c.now_us - 90 * S))
        waits = {"room_since_us": asked_us, "room_asked_us": asked_us, "room_microusd_per_h": 9}
        return [ChangeJob({**waits, "yields_to": c.job(), "yielded_at_us": c.moment()})]
    outcome = c.random.choice([None, None, None, Outcome.FAILED])
    return [ChangeJob({"outcome": outcome, "outcome_text": c.text(), "failures": 1})]


def _open(c: Chance, view: View) -> list[Change]:
    number = view.job.generation + c.random.choice((1, 1, 1, 0))
    attempt = Attempt(view.job.id, number, c.now_us, "next")
    nodes = _launch(c, view, number) if c.random.random() < 0.8 else []
    return [OpenAttempt(attempt), ChangeJob({"generation": number}), *nodes]


def _launch(c: Chance, view: View, generation: int | None = None) -> list[Change]:
    number = c.random.randint(0, 5)
    return [
        AddNode(
            new_node(
                view.job.id,
                view.job.generation if generation is None else generation,
                number,
                rank=c.random.randint(0, 1),
                offer=offer(c.random.choice(ZONES), c.random.choice((8, 10, 12))),
                requested_at_us=c.now_us,
                port=9,  # nothing is known of a new node, whatever a plan says
            )
        )
    ]


def _event(c: Chance) -> Event:
    key = c.random.choice(("", "k1", "k2", c.text()))
    data: dict[str, object] = {"a": (1, None)} if c.random.random() < 0.3 else {}
    if c.random.random() < 0.05:
        data["cannot be stored"] = object()
    return Event("odd", c.text(), "n", Severity.WARNING, c.random.random() < 0.6, key, data)


def _journal(c: Chance) -> Call:
    batches = []
    for node in {node.id: node for node in (c.node(), c.node())}.values():
        first = max(c.seqs.get(node.id, 0) + c.random.choice((1, 1, 1, 0)), 1)
        entries = [_entry(c) for _ in range(c.random.randint(0, 4))]
        c.seqs[node.id] = first + len(entries) - 1
        batch = said(
            *entries,
            node_id=node.id,
            first=first,
            heard_at_us=c.moment(),
            generation=node.generation + (c.random.random() < 0.05),
        )
        late = tuple(replace(e, at_us=e.at_us - c.random.choice((0, 9 * S))) for e in batch.entries)
        batches.append(replace(batch, entries=late))
    return "journal.record", batches


def _entry(c: Chance) -> tuple[str, dict[str, Any]]:
    step = c.random.randint(0, 9)
    data = {
        "step": step,
        "manifest": f"m{step}",
        "from_step": step,
        "to_step": step + 1,
        "tokens": c.random.randint(0, 200),
        "busy_s": c.random.choice((0.0, 1.5, 2.0)),
        "losses": [0.5, 1 / 3],
        "notice_id": f"n{c.random.randint(0, 2)}",
        "kind": c.random.choice(("preempt", "rebalance", "doom")),
        "remaining_s": c.random.choice((None, 30.0, 120, -4)),
        "source": c.text(),
        "code": c.random.choice((0, 75, 1)),
        "tail": c.text(),
        "text": c.text(),
        "status": c.random.choice(("begin", "ok", "failed")),
        "full": c.random.random() < 0.5,
        "up": c.random.random() < 0.5,
        "released": c.random.random() < 0.3,
        "wire": 1,
    }
    kinds = [*sorted(JOURNAL_KINDS), *["progress"] * 20, *["notice", "notice_withdrawn"] * 2]
    return c.random.choice(kinds), data


def _head(c: Chance) -> Call:
    seen = HeadSnapshot(
        generation=c.random.randint(1, 3),
        step=c.random.randint(0, 9),
        manifest="m\x00",
        released=c.random.random() < 0.5,
        final=c.random.random() < 0.2,
        seen_at_us=c.moment(),
        read_at_us=c.random.choice((0, c.now_us)),
    )
    return "jobs.record_head", c.job(), seen


def _cloud_notices(c: Chance) -> Call:
    nodes = [c.node() for _ in range(2)]
    notices = [
        Notice(
            notice_id=f"n{c.random.randint(0, 2)}",
            kind=c.random.choice(list(NoticeKind)),
            deadline_us=c.random.choice((None, c.now_us + 60 * S)),
            source="queue",
            instance_id=node.instance_id,
        )
        for node in nodes
    ]
    return "instances.record_notices", nodes[0].offer.provider, notices, c.moment()


def _listing(c: Chance) -> Call:
    asked_us = c.moment()
    provider = c.random.choice(("aws", "gcp"))
    return "instances.record_listing", provider, c.instances(), asked_us, asked_us + S, 5.0


def _mark(c: Chance) -> Call:
    rows = c.store.alerts.due(c.now_us, 3)
    shown = [replace(row, repeats=max(1, row.repeats - c.random.randint(0, 1))) for row in rows]
    sent_us = c.random.choice((0, c.now_us))
    return "alerts.mark", shown, sent_us, c.now_us + 9 * S, c.text()


def _duty(c: Chance) -> Call:
    holder = c.random.choice(("me", "you"))
    if c.random.random() < 0.5:
        return (
            "leases.take_many",
            ("alerts", "prices", "sweep"),
            holder,
            partial(int, c.now_us),
            20 * S,
        )
    return (
        "leases.take",
        c.random.choice(("alerts", "sweep")),
        holder,
        partial(int, c.now_us),
        20 * S,
    )


def perform(store: Store, call: Call) -> object:
    """Make the call."""
    name, *args = call
    if name == "fenced":
        duty, epoch, inner = args
        return perform(store.fenced(duty, epoch), inner)
    return attrgetter(name)(store)(*args)


def _fenced(c: Chance) -> Call:
    """By who holds a duty, or held it."""
    makers = (
        _mark,
        _listing,
        lambda c: ("nodes.mark_silent_due", c.now_us),
        lambda c: ("leases.check", c.now_us),
    )
    duty = c.random.choice(("alerts", "sweep"))
    return "fenced", duty, c.random.choice((1, 2)), c.random.choice(makers)(c)


def _failure(c: Chance) -> Call:
    effect = c.random.choice(EFFECTS)
    return "nodes.record_effect_failed", c.node().id, effect, c.text(), c.moment(), 1.5


def _refusal(c: Chance) -> Call:
    scope, code = c.random.choice(list(Scope)), c.random.choice(("CapacityError", "QuotaError"))
    return "nodes.record_launch_refused", c.node().id, code, c.text(), scope, c.moment()


def _audited(c: Chance) -> AuditRow:
    outcome = c.random.choice(list(AuditOutcome))
    return AuditRow(c.moment(), 1000, "alice", "cancel", c.job(), outcome, c.text())


def _shut_out(c: Chance) -> DisabledUser:
    user, successor = c.random.sample(("alice", "bob", ""), 2)
    return DisabledUser(user or "carol", 1000, c.moment(), "root", successor)


def _limits(c: Chance) -> Limits:
    projects = c.random.choice(({}, {}, {"llm": 2}))
    return Limits(c.random.randint(0, 9), c.random.choice((0, 50_000_000)), projects)


MAKERS: dict[Callable[[Chance], Call], int] = {
    _submit: 6,
    _commit_decided: 12,
    _commit_anything: 16,
    _journal: 12,
    _listing: 8,
    _head: 2,
    _cloud_notices: 3,
    _mark: 3,
    _duty: 3,
    _fenced: 4,
    _failure: 3,
    _refusal: 3,
    lambda c: ("jobs.claim", c.now_us, "me", c.random.randint(1, 3), 10 * S): 6,
    lambda c: ("nodes.record_launched", c.node().id, f"i-{c.node().id}", c.moment()): 6,
    lambda c: ("nodes.record_absent", c.node().id, c.moment()): 2,
    lambda c: ("nodes.record_booted", c.node().id, c.moment()): 4,
    lambda c: (
        "nodes.record_acknowledged",
        c.node().id,
        c.random.choice(list(EffectKind)),
        c.now_us,
        "now",
    ): 4,
    lambda c: ("nodes.record_credential_lease", c.node().id, c.now_us, c.moment()): 2,
    lambda c: ("nodes.record_heartbeats", {c.node().id: c.moment(), c.node().id: c.moment()}): 4,
    lambda c: ("nodes.record_link", c.node().id, c.random.choice((0, c.moment()))): 4,
    lambda c: ("market.record_offers", c.random.choice(("aws", "gcp")), c.offers(), c.moment()): 5,
    lambda c: ("market.record_provider", "aws", c.random.choice(("", "", c.text())), c.moment()): 2,
    lambda c: ("jobs.set_desired", c.job(), c.random.choice(list(Desired)), c.moment()): 2,
    lambda c: ("market.set_limits", _limits(c)): 2,
    lambda c: ("events.add", c.job(), _event(c), c.moment()): 3,
    lambda c: ("jobs.mark_due", [c.job(), c.job()]): 2,
    lambda c: ("nodes.mark_silent_due", c.now_us - 30 * S): 2,
    lambda c: ("logs.record_offset", c.node().id, "rank0", c.random.randint(0, 99)): 2,
    lambda c: ("audit.add", _audited(c)): 2,
    lambda c: ("secrets.store_key_check", c.random.choice((b"a", b"b"))): 1,
    lambda c: ("secrets.rotate_key", c.epoch(), b"c", lambda item: b"new " + item.value): 1,
    lambda c: ("secrets.put", SecretRow(c.random.choice("AB"), 5, "ada"), b"v", c.epoch()): 2,
    lambda c: ("users.disable", _shut_out(c)): 1,
    lambda c: ("users.enable", c.random.choice(("alice", "bob"))): 1,
    lambda c: (
        "users.add_admission",
        c.node().id,
        c.random.choice(("alice", "bob")),
        c.moment(),
    ): 1,
    lambda c: (
        "users.record_dismissed",
        c.node().id,
        c.random.choice(("alice", "bob")),
        c.moment(),
    ): 1,
    lambda c: ("secrets.delete", c.random.choice("AB")): 1,
    lambda c: ("deployment.set_quarantine", c.random.choice(("", c.text())), c.moment()): 1,
    lambda c: ("events.prune", c.now_us - c.random.choice((0, 300, 900)) * S): 1,
}
