"""The desired state of the program across changes and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spotd.wire import CLAIM_AFTER_RELEASE, CLAIM_NOW, StartDocument
from tests.trainer.agent.node import Node
from trainer.agent.base.desired_state import DesiredState, load_desired_state
from trainer.agent.base.stop_timing import Stopping


def start(folder: Path, **changes: Any) -> StartDocument:
    return Node(folder).start_document(**changes)


def test_a_later_start_may_only_let_head_be_claimed_earlier(tmp_path: Path) -> None:
    desired = DesiredState(tmp_path / "state")
    desired.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=60.0), 100.0)
    assert desired.claim_terms(110.0) == (CLAIM_AFTER_RELEASE, 50.0)
    desired.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=90.0), 110.0)
    assert desired.claim_terms(110.0) == (CLAIM_AFTER_RELEASE, 50.0), "not put off"
    desired.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=5.0), 110.0)
    assert desired.claim_terms(110.0) == (CLAIM_AFTER_RELEASE, 5.0)
    desired.accept(start(tmp_path, claim=CLAIM_NOW, run="other"), 111.0)
    assert desired.claim_terms(111.0) == (CLAIM_NOW, 0.0)
    desired.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=60.0), 112.0)
    assert desired.claim_terms(112.0) == (CLAIM_NOW, 0.0), "not taken back"
    assert desired.start is not None
    assert desired.start.program.run == "true", "the rest is as it was first"


def test_the_flag_says_what_is_left_at_this_moment(tmp_path: Path) -> None:
    desired = DesiredState(tmp_path / "state")
    desired.accept(start(tmp_path, claim=CLAIM_AFTER_RELEASE, claim_deadline_s=60.0), 100.0)
    desired.saves = 3
    assert desired.flag(130.0) == {
        "save": 3,
        "stop": False,
        "deadline_s": None,
        "reason": "",
        "claim": CLAIM_AFTER_RELEASE,
        "claim_deadline_s": 30.0,
        "ranks": True,
    }
    desired.stopping = Stopping("why", asked_at=130.0, kill_at=150.0, gentle=True)
    flag = desired.flag(140.0)
    assert (flag["stop"], flag["deadline_s"], flag["reason"]) == (True, 10.0, "why")
    assert desired.flag(170.0)["deadline_s"] == 0.0


def test_all_of_it_survives_a_restart(tmp_path: Path) -> None:
    desired = DesiredState(tmp_path / "state")
    desired.accept(start(tmp_path, secrets={"A": "b"}, node_ips=("1", "2")), 100.0)
    desired.saves = 2
    desired.stopping = Stopping("why", 1.0, 2.0, gentle=False, termed=True)
    desired.write()
    assert load_desired_state(tmp_path / "state") == desired
    desired.forget()
    assert load_desired_state(tmp_path / "state") == DesiredState(tmp_path / "state")
