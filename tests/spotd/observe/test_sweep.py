"""Orphans are ended after a grace, loudly, and nothing else is: a machine that the record never
asked for is held, and so is a crowd."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from providers.base import InstanceState, LaunchRequest, ProviderError
from spotd.domain.events import Event
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.observe.sweep import FRESH_S, REPEAT_S, Sweep
from spotd.planner.core.orphan_policy import GRACE_S, OrphanAction
from spotd.store.errors import LostLeaseError, StoreUnavailableError
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import Stage, job_keys
from tests.spotd.store import build


def trained(stage: Stage, job: str = "j1") -> str:
    """A job that trains on aws; the id of its instance."""
    stage.goal = None
    stage.submit(job)
    stage.run(lambda s: s.nodes(job, NodeState.RUNNING))
    return stage.nodes(job)[0].instance_id


def orphaned(stage: Stage, *jobs: str) -> list[str]:
    """Machines whose nodes are gone, and that live: creates that came late."""
    stage.goal = 0
    found = []
    for job in jobs:
        stage.submit(job)
        stage.run(lambda s, job=job: s.over(job))  # type: ignore[misc]
        found.append(stage.nodes(job)[0].instance_id)
    for instance in found:
        revive(stage, instance)
    stage.goal = None
    return found


def revive(
    stage: Stage, instance: str, state: InstanceState = InstanceState.RUNNING, cloud: str = "aws"
) -> None:
    machine = stage.clouds[cloud].machines[instance]
    machine.instance = replace(machine.instance, state=state)


def plant(stage: Stage, token: str = "t-nobody", **tags: str) -> str:
    """A machine with our tag that no node ever asked for."""
    offer, keys = build.offer(), job_keys()
    launched = stage.clouds["aws"].launch(
        LaunchRequest(
            token=token,
            name=token,
            region=offer.region,
            zone=offer.zone,
            instance_type=offer.instance_type,
            capacity_type=offer.capacity_type,
            tags={"spotd-deployment": "d0", "spotd-job": "jold", "spotd-generation": "3", **tags},
            ssh_user="spotd",
            ssh_public_key=keys.user.public,
            host_private_key="",
            host_public_key="",
        )
    )
    return str(vars(launched)["instance_id"])


def look(stage: Stage, after_s: float = 0.0) -> None:
    stage.clock.sleep(after_s)
    stage.survey.sweep("aws", stage.duty("survey:aws"))


def told(stage: Stage, kind: str = "orphan") -> list[Event]:
    return [row.event for row in stage.store.events.rows(None) if row.event.kind == kind]


# --- what the record itself says is over


@pytest.mark.req("RPV-10")
def test_an_orphan_is_ended_after_its_grace_with_an_alert(stage: Stage) -> None:
    [orphan] = orphaned(stage, "old")
    gone_us = stage.nodes("old")[0].machine.gone_at_us
    look(stage, GRACE_S - 1 - (stage.clock.now_us() - gone_us) / 1e6)
    assert stage.alive() == [orphan]
    assert told(stage) == []
    look(stage, 1)
    assert stage.alive() == []
    (event,) = told(stage)
    assert event.alert
    assert orphan in event.text
    assert stage.store.alerts.due(stage.clock.now_us(), 10)[-1].event.kind == "orphan"
    assert [row.job_id for row in stage.store.events.rows("old") if row.event == event] == ["old"]


@pytest.mark.parametrize(
    "change",
    [
        {"tags": {"spotd-deployment": "d1"}},
        {"token": "t-other"},
        {"state": InstanceState.TERMINATED},
        {},
    ],
    ids=["owner", "token", "ended", "no answer"],
)
def test_right_before_the_end_it_is_looked_at_once_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """What is not as it was judged is not ended, and neither is what cannot be looked at."""
    [orphan] = orphaned(stage, "old")
    cloud = stage.clouds["aws"]
    listed = cloud.list
    times: list[int] = []

    def list_() -> Any:
        times.append(1)
        if len(times) == 1:
            return listed()
        if not change:
            raise ProviderError("timed out")
        return [replace(instance, **change) for instance in listed()]

    monkeypatch.setattr(cloud, "list", list_)
    ended = cloud.calls["terminate"]
    look(stage, GRACE_S)
    assert (len(times), cloud.calls["terminate"], told(stage)) == (2, ended, [])
    monkeypatch.setattr(cloud, "list", listed)
    look(stage, 1)
    assert stage.alive() == []
    assert orphan in told(stage)[0].text


def test_what_a_node_wants_is_left_alone(stage: Stage) -> None:
    wanted = trained(stage)
    for _ in range(3):
        look(stage, GRACE_S)
    assert stage.alive() == [wanted]
    assert stage.survey.held() == []


@pytest.mark.parametrize("known", [True, False], ids=["row", "person"])
def test_a_daemon_that_dies_again_and_again_lets_no_orphan_live_longer(
    stage: Stage, known: bool
) -> None:
    """Its node is gone on record, or it never had one and a person let it go: that, and not who saw
    it since when, begins the grace."""
    [orphan] = orphaned(stage, "old") if known else [plant(stage)]
    began_us = stage.nodes("old")[0].machine.gone_at_us if known else stage.clock.now_us()
    stage.store.orphans.release("aws", 0 if known else began_us)
    while stage.clock.now_us() < began_us + int((GRACE_S - 1) * 1e6):
        look(stage)
        assert stage.alive() == [orphan]
        stage.restart()
    look(stage, 2)
    assert stage.alive() == []


def test_the_grace_begins_anew_when_it_was_not_seen(stage: Stage) -> None:
    """Of a second machine for one token, whose node goes on. That of the others begins with the end
    of their node, or when a person let them go."""
    wanted = trained(stage)
    cloud = stage.clouds["aws"]
    twin = copy(cloud.machines[wanted])
    twin.instance = replace(twin.instance, instance_id="i-twin")
    cloud.machines["i-twin"] = twin
    look(stage)
    del cloud.machines["i-twin"]
    look(stage, 30)
    cloud.machines["i-twin"] = twin
    look(stage, GRACE_S)
    assert sorted(stage.alive()) == sorted([wanted, "i-twin"])
    look(stage, GRACE_S)
    assert stage.alive() == [wanted]


def test_one_that_cannot_be_ended_breaks_nothing_and_is_tried_again(stage: Stage) -> None:
    orphans = orphaned(stage, "old", "older")
    look(stage)
    stage.clouds["aws"].fail("terminate", ProviderError("502"))
    look(stage, GRACE_S)
    assert len(set(stage.alive()) & set(orphans)) == 1, "the other had its turn"
    assert len(told(stage)) == 1
    look(stage, 10)
    assert stage.alive() == []
    assert len(told(stage)) == 2


def test_a_store_that_is_away_loses_no_orphans_story(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps no other orphan from its end."""
    orphans = orphaned(stage, "old", "older")
    look(stage)

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(type(stage.store.events), "add", away)
    with pytest.raises(StoreUnavailableError):
        look(stage, GRACE_S)
    assert stage.alive() == []
    monkeypatch.undo()
    look(stage, 10)
    assert sorted(event.text.split()[0] for event in told(stage)) == sorted(orphans)
    look(stage, 10)
    assert len(told(stage)) == 2


def test_who_asks_for_a_listing_out_of_turn_ends_nothing(stage: Stage) -> None:
    """To end orphans is a duty, and an effect may look on any replica."""
    [orphan] = orphaned(stage, "old")
    for _ in range(2):
        stage.survey.survey("aws")()
        stage.clock.sleep(GRACE_S)
    assert orphan in stage.alive()


def test_who_was_overtaken_after_the_listing_ends_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still between what it recorded and what it was about to do."""
    [orphan] = orphaned(stage, "old")
    look(stage)
    stage.clock.sleep(GRACE_S)
    instances = type(stage.store.instances)
    store, record = stage.duty("survey:aws"), instances.record_listing

    def stand_still(*arguments: Any) -> object:
        found = record(*arguments)
        stage.clock.sleep(30)
        assert stage.store.leases.take("survey:aws", "you", stage.clock.now_us, 20 * S) == 2
        return found

    with monkeypatch.context() as patch:
        patch.setattr(instances, "record_listing", stand_still)
        with pytest.raises(LostLeaseError):
            stage.survey.sweep("aws", store)
    assert orphan in stage.alive()
    assert told(stage) == []
    stage.clock.sleep(30)
    look(stage)
    assert orphan not in stage.alive(), "it is tried at once by who has the duty again"


def test_one_that_dies_slowly_is_told_again_but_its_story_only_once(stage: Stage) -> None:
    """Some clouds list a machine for minutes after they took the order."""
    [orphan] = orphaned(stage, "old")
    cloud = stage.clouds["aws"]
    before = cloud.calls["terminate"]
    look(stage)
    look(stage, GRACE_S)
    for _ in range(int(2 * REPEAT_S / 10)):
        revive(stage, orphan, InstanceState.STOPPING)
        look(stage, 10)
    assert cloud.calls["terminate"] == before + 3
    assert len(told(stage)) == 1


def test_listings_recorded_side_by_side_end_an_orphan_once(stage: Stage) -> None:
    orphaned(stage, "old")
    before = stage.clouds["aws"].calls["terminate"]
    look(stage)
    stage.clock.sleep(GRACE_S)
    store = stage.duty("survey:aws")
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(stage.survey.sweep, "aws", store) for _ in range(8)]:
            done.result(LIMIT_S)
    assert stage.clouds["aws"].calls["terminate"] == before + 1
    assert len(told(stage)) == 1


def test_the_cloud_is_asked_before_the_record(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round, a machine that was launched in between would be nobody's."""
    order: list[str] = []
    cloud = stage.clouds["aws"]
    for what, name in (
        (cloud, "list"),
        (type(stage.store.instances), "record_listing"),
        (type(stage.store.orphans), "known"),
    ):
        real = getattr(what, name)

        def spied(*args: object, name: str = name, real: object = real) -> object:
            order.append(name)
            return real(*args)  # type: ignore[operator]

        monkeypatch.setattr(what, name, spied)
    plant(stage)
    look(stage)
    assert order == ["list", "record_listing", "known"]


# --- what the record never asked for


def test_a_machine_that_no_row_ever_asked_for_is_held_and_a_person_told_once(stage: Stage) -> None:
    wanted = trained(stage)
    stranger = plant(stage)
    for _ in range(5):
        look(stage, GRACE_S)
    assert sorted(stage.alive()) == sorted([wanted, stranger]), "an hour says nothing new"
    (event,) = told(stage, "orphan_held")
    assert event.alert
    for word in (stranger, "job jold is not on record", "spotctl orphans end"):
        assert word in event.text
    (held,) = stage.survey.held()
    assert (held.instance.instance_id, held.fate) == (stranger, OrphanAction.HOLD)


def test_what_another_box_sweeps_now_is_not_shown_as_it_was(stage: Stage) -> None:
    plant(stage)
    assert "aws" in stage.survey.unswept()
    look(stage)
    assert stage.survey.held()
    assert "aws" in stage.survey.unswept(), "what machines left behind is a duty by itself"
    stage.survey.clear_up("aws", stage.duty("leftovers:aws"))
    assert "aws" not in stage.survey.unswept()
    stage.clock.sleep(FRESH_S + 1)
    assert stage.survey.held() == []
    assert "aws" in stage.survey.unswept()
    look(stage)
    assert stage.survey.held()


def test_a_machine_of_a_generation_that_was_never_decided_is_held(stage: Stage) -> None:
    """The database was restored from a backup: the fleet is newer, and trains."""
    trained(stage)
    plant(stage, **{"spotd-job": "j1", "spotd-generation": "7"})
    look(stage)
    look(stage, GRACE_S)
    (event,) = told(stage, "orphan_held")
    assert "generation 7 of job j1, and the record ends at 1" in event.text


def test_what_is_held_ends_when_a_person_says_so_and_only_what_stood_there_then(
    stage: Stage,
) -> None:
    first = plant(stage)
    look(stage)
    look(stage, GRACE_S)
    stage.store.orphans.release("aws", stage.clock.now_us())
    stage.clock.sleep(1)
    later = plant(stage, "t-later")
    look(stage)
    assert stage.alive() == [later]
    assert first in told(stage)[0].text
    look(stage, GRACE_S)
    assert stage.alive() == [later]
    assert [held.instance.instance_id for held in stage.survey.held()] == [later]


def test_a_crowd_of_orphans_is_held(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two may end, three of three are more likely a mistake: here of the cloud, which listed none
    of those that train."""
    jobs = ("a", "b", "c")
    orphans = [trained(stage, job) for job in jobs]
    with monkeypatch.context() as patch:
        for cloud in stage.clouds.values():
            patch.setattr(cloud, "list", list)
        for job in jobs:
            stage.machine(stage.nodes(job)[0]).hung = True
        gone = NodeState.GONE
        stage.run(lambda s: all(s.nodes(job)[0].state is gone for job in jobs))
    assert set(orphans) <= set(stage.alive())
    look(stage, GRACE_S)
    assert set(orphans) <= set(stage.alive())
    held = told(stage, "orphan_held")[-1].text
    assert "machines would end at once, and more than 2 is more likely a mistake" in held
    assert all(orphan in held for orphan in orphans)
    stage.store.orphans.release("aws", stage.clock.now_us())
    look(stage)
    assert not set(orphans) & set(stage.alive())
    assert stage.survey.held() == []


def test_a_crowd_that_its_cloud_had_accepted_to_end_is_ended(stage: Stage) -> None:
    """It did not follow, and lists them again: each was decided about by itself."""
    orphans = orphaned(stage, "a", "b", "c")
    assert all(stage.nodes(job)[0].machine.terminated_at_us for job in ("a", "b", "c"))
    look(stage)
    assert sorted(stage.alive()) == sorted(orphans)
    look(stage, GRACE_S)
    assert stage.alive() == []
    assert stage.survey.held() == []
    assert told(stage, "orphan_held") == []


def test_in_a_quarantine_nothing_is_ended(stage: Stage) -> None:
    """Not even what the record itself says is over, and not what was released before."""
    [orphan] = orphaned(stage, "old")
    stage.store.orphans.release("aws", stage.clock.now_us())
    stage.store.deployment.set_quarantine("restored from a backup", stage.clock.now_us())
    look(stage)
    look(stage, GRACE_S)
    assert stage.alive() == [orphan]
    assert "in quarantine: restored from a backup" in told(stage, "orphan_held")[0].text
    stage.store.deployment.set_quarantine("", stage.clock.now_us())
    look(stage)
    assert stage.alive() == []


def test_another_deployments_machine_is_never_touched(stage: Stage) -> None:
    """Not even where an adapter lists it by mistake, and a person has released everything."""
    foreign = plant(stage, **{"spotd-deployment": "d-other"})
    nobodys = plant(stage, "t-2", **{"spotd-deployment": ""})
    look(stage)
    stage.clock.sleep(GRACE_S)
    stage.store.orphans.release("aws", stage.clock.now_us())
    look(stage)
    look(stage, GRACE_S)
    assert stage.alive() == [foreign, nobodys]
    assert {held.fate for held in stage.survey.held()} == {OrphanAction.FOREIGN}


def test_a_listing_that_comes_late_ends_nobody_twice(stage: Stage) -> None:
    """It was taken before the orphan ended, and is recorded after one that was taken later."""
    [orphan] = orphaned(stage, "old")
    stage.clock.sleep(GRACE_S)
    cloud, store = stage.clouds["aws"], stage.duty("survey:aws")
    stale = [cloud.machines[orphan].instance]
    before = cloud.calls["terminate"]
    sweep = Sweep(cloud, stage.clock)
    for listed in (stale, [], stale):
        sweep.run(store, listed, listed)
    assert cloud.calls["terminate"] == before + 1
    assert len(told(stage)) == 1
