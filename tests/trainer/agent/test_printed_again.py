"""A script without a checkpoint folder, whose printed steps tell whether it resumed."""

from __future__ import annotations

from spotd import wire
from spotd.wire.printed_steps import StepSeries
from tests.trainer.agent.node import Node

# It takes a moment for each step, as training does: steps that all come at once are a history.
PACE = 'sleep "${PACE:-0}"'
SCRIPT = "for number in $(seq ${FIRST:-1} 9); do echo step $number; " + PACE + "; done"
BEFORE = {"step": StepSeries(1, 7, 7)}


def test_what_it_printed_is_reported_when_it_ends(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT)
    node.wait_for(wire.EXITED)
    found = node.entries(wire.PRINTED_STEPS)[-1]
    assert found.data == {"series": {"step": [1, 9, 9]}}
    assert node.entries(wire.WARNING) == []


def test_the_next_machine_reports_that_it_begins_anew(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT, envs={"PACE": "0.6"}, printed_steps=BEFORE)
    node.wait_for(wire.EXITED)
    [warning] = node.entries(wire.WARNING)
    assert warning.data["verdict"] == "not_resumed"


def test_of_steps_that_come_all_at_once_nothing_is_known(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT, printed_steps=BEFORE)
    node.wait_for(wire.EXITED)
    assert node.entries(wire.WARNING) == []
    assert node.entries(wire.PRINTED_STEPS)[-1].data == {"series": {"step?": [0, 0, 0]}}


def test_one_that_resumes_is_not_warned_of(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT, envs={"FIRST": "5"}, printed_steps=BEFORE)
    node.wait_for(wire.EXITED)
    assert node.entries(wire.WARNING) == []


def test_with_a_checkpoint_folder_the_files_tell(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT, directory="out", printed_steps=BEFORE)
    node.wait_for(wire.EXITED)
    assert node.entries(wire.PRINTED_STEPS) == []
    assert node.entries(wire.WARNING) == []
