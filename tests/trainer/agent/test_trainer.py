"""The real trainer under the real agent: handover between two nodes, under torchrun. tests/e2e has
the handover without torchrun."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node

TINY = "--layers 1 --width 16 --heads 2 --block 16 --batch 2 --device cpu --threads 1"


@pytest.mark.req("PRE-05", "CKP-20")
def test_training_moves_to_another_node_without_losing_a_step(node: Node, tmp_path: Path) -> None:
    data = tmp_path / "text"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    torchrun = f"{Path(sys.executable).with_name('torchrun')} --standalone --nproc-per-node 2"
    run = f"{torchrun} -m trainer.train --data {data} --steps 100000 --step-time-ms 20 {TINY}"
    spec = {"engine": "spotd", "run": run, "progress_every_s": 0.2, "every_steps": 1000}
    newer = replace(node, home=node.home.with_name("newer"), generation=2, token="token-2")
    with newer:
        node.run()
        newer.run()
        node.start(**spec)
        node.wait_for(wire.PROGRESS, LIMIT_S)
        newer.start(**spec, claim="after_release", claim_deadline_s=60.0)
        newer.wait_for(wire.READY, LIMIT_S)
        assert wire.CLAIMED not in newer.kinds()
        node.send(wire.RELEASE)
        old, new = node.wait_for(wire.RELEASED, LIMIT_S), newer.wait_for(wire.CLAIMED, LIMIT_S)
        assert node.wait_for(wire.EXITED, LIMIT_S).data["code"] == wire.EXIT_RELEASED
        wait_until("a step on the new node", lambda: newer.entries(wire.PROGRESS))
        first = newer.entries(wire.PROGRESS)[0]
        last_old = node.entries(wire.PROGRESS)[-1].data["to_step"]
        assert old.data["step"] == new.data["step"] == last_old
        assert first.data["from_step"] == last_old + 1
        newer.send(wire.DRAIN, {"reason": "paused"})
        assert newer.wait_for(wire.EXITED, LIMIT_S).data["code"] == wire.EXIT_RELEASED
        print(f"RELEASED to first step: {(first.at_us - old.at_us) / 1e6:.3f} s")
    head = node.head()
    assert head is not None
    assert (head.generation, head.released) == (2, True)
    assert head.current is not None
    assert head.current.step > last_old
