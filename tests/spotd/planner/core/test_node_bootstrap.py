"""What a node is told is what the job says and what was committed for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import Effect
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import CheckpointTerms
from spotd.planner.core.image_build import setup_digest
from spotd.planner.core.node_bootstrap import addresses_of, agent_config, start_document
from spotd.wire import (
    AgentConfig,
    Mount,
    OutputRules,
    Package,
    StartDocument,
    parse_agent_config,
    parse_start,
)
from spotd.wire.parts import build
from tests.spotd.planner.build import NOW, head, job, node, offer, spec

SPEC = spec(
    num_nodes=2,
    setup="pip install x",
    envs={"LR": "1"},
    packages=(Mount("0" * 64, "/opt/x"),),
    checkpoint=replace(spec().checkpoint, every_steps=7, every_s=8.0, keep=9, keep_every_steps=50),
    stop_grace_s=10.0,
    progress_every_s=11.0,
    peer_timeout_s=1200.0,
    caches=("~/c",),
    cache_bytes=5,
)


class Cloud:
    """As much of a provider as is asked for."""

    watcher = "aws"
    limits_life = True
    power_off = ("off",)
    prepared_file = "/run/prepared"


DATA = {"claim": "after_release", "claim_deadline_s": 12.0, "node_ips": ("10.0.0.1", "10.0.0.2")}


def started(**data: object) -> StartDocument:
    effect = Effect(EffectKind.START, node(generation=3, rank=1), job(), NOW, DATA | data)
    return start_document(
        job(spec=SPEC, head=head(generation=2)), effect, {"TOKEN": "x"}, {"region": "r"}
    )


def test_an_agent_knows_which_node_it_is() -> None:
    """And where it cannot be told when to end, it is not."""
    kept = job(spec=changed(SPEC, keep_on_failure_s=9.0))
    told = agent_config("d0", kept, node(generation=3, rank=1), Cloud(), NOW)  # type: ignore[arg-type]
    expected = AgentConfig(
        deployment="d0",
        job_id="j0",
        generation=3,
        rank=1,
        token="t-3-0-1",
        watcher="aws",
        power_off=("off",),
        wipe=True,
        keep_s=9.0,
        prepared_file="/run/prepared",
    )
    assert told == expected
    assert parse_agent_config(json.loads(json.dumps(told.to_data()))) == told


@pytest.mark.parametrize(("left_s", "told_s"), [(600, 600.0), (-5, 1.0), (None, 0.0)])
def test_an_agent_knows_when_booked_time_ends(left_s: int | None, told_s: float) -> None:
    end_us = 0 if left_s is None else NOW + left_s * S
    rented = node(offer=offer(ends_at_us=end_us))
    told = agent_config("d0", job(), rented, Cloud(), NOW)  # type: ignore[arg-type]
    assert told.ends_s == told_s
    assert parse_agent_config(json.loads(json.dumps(told.to_data()))) == told


def test_a_start_carries_the_job_and_what_was_decided_for_the_node() -> None:
    expected = build(
        StartDocument,
        {
            "job_name": "train",
            "num_nodes": 2,
            "node_ips": ("10.0.0.1", "10.0.0.2"),
            "accelerators_per_node": 8,
            "setup": "pip install x",
            "run": "python train.py",
            "envs": {"LR": "1"},
            "secrets": {"TOKEN": "x"},
            "packages": (Package("0" * 64, "/opt/x"),),
            "store_url": "file:///ckpt",
            "store_options": {"region": "r"},
            "engine": "spotd",
            "claim": "after_release",
            "claim_deadline_s": 12.0,
            "every_steps": 7,
            "every_s": 8.0,
            "keep": 9,
            "keep_every_steps": 50,
            "stop_grace_s": 10.0,
            "progress_every_s": 11.0,
            "peer_timeout_s": 1200.0,
            "head_generation": 2,
            "caches": ("~/c",),
            "cache_bytes": 5,
            "outputs": OutputRules(),
        },
    )
    assert started() == expected
    packages = [vars(package) for package in expected.files.packages]
    sent = expected.to_data() | {"packages": packages, "node_ips": ["10.0.0.1", "10.0.0.2"]}
    sent |= {"caches": ["~/c"], "buckets": [], "shard_stores": [], "include": [], "exclude": []}
    sent |= {"outputs": {"patterns": [], "max_bytes": 10_000_000_000}}
    assert parse_start(sent) == expected
    assert parse_start(sent | {"outputs": None}).files.outputs is None, (
        "as an older daemon sends it"
    )


@pytest.mark.parametrize(
    ("outputs", "bake", "rules"),
    [
        (None, "", OutputRules()),
        (("results",), "", OutputRules(("results",))),
        ((), "", None),
        (None, "torch-2", None),
    ],
)
def test_a_start_names_the_outputs(
    outputs: tuple[str, ...] | None, bake: str, rules: OutputRules | None
) -> None:
    effect = Effect(EffectKind.START, node(), job(), NOW, DATA)
    document = start_document(job(spec=changed(SPEC, outputs=outputs, bake=bake)), effect, {}, {})
    assert document.files.outputs == rules


def test_a_start_names_the_checkpoint_that_is_not_to_be_resumed_from() -> None:
    assert started().head.suspect == ""
    assert started(suspect="jobs/j0/m").head.suspect == "jobs/j0/m"


def test_a_start_says_whether_the_machine_is_for_an_image_and_what_its_image_lacks() -> None:
    assert not started().program.bake
    on_image = node(image_id="ami-1", image_setup=setup_digest(SPEC))
    effect = Effect(EffectKind.START, on_image, job(), NOW, DATA)
    assert start_document(job(spec=SPEC), effect, {}, {}).program.setup == "", "it has that"
    bakes = start_document(job(spec=changed(SPEC, bake="torch-2")), effect, {}, {})
    assert (bakes.program.bake, bakes.program.setup) == (True, SPEC.program.setup)


def test_a_container_that_no_job_began_with_is_named_as_it_is() -> None:
    effect = Effect(EffectKind.START, node(), job(), NOW, DATA)
    contained = job(spec=changed(SPEC, image_id="docker:r.io/x:1"))
    assert start_document(contained, effect, {}, {}).program.image == "r.io/x:1"


@pytest.mark.parametrize(
    ("image_id", "digest", "image"),
    [
        ("docker:r.io/x:1", "", "r.io/x:1"),
        ("docker:r.io/x:1", "sha256:d", "r.io/x@sha256:d"),
        ("ami-0123", "sha256:d", ""),
    ],
)
def test_a_start_names_the_container_that_the_job_began_with(
    image_id: str, digest: str, image: str
) -> None:
    effect = Effect(EffectKind.START, node(), job(), NOW, DATA)
    contained = job(spec=changed(SPEC, image_id=image_id))
    document = start_document(contained, effect, {}, {}, digest)
    assert document.program.image == image
    assert parse_start(json.loads(json.dumps(document.to_data()))).program.image == image


def test_a_job_that_chooses_its_own_pauses_is_told_what_to_go_by() -> None:
    effect = Effect(EffectKind.START, node(), job(), NOW, DATA)
    told = start_document(job(), effect, {}, {}, "", CheckpointTerms(7200.0, 8.1, 0.5))
    assert (
        told.checkpoint.auto,
        told.checkpoint.mtbf_s,
        told.checkpoint.gb_costs_s,
        told.checkpoint.put_costs_s,
    ) == (True, 7200.0, 8.1, 0.5)
    assert parse_start(json.loads(json.dumps(told.to_data()))) == told
    assert not start_document(job(), effect, {}, {}).checkpoint.auto
    older = {
        k: v for k, v in told.to_data().items() if k not in {"auto", *vars(CheckpointTerms(1.0))}
    }
    assert not parse_start(json.loads(json.dumps(older))).checkpoint.auto, (
        "a box that does not know of it"
    )


def test_a_job_without_a_head_has_had_no_generation() -> None:
    effect = Effect(EffectKind.START, node(), job(), NOW, DATA)
    assert start_document(job(), effect, {}, {}).head.head_generation == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"node_ips": ["10.0.0.1"]}, "a START effect carries node_ips and claim_deadline_s"),
        ({"claim_deadline_s": 0}, "a START effect carries node_ips and claim_deadline_s"),
    ],
)
def test_a_start_without_what_it_carries_is_a_bug(data: dict[str, object], words: str) -> None:
    with pytest.raises(TypeError, match=f"^{words}$"):
        started(**data)


def rank(number: int, private: str | None = None, **place: str) -> Node:
    found = node(rank=number, host=f"203.0.113.{number}")
    own = f"10.0.0.{number}" if private is None else private
    return changed(found, private_host=own, offer=replace(found.offer, **place))


@pytest.mark.parametrize(
    ("gang", "meet"),
    [
        ([rank(1), rank(0)], "10.0.0.0 10.0.0.1"),
        ([rank(0), rank(1, zone="us-east-1b")], "10.0.0.0 10.0.0.1"),
        ([rank(0), rank(1, region="us-west-2")], "203.0.113.0 203.0.113.1"),
        ([rank(0), rank(1, provider="other")], "203.0.113.0 203.0.113.1"),
        ([rank(0), rank(1, "")], "203.0.113.0 203.0.113.1"),
        ([rank(0)], "10.0.0.0"),
    ],
)
def test_a_gang_meets_in_its_own_network_if_it_has_one(gang: list[Node], meet: str) -> None:
    assert addresses_of(gang) == tuple(meet.split())
