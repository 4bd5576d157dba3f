"""The daemon terminates what Azure cannot prevent: a launch that takes effect after the end of its
node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from providers.azure.cloud import AzureCloud
from providers.base import Launched
from spotd.domain.states import NodeState
from spotd.observe.clouds import InstanceSurvey
from spotd.planner.core.orphan_policy import GRACE_S
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import provider, request
from tests.spotd.fake_world import Stage, stages


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with contextmanager(stages)(tmp_path) as make:
        yield make()


def test_what_another_process_makes_again_is_ended_by_the_sweep(
    azure: StandIn, stage: Stage
) -> None:
    """The node has ended; the late create is by a process that has never seen its machine."""
    node, tags = _over(stage)
    late = provider(azure, name="aws")
    assert late.launch(request(node, tags=tags)) == Launched(node)
    survey = InstanceSurvey(stage.store, {"aws": late}, stage.clock)
    stage.clock.sleep(GRACE_S)
    survey.sweep("aws", stage.duty("survey:aws"))
    assert late.list() == []


def test_a_husk_that_nobody_removed_is_discarded_by_the_sweep_of_leftovers(
    azure: StandIn, stage: Stage
) -> None:
    node, tags = _over(stage)
    cloud = provider(azure, name="aws")
    azure.arm.faults.arm(Fault("fails", ("PUT virtualMachines",)))
    azure.arm.faults.arm(Fault("http_500", ("DELETE virtualMachines",)))
    with pytest.raises(Exception, match="AllocationFailed"):
        cloud.launch(request(node, tags=tags))
    assert len(cloud.leftovers()) == 1
    survey = InstanceSurvey(stage.store, {"aws": cloud}, stage.clock)
    survey.clear_up("aws", stage.duty("leftovers:aws"))
    stage.clock.sleep(GRACE_S)
    survey.clear_up("aws", stage.duty("leftovers:aws"))
    assert cloud.leftovers() == []
    assert cloud.list() == []


def test_a_disk_without_tags_is_known_by_the_name_that_its_machine_gave_it(
    azure: StandIn, stage: Stage
) -> None:
    """Besides one with an unknown token, one of another deployment, and one with another name: the
    first is kept, the others are not touched."""
    node, tags = _over(stage)
    cloud = provider(azure, name="aws")
    others = {"spotd-j9-g1-c0-r0-x": {}, "spotd-theirs": {"spotd-deployment": "d9"}, "data": {}}
    mine = _disk_of(azure, cloud, node, tags)
    held, other, data = (_disk_of(azure, cloud, name, marks) for name, marks in others.items())
    assert {leftover.leftover_id for leftover in cloud.leftovers()} == {
        f"disk/{mine}",
        f"disk/{held}",
    }
    survey = InstanceSurvey(stage.store, {"aws": cloud}, stage.clock)
    survey.clear_up("aws", stage.duty("leftovers:aws"))
    assert f"disk/{mine}" in {leftover.leftover_id for leftover in cloud.leftovers()}
    stage.clock.sleep(GRACE_S)
    survey.clear_up("aws", stage.duty("leftovers:aws"))
    names = {row["name"] for row in azure.arm.world.others.values()}
    assert {held, other, data} == {held, other, data, mine} & names
    assert [held_leftover.leftover.leftover_id for held_leftover in survey.held_leftovers()] == [
        f"disk/{held}"
    ]


def _disk_of(azure: StandIn, cloud: AzureCloud, name: str, tags: dict[str, str]) -> str:
    """The name of a disk that outlived its machine, with the tags of another deployment or none."""
    cloud.launch(request(name))
    storage = azure.arm.machine(name).row["properties"]["storageProfile"]
    disk = str(storage["osDisk"]["name"])
    azure.arm.faults.arm(Fault("leftovers", ("DELETE virtualMachines",)))
    cloud.terminate(name)
    for key, row in list(azure.arm.world.others.items()):
        if row["name"] == disk:
            row["tags"] = {k: v for k, v in tags.items() if v == "d9"}
        elif f"/{cloud._group}/" in key and name in row["name"]:
            del azure.arm.world.others[key]  # its card and its address
    return disk


def _over(stage: Stage) -> tuple[str, dict[str, str]]:
    """The token of an ended node, and the tags of its machine."""
    stage.submit("j1")
    stage.run(lambda s: s.over("j1") and s.nodes("j1", NodeState.GONE))
    row = stage.nodes("j1")[0]
    marks = {"spotd-job": "j1", "spotd-generation": str(row.generation), "spotd-rank": "0"}
    return row.token, marks | {"spotd-deployment": "d0"}
