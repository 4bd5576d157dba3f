"""Followed nodes are told again and again how long they may go on without us."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spotd.domain.job import CheckpointSpec
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.observe.keepalive import EVERY_S, Keepalive
from spotd.wire import parse_presence
from tests.spotd.fake_world import Stage


class Channel:
    """Keeps what it is given; `broken` takes nothing."""

    def __init__(self) -> None:
        self.said: list[float] = []
        self.broken = False

    def sendall(self, data: bytes) -> None:
        if self.broken:
            raise TimeoutError
        self.said.append(parse_presence(data).left_s)


@pytest.fixture
def followed(stage: Stage) -> Any:
    """A node that trains, as the follower has it."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    return SimpleNamespace(node=stage.nodes("j1")[0], channel=Channel())


def test_it_is_told_at_once_and_then_every_minute(stage: Stage, followed: Any) -> None:
    presence = Keepalive(stage.store, stage.clock)
    said = followed.channel.said
    for _ in range(3):
        presence.tell([followed])
    assert len(said) == 1
    assert said[0] == pytest.approx(86_400, abs=60)
    stage.clock.sleep(EVERY_S - 1)
    presence.tell([followed])
    assert len(said) == 1
    stage.clock.sleep(1)
    presence.tell([followed])
    assert said[1] == pytest.approx(said[0] - EVERY_S)


def test_what_it_is_told_is_what_its_tag_says(stage: Stage, followed: Any) -> None:
    """As it was renewed since the follower has it, and no more than that where it was not."""
    presence, now_us = Keepalive(stage.store, stage.clock), stage.clock.now_us()
    stage.store.nodes.record_renewed(followed.node.id, now_us + 100_000 * S)
    presence.tell([followed])
    assert followed.channel.said == [100_000]
    stage.clock.sleep(99_000)
    presence.tell([followed])
    assert followed.channel.said[-1] == 1000


def test_one_that_does_not_listen_keeps_the_others_from_nothing(
    stage: Stage, followed: Any
) -> None:
    presence = Keepalive(stage.store, stage.clock)
    followed.channel.broken = True
    presence.tell([followed])
    followed.channel.broken = False
    stage.clock.sleep(1)
    again = SimpleNamespace(node=followed.node, channel=followed.channel)
    presence.tell([again])  # type: ignore[list-item]
    assert len(followed.channel.said) == 1, "who is followed anew is told at once"


def test_a_job_that_goes_by_it_is_told_how_long_its_machines_live(stage: Stage) -> None:
    stage.goal = None
    saves = CheckpointSpec("file:///ckpt", "spotd", auto=True)
    stage.submit("j1", checkpoint=saves)
    stage.submit("j2")
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING) and s.nodes("j2", NodeState.RUNNING))
    words: list[float] = []
    channel = SimpleNamespace(sendall=lambda data: words.append(parse_presence(data).mtbf_s))
    first, other = (stage.nodes(job)[0] for job in ("j1", "j2"))
    presence = Keepalive(stage.store, stage.clock)
    presence.tell([SimpleNamespace(node=first, channel=channel)])
    [before] = words
    assert before == pytest.approx(4 * 3600, rel=0.1)
    presence.tell([])
    presence.tell([SimpleNamespace(node=other, channel=channel)])
    stage.clock.sleep(EVERY_S)
    presence.tell([SimpleNamespace(node=other, channel=channel)])
    assert words[1:] == [0.0], "a job that says when to save"
