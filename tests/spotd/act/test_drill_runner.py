"""The duty of drills: each step on record before the next, whatever dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from providers.base import Provider, UnknownOutcome
from spotd.act.drill_runner import ORDER_S, STRIKE_S, DrillRunner
from spotd.act.node_link import LinkError
from spotd.domain.fault_drill import DrillEnd, DrillKind, FaultDrill
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason
from spotd.security.secrets import JobKeys
from spotd.store.journal import JournalBatch
from spotd.wire import STRIKE, Command, JournalEntry, Reply
from tests.spotd.api.rig import OFFERS, SPOT, Rig

KEYS = JobKeys.create(bytes)


class Link:
    """A node that takes what it is told once for each drill; `lost` replies never arrive, and while
    it is `deaf` nothing does."""

    def __init__(self) -> None:
        self.struck: list[str] = []
        self.told = 0
        self.lost = 0
        self.deaf = False
        self.refuses = ""

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply:
        assert (command.name, command.generation) == (STRIKE, node.generation)
        self.told += 1
        if self.deaf:
            raise LinkError("no route")
        if self.refuses:
            return Reply(False, self.refuses)
        if command.data["drill"] not in self.struck:
            if command.data.get("late"):
                return Reply(False, "not any more")
            self.struck.append(command.data["drill"])
        if self.lost:
            self.lost -= 1
            raise LinkError("the connection ended")
        return Reply(True)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    rig.offer_them()
    yield rig
    rig.close()


@pytest.fixture
def link() -> Link:
    return Link()


def drilling(rig: Rig, link: Link) -> DrillRunner:
    """A daemon's, which remembers nothing of the one before."""
    return DrillRunner(link, lambda _: KEYS, {}, rig.context().market, rig.clock)


def ordered(rig: Rig, kind: DrillKind = DrillKind.KILL) -> tuple[Node, FaultDrill]:
    job_id = rig.submit(ago_s=700)
    node = rig.launch(job_id, SPOT, ago_s=600)
    rig.train(node, ago_s=500, until_s=2, first=0, last=120)
    drill = FaultDrill("d1", job_id, kind, "ada", rig.ago(0), 60.0)
    return node, rig.store.drills.add(drill)


def only(rig: Rig) -> FaultDrill:
    [drill] = rig.store.drills.rows()
    return drill


def texts(rig: Rig, job_id: str) -> list[str]:
    return [row.event.text for row in rig.store.events.of_kinds(job_id, ["drill"])]


def test_it_is_aimed_then_strikes_then_is_judged(rig: Rig, link: Link) -> None:
    node, drill = ordered(rig)
    drilling(rig, link).look(rig.store)
    struck = only(rig)
    assert (struck.node_id, link.struck) == (node.id, ["d1"])
    assert struck.struck_at_us
    assert rig.store.nodes.find([node.id])[0].drill == "kill"
    drilling(rig, link).look(rig.store)
    assert link.told == 1, "what has struck does not strike again"
    rig.clock.go_on(4)
    rig.leave(node, 2, LeaveReason.DRILL, "struck by a drill")
    new = rig.launch(drill.job_id, OFFERS[2], ago_s=3)
    rig.train(new, ago_s=2, until_s=0, first=120, last=130)
    drilling(rig, link).look(rig.store)
    ended = only(rig)
    assert (ended.end, ended.text) == (DrillEnd.PASSED, "")
    assert ended.found.lost_steps == 0
    assert texts(rig, drill.job_id)[-1].startswith("the drill (kill) of gpt passed: 0 steps lost")


def test_a_daemon_that_dies_before_the_reply_strikes_no_second_time(rig: Rig, link: Link) -> None:
    ordered(rig)
    link.lost = 2
    for _ in range(3):
        drilling(rig, link).look(rig.store)
    assert (link.told, link.struck) == (3, ["d1"])
    assert only(rig).struck_at_us


def test_a_node_that_ended_meanwhile_was_struck(rig: Rig, link: Link) -> None:
    node, _ = ordered(rig)
    link.lost = 1
    drilling(rig, link).look(rig.store)
    assert not only(rig).struck_at_us
    rig.say(node, 0, "exited", code=137, ranks={"0": 137}, tail="")
    drilling(rig, link).look(rig.store)
    assert link.told == 1, "nobody is there to be told again"
    assert only(rig).struck_at_us


def test_one_that_cannot_be_told_is_called_off(rig: Rig, link: Link) -> None:
    node, _ = ordered(rig)
    link.deaf = True
    drilling(rig, link).look(rig.store)
    rig.clock.go_on(STRIKE_S + 1)
    drilling(rig, link).look(rig.store)
    assert only(rig).end is None, "nobody knows yet"
    link.deaf = False
    drilling(rig, link).look(rig.store)
    ended = only(rig)
    assert (ended.end, ended.text) == (
        DrillEnd.CALLED_OFF,
        "it could not inject the fault within 60 s",
    )
    assert link.struck == []
    assert rig.store.nodes.find([node.id])[0].drill == "", "what it loses now, it loses by itself"
    drilling(rig, link).look(rig.store)
    assert only(rig) == ended


def test_what_was_struck_before_the_box_was_away_for_long_is_known(rig: Rig, link: Link) -> None:
    """Its program's end, which is heard of later, is the drill's doing. And no time is told too
    short: it may have struck as soon as it was told."""
    node, drill = ordered(rig)
    link.lost = 1
    drilling(rig, link).look(rig.store)
    rig.clock.go_on(STRIKE_S + 30)
    drilling(rig, link).look(rig.store)
    assert only(rig).struck_at_us == drill.asked_at_us
    assert rig.store.nodes.find([node.id])[0].drill == "kill"


@pytest.mark.parametrize("why", ["finished", "cancelled"])
def test_an_end_of_its_own_is_no_strike(rig: Rig, link: Link, why: str) -> None:
    node, _ = ordered(rig)
    link.deaf = True
    drilling(rig, link).look(rig.store)
    if why == "finished":
        rig.say(node, 0, "exited", code=0, ranks={"0": 0}, tail="")
    else:
        rig.leave(node, 0, LeaveReason.CANCELLED, "cancelled")
    drilling(rig, link).look(rig.store)
    assert (only(rig).end, only(rig).struck_at_us) == (DrillEnd.CALLED_OFF, 0)


def test_a_job_that_cannot_be_judged_is_in_no_others_way(
    rig: Rig, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(rig)
    other = rig.submit("other", ago_s=700)
    node = rig.launch(other, SPOT, ago_s=600)
    rig.train(node, ago_s=500, until_s=2, first=0, last=120)
    rig.store.drills.add(FaultDrill("d2", other, DrillKind.KILL, "ada", rig.ago(0), 60.0))

    def broken(drill: FaultDrill, *_: object) -> None:
        if drill.id == "d1":
            raise OverflowError

    monkeypatch.setattr("spotd.act.drill_runner.judge", broken)
    drilling(rig, link).look(rig.store)
    assert link.struck == ["d1", "d2"]


class Ender:
    """A cloud that ends machines, and whose replies are lost."""

    name = "aws"

    def __init__(self) -> None:
        self.ended: list[str] = []

    def terminate(self, instance_id: str) -> None:
        self.ended.append(instance_id)
        raise UnknownOutcome("the connection ended")


def test_a_box_that_is_back_ends_no_machine_that_has_begun_to_save(rig: Rig, link: Link) -> None:
    node, _ = ordered(rig, DrillKind.MACHINE)
    cloud = Ender()
    providers = cast("dict[str, Provider]", {"aws": cloud})

    def look() -> None:
        DrillRunner(link, lambda _: KEYS, providers, rig.context().market, rig.clock).look(
            rig.store
        )

    look()
    look()
    assert len(cloud.ended) == 2, "nobody knows whether it was told"
    told = {"notice_id": "n", "kind": "preempt", "source": "imds", "remaining_s": 100.0}
    entry = JournalEntry(1000, rig.ago(0), node.generation, "notice", told)
    rig.store.journal.record([JournalBatch(node.id, (entry,), rig.ago(0))])
    look()
    assert len(cloud.ended) == 2
    assert (only(rig).end, only(rig).text) == (
        DrillEnd.CALLED_OFF,
        "its cloud is preempting its machine",
    )


def test_a_machine_that_may_be_ending_is_not_called_off_before_it_is_heard(
    rig: Rig, link: Link
) -> None:
    node, _ = ordered(rig, DrillKind.MACHINE)
    cloud = Ender()
    providers = cast("dict[str, Provider]", {"aws": cloud})
    drill = DrillRunner(link, lambda _: KEYS, providers, rig.context().market, rig.clock)
    drill.look(rig.store)
    rig.clock.go_on(STRIKE_S + 1)
    drill.look(rig.store)
    assert (len(cloud.ended), only(rig).end) == (1, None)
    rig.say(node, 0, "ready")
    drill.look(rig.store)
    assert (len(cloud.ended), only(rig).end) == (1, DrillEnd.CALLED_OFF)


def test_an_older_agent_says_why_not(rig: Rig, link: Link) -> None:
    _, drill = ordered(rig)
    link.refuses = "unknown command 'strike'"
    drilling(rig, link).look(rig.store)
    assert only(rig).end is DrillEnd.CALLED_OFF
    assert "unknown command 'strike'" in texts(rig, drill.job_id)[-1]


def test_what_has_come_up_since_the_order_calls_it_off(rig: Rig, link: Link) -> None:
    _, drill = ordered(rig)
    rig.launch(drill.job_id, OFFERS[2], ago_s=1)
    drilling(rig, link).look(rig.store)
    assert (link.told, only(rig).end) == (0, DrillEnd.CALLED_OFF)


@pytest.mark.parametrize("kind", [DrillKind.KILL, DrillKind.MACHINE])
@pytest.mark.parametrize("aimed", [False, True])
def test_a_box_that_may_not_own_the_deployment_strikes_nothing(
    rig: Rig, link: Link, kind: DrillKind, aimed: bool
) -> None:
    """Its database is a copy: the machine that it knows trains for another."""
    node, drill = ordered(rig, kind)
    cloud = Ender()
    if aimed:
        rig.store.drills.update(replace(drill, node_id=node.id, aimed_at_us=rig.ago(0)))
    providers = cast("dict[str, Provider]", {"aws": cloud})
    DrillRunner(
        link=link,
        keys=lambda _: KEYS,
        providers=providers,
        market=rig.context().market,
        clock=rig.clock,
        contested=lambda: "another spotd has this deployment",
    ).look(rig.store)
    assert (link.told, cloud.ended, only(rig).end) == (0, [], None)


def test_an_order_that_nobody_began_for_long_is_called_off(rig: Rig, link: Link) -> None:
    """All boxes were away: what they know of the job now is of before."""
    ordered(rig)
    rig.clock.go_on(ORDER_S + 1)
    drilling(rig, link).look(rig.store)
    assert (link.told, only(rig).end) == (0, DrillEnd.CALLED_OFF)
    assert only(rig).text == "no spotd started it within 60 s"


def test_a_drill_that_fails_is_told_as_an_alert(rig: Rig, link: Link) -> None:
    _, drill = ordered(rig)
    drilling(rig, link).look(rig.store)
    rig.clock.go_on(61)
    drilling(rig, link).look(rig.store)
    assert only(rig).end is DrillEnd.FAILED
    row = rig.store.events.last(drill.job_id, "drill")
    assert row is not None
    assert row.event.alert
    assert "did not train again, within 60 s" in row.event.text
    assert replace(only(rig), ended_at_us=0) != drill
