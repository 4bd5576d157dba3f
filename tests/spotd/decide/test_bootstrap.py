"""What a node is told is what the job says and what was committed for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spotd.decide.bootstrap import agent_config, start_document
from spotd.model import EffectKind, Mount
from spotd.plan import Effect
from spotd.wire import AgentConfig, Package, StartDocument, parse_agent_config, parse_start
from tests.spotd.decide.build import NOW, head, job, node, spec

SPEC = spec(
    num_nodes=2,
    setup="pip install x",
    envs={"LR": "1"},
    packages=(Mount("0" * 64, "/opt/x"),),
    checkpoint=replace(spec().checkpoint, every_steps=7, every_s=8.0, keep=9),
    stop_grace_s=10.0,
    progress_every_s=11.0,
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
    kept = job(spec=replace(SPEC, keep_on_failure_s=9.0))
    told = agent_config("d0", kept, node(generation=3, rank=1), Cloud(), NOW)  # type: ignore[arg-type]
    expected = AgentConfig(
        *("d0", "j0", 3, 1, "t-3-0-1", "aws"),
        power_off=("off",),
        wipe=True,
        keep_s=9.0,
        prepared_file="/run/prepared",
    )
    assert told == expected
    assert parse_agent_config(json.loads(json.dumps(told.to_data()))) == told


def test_a_start_carries_the_job_and_what_was_decided_for_the_node() -> None:
    expected = StartDocument(
        job_name="train",
        num_nodes=2,
        node_ips=("10.0.0.1", "10.0.0.2"),
        accelerators_per_node=8,
        setup="pip install x",
        run="python train.py",
        envs={"LR": "1"},
        secrets={"TOKEN": "x"},
        packages=(Package("0" * 64, "/opt/x"),),
        store_url="file:///ckpt",
        store_options={"region": "r"},
        engine="spotd",
        claim="after_release",
        claim_deadline_s=12.0,
        every_steps=7,
        every_s=8.0,
        keep=9,
        stop_grace_s=10.0,
        progress_every_s=11.0,
        head_generation=2,
    )
    assert started() == expected
    packages = [vars(package) for package in expected.packages]
    sent = expected.to_data() | {"packages": packages, "node_ips": ["10.0.0.1", "10.0.0.2"]}
    assert parse_start(sent) == expected


def test_a_job_without_a_head_has_had_no_generation() -> None:
    effect = Effect(EffectKind.START, node(), job(), NOW, DATA)
    assert start_document(job(), effect, {}, {}).head_generation == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"node_ips": ["10.0.0.1"]}, "a START effect carries node_ips and claim_deadline_s"),
        ({"claim_deadline_s": 0}, "a START effect carries node_ips and claim_deadline_s"),
        ({"cadence": "half"}, "the cadence of a START effect is a number"),
    ],
)
def test_a_start_without_what_it_carries_is_a_bug(data: dict[str, object], words: str) -> None:
    with pytest.raises(TypeError, match=f"^{words}$"):
        started(**data)
