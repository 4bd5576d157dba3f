"""What a machine whose machines did not boot said last, on record before it is ended."""

from __future__ import annotations

import pytest

from providers.base import UnknownOutcome
from spotd.act.serial_console import BYTES, LINES, tidy
from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from tests.spotd.fake_world import Stage

PANIC = "[  4.2] EXT4-fs error\r\n\x1b[31m[  9.1] Kernel panic: hunter22 \x1b[0m\r\n\n"


def silent(stage: Stage, **fields: object) -> Node:
    """A machine whose agent never says hello."""
    stage.submit(boot_timeout_s=30.0, **fields)
    stage.turn()
    node = stage.nodes("j1")[0]
    stage.machine(node).hung = True
    return node


def given_up(stage: Stage, node: Node) -> list[str]:
    """The kinds of its events, once the machine was told to end."""
    cloud = stage.clouds[node.offer.provider]
    stage.run(lambda _: cloud.calls["terminate"] > 0, limit_s=300.0)
    stage.turn()
    return [row.event.kind for row in stage.store.events.rows("j1")]


def test_its_last_words_are_on_record_and_nothing_of_a_terminal(stage: Stage) -> None:
    node = silent(stage)
    cloud = stage.clouds[node.offer.provider]
    cloud.consoles[stage.nodes("j1")[0].instance_id] = PANIC
    assert given_up(stage, node).count("console") == 1
    row = stage.store.events.last("j1", "console")
    assert row is not None
    assert row.event.node_id == node.id
    assert row.event.text.endswith("[  9.1] Kernel panic: hunter22")
    assert row.event.data == {"lines": ["[  4.2] EXT4-fs error", "[  9.1] Kernel panic: hunter22"]}


@pytest.mark.parametrize("error", [UnknownOutcome("away"), ZeroDivisionError("a bug")])
def test_a_console_that_cannot_be_had_keeps_no_machine(stage: Stage, error: Exception) -> None:
    node = silent(stage)
    stage.clouds[node.offer.provider].fail("console", error)
    assert "console" not in given_up(stage, node)
    stage.run(lambda s: s.nodes("j1", NodeState.GONE), limit_s=300.0)


def test_of_a_machine_that_trained_nobody_asks(stage: Stage) -> None:
    stage.submit()
    stage.run(lambda s: s.nodes("j1") and s.nodes("j1")[0].training.first_step_at_us)
    node = stage.nodes("j1")[0]
    stage.store.jobs.set_desired("j1", Desired.CANCEL, stage.clock.now_us())
    stage.run(lambda s: s.nodes("j1", NodeState.GONE), limit_s=300.0)
    assert stage.clouds[node.offer.provider].calls["console"] == 0


def test_secrets_and_keys_are_masked() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
    said = tidy(f"token=hunter22 abc\n{key}\nend hunter22x", ["hunter2", "hunter22", "abc"])
    assert said == ["token=*** abc", "***", "end ***x"]
    assert tidy("-----BEGIN PRIVATE KEY-----\nAAAA", []) == ["***"]


def test_it_is_bounded() -> None:
    assert tidy("\n".join(map(str, range(100))), [])[0] == str(100 - LINES)
    [long] = tidy("é" * 10_000, [])
    assert len(long.encode()) <= BYTES
    assert tidy(" \r\n\t\n", []) == []
