"""Tiny builders for the store's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from providers.base import CapacityType, Instance, InstanceState, Offer, OfferRequest
from spotd.domain.events import Event
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt, CheckpointSpec, JobProgram, JobResources, JobSpec
from spotd.domain.node import Node
from spotd.domain.plan import AddNode, Change, ChangeJob, ChangeNode, OpenAttempt, Plan
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.store.commit import CommitStatus
from spotd.store.interface import Store
from spotd.store.jobs import Submission
from spotd.store.journal import JournalBatch
from spotd.wire import JournalEntry

NOW = 1_000_000 * S
HOUR = 3600 * S


class Bell:
    """A `notify` that counts."""

    def __init__(self) -> None:
        self.rings = 0

    def __call__(self) -> None:
        self.rings += 1


def spec(name: str = "train", **fields: Any) -> JobSpec:
    base = JobSpec(
        name=name,
        program=JobProgram(run="python train.py"),
        resources=JobResources((OfferRequest(accelerator="H100", accelerator_count=8),)),
        checkpoint=CheckpointSpec(store="file:///ckpt", engine="spotd"),
    )
    return changed(base, **fields)


def offer(zone: str = "aws-1a", price: int = 10, **fields: Any) -> Offer:
    """`price` in whole dollars an hour; the list price is four times that."""
    base = Offer(
        provider=zone.split("-", maxsplit=1)[0],
        region=zone[:-1],
        zone=zone,
        instance_type="8xh100",
        capacity_type=CapacityType.SPOT,
        price_microusd_per_h=price * 1_000_000,
        list_microusd_per_h=price * 4_000_000,
        accelerator="H100",
        accelerator_count=8,
    )
    return replace(base, **fields)


def submission(job_id: str = "j1", **fields: Any) -> Submission:
    name = fields.pop("name", job_id)
    base = Submission(
        job_id=job_id,
        spec=fields.pop("spec", spec(name)),
        spec_yaml=f"name: {name}\n",
        user="alice",
        request_id="",
        job_key=b"key",
    )
    return replace(base, **fields)


def submit(store: Store, job_id: str = "j1", at_us: int = NOW, **fields: Any) -> View:
    """A new job's view; `fields` are the spec's."""
    store.jobs.submit(submission(job_id, spec=spec(job_id, **fields)), at_us)
    return view(store, job_id)


def view(store: Store, job_id: str = "j1", now_us: int = NOW) -> View:
    found = store.load_view(job_id, now_us)
    assert found is not None
    return found


def plan(*changes: Change, events: tuple[Event, ...] = (), **fields: Any) -> Plan:
    return replace(Plan(changes, events, 0, "because"), **fields)


def new_node(job_id: str = "j1", generation: int = 1, number: int = 0, **fields: Any) -> Node:
    ident = f"{job_id}-g{generation}-{number}"
    base = Node(
        id=ident,
        job_id=job_id,
        generation=generation,
        rank=0,
        candidate=number,
        token=f"t-{ident}",
        offer=offer(),
        state=NodeState.LAUNCHING,
        requested_at_us=NOW,
    )
    return changed(base, **fields)


def opening(job_id: str = "j1", generation: int = 1, *nodes: Node) -> Plan:
    """A plan that opens an attempt with `nodes` (one by default)."""
    added = nodes or (new_node(job_id, generation),)
    return plan(
        OpenAttempt(Attempt(job_id, generation, NOW, "first")),
        ChangeJob({"generation": generation}),
        *(AddNode(node) for node in added),
    )


def commit(store: Store, before: View, decided: Plan, now_us: int = NOW) -> View:
    """Commit what must be accepted."""
    result = store.commit(before, decided, now_us)
    assert result.status is CommitStatus.DONE, result
    assert result.view is not None
    return result.view


def placed(store: Store, job_id: str = "j1", *nodes: Node, **fields: Any) -> View:
    """A submitted job whose first attempt is open."""
    return commit(store, submit(store, job_id, **fields), opening(job_id, 1, *nodes))


def move(store: Store, node_id: str, state: NodeState, now_us: int = NOW, **fields: Any) -> View:
    """Decide a node's state."""
    job_id = node_id.split("-", maxsplit=1)[0]
    change = ChangeNode(node_id, {"state": state, **fields})
    return commit(store, view(store, job_id, now_us), plan(change), now_us)


def node(store: Store, node_id: str = "j1-g1-0") -> Node:
    """One node as stored."""
    job_id = node_id.split("-", maxsplit=1)[0]
    return next(n for n in store.nodes.of_job(job_id) if n.id == node_id)


def instance(of: Node, instance_id: str = "i-1", **fields: Any) -> Instance:
    base = Instance(
        instance_id=instance_id,
        token=of.token,
        tags={},
        state=InstanceState.RUNNING,
        region=of.offer.region,
        zone=of.offer.zone,
        instance_type=of.offer.instance_type,
        capacity_type=of.offer.capacity_type,
        host="127.0.0.1",
        port=2222,
        ssh_user="spotd",
    )
    return replace(base, **fields)


def said(
    *entries: tuple[str, dict[str, Any]],
    node_id: str = "j1-g1-0",
    first: int = 1,
    heard_at_us: int = NOW + 60 * S,
    generation: int = 1,
) -> JournalBatch:
    """What a node said, all just now."""
    numbered = enumerate(entries, start=first)
    journal = tuple(JournalEntry(seq, heard_at_us, generation, *entry) for seq, entry in numbered)
    return JournalBatch(node_id, journal, heard_at_us)


def kinds(store: Store, job_id: str | None = "j1") -> list[str]:
    return [row.event.kind for row in store.events.rows(job_id)]
