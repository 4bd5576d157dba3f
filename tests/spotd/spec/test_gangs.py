"""Test the settings for a gang that loses a machine."""

from __future__ import annotations

import pytest

from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.store.codec import decode_spec, encode
from tests.spotd.spec.test_load import read, refused

ENGINE = "checkpoint: {engine: spotd}"
TRAIN = "torchrun --nproc-per-node 8 train.py"


def job(block: str, num_nodes: int = 4, run: str = TRAIN, engine: str = ENGINE) -> str:
    return f"name: j\nnum_nodes: {num_nodes}\nrun: {run}\nspotd: {{{block}, {engine}}}"


@pytest.mark.parametrize(
    ("block", "elastic"),
    [
        ("on_node_loss: wait", Elastic()),
        ("on_node_loss: shrink", Elastic(OnNodeLoss.SHRINK)),
        ("on_node_loss: shrink, min_nodes: 3", Elastic(OnNodeLoss.SHRINK, 3)),
        ("on_node_loss: wait-then-shrink", Elastic(OnNodeLoss.WAIT_THEN_SHRINK, 1, 300.0)),
        (
            "on_node_loss: wait-then-shrink, shrink_after: 90s, min_nodes: 2",
            Elastic(OnNodeLoss.WAIT_THEN_SHRINK, 2, 90.0),
        ),
    ],
)
def test_a_gang_may_go_on_with_fewer(block: str, elastic: Elastic) -> None:
    spec = read(job(block)).spec
    assert spec.resources.elastic == elastic
    assert decode_spec(encode(spec)) == spec


@pytest.mark.req("ELA-06")
@pytest.mark.parametrize(
    ("block", "expected_s"),
    [
        ("alerts: []", 3600.0),
        ("peer_timeout: 10m", 600.0),
        ("setup_timeout: 20m", 3600.0),
        ("setup_timeout: 2h", 7200.0),
        ("setup_timeout: 2h, peer_timeout: 30m", 1800.0),
    ],
)
def test_ranks_wait_for_one_another_at_least_for_what_their_setup_may_take(
    block: str, expected_s: float
) -> None:
    spec = read(job(block)).spec
    assert spec.timeouts.peer_timeout_s == expected_s
    assert decode_spec(encode(spec)) == spec
    assert ("peer_timeout_s" in encode(spec)) is (expected_s != 3600), "its row is as before"


def test_it_waits_unless_it_says_otherwise_and_its_row_is_as_before() -> None:
    spec = read(f"name: j\nnum_nodes: 2\nrun: {TRAIN}").spec
    assert spec.resources.elastic == Elastic()
    assert "elastic" not in encode(spec)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (job("on_node_loss: shrink", 1), "spotd.on_node_loss", "num_nodes is 1"),
        (
            job("on_node_loss: shrink", engine="checkpoint: {engine: none}"),
            "spotd.on_node_loss",
            "shrink needs checkpoints that a different number of ranks can read",
        ),
        (job("on_node_loss: shrink, min_nodes: 5"), "spotd.min_nodes", "more than num_nodes"),
        (job("on_node_loss: wait, min_nodes: 2"), "spotd.min_nodes", "on_node_loss is wait"),
        (job("on_node_loss: shrink, shrink_after: 1m"), "spotd.shrink_after", "wait-then-shrink"),
        (job("peer_timeout: 0s"), "spotd.peer_timeout", "must be more than 0"),
        (job("on_node_loss: maybe"), "spotd.on_node_loss", "wait"),
        (
            job("on_node_loss: shrink", run="torchrun --nnodes=4 train.py"),
            "run",
            "fixes '--nnodes=4' for every attempt",
        ),
        (
            job("on_node_loss: shrink", run="torchrun --node_rank 0 train.py"),
            "run",
            "for every attempt",
        ),
        (
            job("on_node_loss: shrink", run="torchrun -m trainer.train --shard"),
            "run",
            "add --virtual-ranks N or --shares N",
        ),
    ],
)
def test_contradictory_settings_are_refused_with_a_fix(text: str, where: str, message: str) -> None:
    items = [item for item in refused(text) if item.startswith((f"{where}:", "line"))]
    assert any(where in item and message in item for item in items), refused(text)


@pytest.mark.parametrize(
    "run",
    [
        "torchrun --nnodes $SKYPILOT_NUM_NODES --node-rank $SKYPILOT_NODE_RANK train.py",
        "torchrun -m trainer.train --shard --virtual-ranks 4",
        "torchrun -m trainer.train --shares=4",
    ],
)
def test_options_that_vary_by_attempt_are_accepted(run: str) -> None:
    assert (
        read(job("on_node_loss: shrink", run=run)).spec.resources.elastic.on_loss
        is OnNodeLoss.SHRINK
    )
