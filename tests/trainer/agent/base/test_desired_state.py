"""What is asked of the program, across changes and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spotd.wire import CLAIM_AFTER_RELEASE, CLAIM_NOW, StartDocument
from tests.trainer.agent.node import Node
from trainer.agent.base.desired_state import DesiredState, load_demands
from trainer.agent.base.stop_timing import Stopping


def start(folder: Path, **changes: Any) -> StartDocument:
    return Node(folder).start_document(**changes)


def test_a_later_start_may_only_let_head_be_claimed_earlier(tmp_path: Path) -> None:
    demands = DesiredState(tmp_path / "state")
    demands.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=60.0), 100.0)
    assert demands.claim_of(110.0) == (CLAIM_AFTER_RELEASE, 50.0)
    demands.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=90.0), 110.0)
    assert demands.claim_of(110.0) == (CLAIM_AFTER_RELEASE, 50.0), "not put off"
    demands.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=5.0), 110.0)
    assert demands.claim_of(110.0) == (CLAIM_AFTER_RELEASE, 5.0)
    demands.accept(start(tmp_path, claim=CLAIM_NOW, run="other"), 111.0)
    assert demands.claim_of(111.0) == (CLAIM_NOW, 0.0)
    demands.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=60.0), 112.0)
    assert demands.claim_of(112.0) == (CLAIM_NOW, 0.0), "not taken back"
    assert demands.start is not None
    assert demands.start.run == "true", "the rest is as it was first"


def test_the_flag_says_what_is_left_at_this_moment(tmp_path: Path) -> None:
    demands = DesiredState(tmp_path / "state")
    demands.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=60.0), 100.0)
    demands.saves = 3
    assert demands.flag(130.0) == {
        "save": 3,
        "stop": False,
        "deadline_s": None,
        "reason": "",
        "claim": CLAIM_AFTER_RELEASE,
        "claim_deadline_s": 30.0,
        "ranks": True,
    }
    demands.stopping = Stopping("why", asked_at=130.0, kill_at=150.0, gentle=True)
    flag = demands.flag(140.0)
    assert (flag["stop"], flag["deadline_s"], flag["reason"]) == (True, 10.0, "why")
    assert demands.flag(170.0)["deadline_s"] == 0.0


def test_all_of_it_survives_a_restart(tmp_path: Path) -> None:
    demands = DesiredState(tmp_path / "state")
    demands.accept(start(tmp_path, secrets={"A": "b"}, node_ips=("1", "2")), 100.0)
    demands.saves = 2
    demands.stopping = Stopping("why", 1.0, 2.0, gentle=False, termed=True)
    demands.write()
    assert load_demands(tmp_path / "state") == demands
    demands.forget()
    assert load_demands(tmp_path / "state") == DesiredState(tmp_path / "state")
