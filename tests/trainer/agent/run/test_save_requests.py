"""While notices cannot be received the program saves more often, at a bounded cost."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import ENGINE_NONE
from trainer.agent.run.journal_replay import JournalReplay
from trainer.agent.run.save_requests import SAVE_PENDING_S, SaveRequests, blind_every_s
from trainer.agent.run.timing_stats import TimingStats

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"


@pytest.mark.parametrize(
    ("every_s", "save_s", "blind_s"),
    [
        (300.0, 0.0, 100.0),
        (300.0, 10.0, 100.0),
        (300.0, 20.0, 200.0),  # a tenth of the time and no more
        (300.0, 40.0, 300.0),  # what the job asked for is never made rarer
        (10.0, 60.0, 10.0),
    ],
)
def test_a_third_of_the_cadence_and_a_tenth_of_the_time(
    every_s: float, save_s: float, blind_s: float
) -> None:
    assert blind_every_s(every_s, save_s) == blind_s


class Loop:
    """An agent's loop around `SaveRequests`: one check a second, for a program whose saves take
    `save_s`."""

    def __init__(self, node: Node, *, save_s: float = 1.0, **start: object) -> None:
        self.desired = DesiredState(Path("unused"), start=node.start_document(**start))
        self.said: list[str] = []
        self.now = 0.0
        past = JournalReplay("boot", True, frozenset(), (), (save_s,), (), 0)
        timing_stats = TimingStats(past, self.desired)
        self.saves = SaveRequests(
            self.desired, timing_stats, warn=self.said.append, replay=past, now=self.now
        )

    def asked(self, seconds: int, answer: str = wire.CHECKPOINT, rank: int = 0) -> list[float]:
        """Return when a save is requested within so many seconds; the program responds a second
        later."""
        found: list[float] = []
        for _ in range(seconds):
            self.now += 1.0
            if found and self.now == found[-1] + 1 and answer:
                self.saves.note(answer, self.now)
            if self.saves.due(self.now, rank) and self.saves.request(self.now):
                found.append(self.now)
        return found


@pytest.fixture
def loop(node: Node) -> Loop:
    made = Loop(node, engine="spotd", every_s=300.0)
    made.saves.note(wire.CLAIMED, made.now)
    return made


def test_it_saves_more_often_for_as_long_as_the_outage_lasts(loop: Loop) -> None:
    assert loop.asked(1000) == []
    loop.saves.set_metadata_up(up=False)
    assert loop.asked(310) == [1001, 1102, 1203, 1304]
    assert loop.desired.saves == 4
    loop.saves.set_metadata_up(up=True)
    assert loop.asked(1000) == []


def test_what_the_cadence_saves_counts(loop: Loop) -> None:
    loop.saves.set_metadata_up(up=False)
    loop.asked(99)
    loop.saves.note(wire.CHECKPOINT, loop.now)
    assert loop.asked(101) == [199]


def test_it_is_told_once_an_outage(loop: Loop) -> None:
    for _ in range(2):
        loop.saves.set_metadata_up(up=False)
        loop.asked(400)
        loop.saves.set_metadata_up(up=True)
    text = "while notices cannot be received, the program saves every 100 s instead of 300 s"
    assert loop.said == [text, text]


def test_a_store_that_is_away_is_tried_no_more_often(loop: Loop) -> None:
    loop.saves.set_metadata_up(up=False)
    assert loop.asked(305, wire.CHECKPOINT_FAILED) == [100, 201, 302]


def test_one_that_never_answers_is_asked_no_more_often(loop: Loop) -> None:
    loop.saves.set_metadata_up(up=False)
    assert loop.asked(305, "") == [100, 200, 300]


def test_nobody_is_asked_who_has_nothing_to_save(node: Node, loop: Loop) -> None:
    blind = {
        "not ours": Loop(node, engine=ENGINE_NONE, every_s=300.0),
        "saves take long": Loop(node, save_s=60.0, engine="spotd", every_s=300.0),
        "by steps alone": Loop(node, engine="spotd", every_s=0.0),
    }
    for one in blind.values():
        one.saves.note(wire.CLAIMED, one.now)
    blind["has not claimed HEAD"] = Loop(node, engine="spotd", every_s=300.0)
    for name, one in blind.items():
        one.saves.set_metadata_up(up=False)
        assert (one.asked(2000), one.said) == ([], []), name
    loop.saves.set_metadata_up(up=False)
    assert loop.asked(500, rank=1) == [], "rank 0 asks for all"


def test_the_same_request_while_it_is_served_is_the_same(loop: Loop) -> None:
    assert loop.saves.request(0.0)
    assert not loop.saves.request(SAVE_PENDING_S)
    loop.saves.note(wire.CHECKPOINT, SAVE_PENDING_S)
    assert loop.saves.request(SAVE_PENDING_S)


def test_an_agent_that_was_started_again_goes_on_with_it(node: Node) -> None:
    """The running program has claimed HEAD before, and does not do so again."""
    desired = DesiredState(Path("unused"), start=node.start_document(engine="spotd", every_s=300.0))
    past = JournalReplay("boot", False, frozenset({wire.CLAIMED}), (), (1.0,), (), 5)
    saves = SaveRequests(
        desired, TimingStats(past, desired), warn=lambda _text: None, replay=past, now=50.0
    )
    saves.set_metadata_up(up=False)
    assert [now for now in (149.0, 150.0) if saves.due(now, 0)] == [150.0]


def test_a_program_whose_machine_hears_nothing_saves_by_itself(node: Node) -> None:
    """The real agent with a failing metadata service; nothing else requests a save."""
    with serve_metadata("aws") as service:
        node = replace(node, watcher="aws", metadata_base=service.url)
        with node:
            node.run()
            node.start(run=WORKER, engine="spotd", every_s=3.0)
            node.wait_for(wire.PROGRESS)
            assert node.send(wire.SAVE).ok  # how long one takes is measured
            node.wait_for(wire.CHECKPOINT)
            service.fault("error_503")
            wait_until("more saves", lambda: len(node.entries(wire.CHECKPOINT)) >= 3)
            texts = [entry.data["text"] for entry in node.entries(wire.WARNING)]
            [text] = [text for text in texts if "notices cannot be received" in text]
            assert text.endswith("the program saves every 1 s instead of 3 s")
            assert node.entries(wire.METADATA)[0].data["up"] is False
