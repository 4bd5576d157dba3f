"""Creates that take long, fail, are repeated or collide; and deletions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from providers.azure.cloud import AzureCloud, LaunchedNames
from providers.azure.create_machine import MachineCreator, PollSchedule
from providers.base import (
    AuthError,
    CapacityError,
    CapacityType,
    InstanceState,
    Launched,
    LeftoverKind,
    Pending,
    ProviderError,
    QuotaError,
    RejectedError,
    ThrottledError,
    UnknownOutcome,
)
from tests.clouds.azure.arm import VM
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.fixtures.waiting import LIMIT_S, until
from tests.providers.azure.rig import HURRIED, again, provider, request

PUT, GET, DELETE = "PUT virtualMachines", "GET virtualMachines", "DELETE virtualMachines"


@pytest.fixture
def slow(azure: StandIn) -> Iterator[StandIn]:
    """Creates and deletions last until the test finishes them."""
    azure.arm.create_s = azure.arm.delete_s = 3 * LIMIT_S
    yield azure
    azure.arm.create_s = azure.arm.delete_s = 0.0


def arm(azure: StandIn, what: str, call: str = PUT) -> None:
    azure.arm.faults.arm(Fault(what, (call,)))


def finish(azure: StandIn) -> None:
    """Finish all operations."""
    with azure.arm.lock:
        for operation in azure.arm.world.operations.values():
            operation.until_s = 0.0
    azure.arm.world.settle()


def resources(azure: StandIn, cloud: AzureCloud) -> list[str]:
    """Return the resources in its group."""
    part = f"/resourcegroups/{cloud._group}/".lower()
    world = azure.arm.world
    return sorted(key.split("/")[-2] for key in [*world.machines, *world.others] if part in key)


ALL = ["disks", "networkinterfaces", "publicipaddresses", "virtualmachines"]

# --- a create that takes long


def test_a_slow_create_is_pending_within_its_time(slow: StandIn) -> None:
    cloud = provider(slow, pace=HURRIED)
    assert isinstance(cloud.launch(request("slow")), Pending)
    (machine,) = cloud.list()
    assert (machine.state, machine.token) == (InstanceState.PENDING, "slow")
    assert isinstance(cloud.launch(request("slow")), Pending)  # asked for again
    finish(slow)
    assert cloud.launch(request("slow")) == Launched("slow")
    assert cloud.list()[0].state is InstanceState.RUNNING
    assert len([c for c in slow.arm.calls if c.method == "PUT" and "/slow" in c.path]) <= 2


def test_a_create_is_looked_at_no_longer_than_there_is_patience(slow: StandIn) -> None:
    cloud, now_s = provider(slow), [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    schedule = PollSchedule(patience_s=7.0, poll_s=1.0)
    cloud._creator = MachineCreator(cloud._clients, cloud._group, schedule, lambda: now_s[0], sleep)
    assert isinstance(cloud.launch(request("patient")), Pending)
    assert now_s == [6.0]
    assert slow.arm.counted().count("GET operations") == 6


def test_that_nobody_tells_how_far_it_is_says_nothing_about_it(azure: StandIn) -> None:
    cloud = provider(azure)
    arm(azure, "http_500", "GET operations")
    assert isinstance(cloud.launch(request("dumb")), Pending)
    assert [machine.token for machine in cloud.list()] == ["dumb"]


def test_a_machine_is_ended_while_it_is_being_made(slow: StandIn) -> None:
    cloud = provider(slow, pace=HURRIED)
    cloud.launch(request("cancelled"))
    cloud.terminate("cancelled")
    assert cloud.list()[0].state is InstanceState.STOPPING
    cloud.terminate("cancelled")
    finish(slow)
    assert cloud.list() == []
    assert resources(slow, cloud) == []


def test_its_expiry_waits_until_it_is_made(slow: StandIn) -> None:
    """Changing its tags would replace its create."""
    cloud = provider(slow, pace=HURRIED)
    cloud.launch(request("young"))
    slow.arm.calls.clear()
    with pytest.raises(UnknownOutcome, match="is still being created"):
        cloud.renew("young", 1_950_000_000_000_000)
    assert slow.arm.counted() == [GET]
    finish(slow)
    cloud.renew("young", 1_950_000_000_000_000)
    assert cloud.list()[0].expires_at_us == 1_950_000_000_000_000


# --- a create that fails


@pytest.mark.parametrize("what", ["fails", "sync_husk"])
def test_what_a_failed_create_left_is_removed_before_it_is_told(azure: StandIn, what: str) -> None:
    cloud = provider(azure)
    arm(azure, what)
    with pytest.raises(CapacityError, match="AllocationFailed"):
        cloud.launch(request("husk"))
    assert resources(azure, cloud) == []
    assert cloud.launch(request("husk")) == Launched("husk")
    assert resources(azure, cloud) == ALL


@pytest.mark.parametrize("call", [GET, DELETE])
def test_a_husk_that_could_not_be_removed_is_removed_by_the_next(azure: StandIn, call: str) -> None:
    cloud = provider(azure)
    arm(azure, "fails")
    arm(azure, "http_500", call)
    with pytest.raises(CapacityError, match="AllocationFailed"):
        cloud.launch(request("husk"))
    assert resources(azure, cloud) == ALL
    (row,) = cloud.list()
    assert (row.state, row.error_code) == (InstanceState.FAILED, "CapacityError")
    assert "sufficient capacity" in row.error
    with pytest.raises(CapacityError, match="AllocationFailed"):
        again(cloud, azure).launch(request("husk"))
    assert resources(azure, cloud) == []


def test_a_husk_is_a_leftover(azure: StandIn) -> None:
    cloud = provider(azure)
    arm(azure, "fails")
    arm(azure, "http_500", DELETE)
    with pytest.raises(CapacityError):
        cloud.launch(request("husk"))
    (left,) = cloud.leftovers()
    assert (left.leftover_id, left.kind) == ("husk/husk", LeftoverKind.FAILED_CREATE)
    assert left.tags["spotd-token"] == "husk"
    cloud.discard(left.leftover_id)
    cloud.discard(left.leftover_id)
    assert resources(azure, cloud) == []


def test_what_is_a_machine_by_now_is_not_discarded(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("alive"))
    with pytest.raises(RejectedError, match="is a running machine"):
        cloud.discard("husk/alive")
    assert resources(azure, cloud) == ALL


def test_a_slow_refusal_leaves_its_husk_to_the_others(azure: StandIn) -> None:
    """A launch has ten seconds, and the refusal took nine of them."""
    cloud = provider(azure)
    now = iter([0.0, *[9.0] * 9])
    cloud._creator = MachineCreator(cloud._clients, cloud._group, HURRIED, lambda: next(now))
    arm(azure, "sync_husk")
    with pytest.raises(CapacityError):
        cloud.launch(request("late"))
    assert azure.arm.counted() == [PUT]
    assert [leftover.kind for leftover in cloud.leftovers()] == [LeftoverKind.FAILED_CREATE]


@pytest.mark.parametrize(
    ("what", "error"),
    [("throttled", ThrottledError), ("unauthorized", AuthError), ("http_500", UnknownOutcome)],
)
def test_nobody_looks_for_a_husk_where_none_can_be(
    azure: StandIn, what: str, error: type[ProviderError]
) -> None:
    cloud = provider(azure)
    arm(azure, what)
    with pytest.raises(error):
        cloud.launch(request("refused"))
    assert azure.arm.counted() == [PUT]


def test_a_machine_whose_last_operation_failed_trains_on(azure: StandIn) -> None:
    """It is Failed, like a failed create; but it runs."""
    cloud = provider(azure)
    cloud.launch(request("tagged"))
    azure.arm.machine("tagged").become("Failed")
    assert cloud.list()[0].state is InstanceState.RUNNING
    assert cloud.leftovers() == []
    assert again(cloud, azure).launch(request("tagged")) == Launched("tagged")
    assert resources(azure, cloud) == ALL


def test_a_quota_of_a_family_is_not_that_of_all_spot_machines(azure: StandIn) -> None:
    cloud = provider(azure)
    arm(azure, "quota")
    with pytest.raises(QuotaError):
        cloud.launch(request("quota"))
    assert resources(azure, cloud) == []


# --- the same name


@pytest.mark.parametrize(
    "changes",
    [
        {"tags": {**request("x").tags, "spotd-job": "j2"}},
        {"instance_type": "Standard_NC24ads_A100_v4"},
        {"zone": "eastus-2"},
        {"zone": "eastus-any"},
        {"capacity_type": CapacityType.ON_DEMAND},
        {"region": "westeurope", "zone": "westeurope-any"},
    ],
)
def test_a_name_with_another_request_is_rejected(azure: StandIn, changes: dict[str, Any]) -> None:
    cloud = provider(azure)
    cloud.launch(request("taken"))
    for asker in (cloud, again(cloud, azure)):
        with pytest.raises(RejectedError, match="another request"):
            asker.launch(request("taken", **changes))
    assert len(cloud.list()) == 1


def test_tags_that_others_add_and_an_expiry_that_moved_make_no_other_request(
    azure: StandIn,
) -> None:
    cloud = provider(azure)
    cloud.launch(request("policy"))
    azure.arm.machine("policy").row["tags"]["cost-center"] = "7"
    cloud.renew("policy", 1_950_000_000_000_000)
    assert again(cloud, azure).launch(request("policy")) == Launched("policy")
    assert azure.arm.machine("policy").row["tags"]["cost-center"] == "7"


@pytest.mark.parametrize("evicted", [True, False])
def test_what_this_process_has_seen_is_not_made_a_second_time(
    azure: StandIn, evicted: bool
) -> None:
    maker = provider(azure)
    maker.launch(request("ended"))
    cloud = again(maker, azure)
    assert [machine.token for machine in cloud.list()] == ["ended"]  # all that it knows of it
    if evicted:
        maker._clients.compute(
            lambda c: c.virtual_machines.simulate_eviction(maker._group, "ended")
        )
    else:
        maker.terminate("ended")
    azure.arm.calls.clear()
    assert cloud.launch(request("ended")) == Launched("ended")
    assert azure.arm.counted() == [GET]
    assert cloud.list() == []


def test_azure_itself_has_forgotten_the_name(azure: StandIn) -> None:
    """It is not Azure that keeps a machine from being created again: see docs/clouds/azure.md."""
    cloud = provider(azure)
    cloud.launch(request("ended"))
    cloud.terminate("ended")
    assert again(cloud, azure).launch(request("ended")) == Launched("ended")
    assert [machine.token for machine in cloud.list()] == ["ended"]


def test_names_are_not_kept_for_ever() -> None:
    seen = LaunchedNames(max_names=2)
    seen.add(["a", "b", "a"])
    seen.add(["c"])
    assert [name in seen for name in "abc"] == [True, False, True]


def test_many_at_once_make_one(slow: StandIn) -> None:
    cloud = provider(slow, pace=HURRIED)
    cloud.list()
    result: list[object] = []
    askers = [
        threading.Thread(target=lambda: result.append(cloud.launch(request("crowd"))))
        for _ in range(5)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(LIMIT_S)
    assert len(result) == 5
    assert all(isinstance(item, Pending) for item in result)
    assert resources(slow, cloud) == ALL


def test_a_conflict_with_a_create_in_flight_takes_nothing_from_it(slow: StandIn) -> None:
    cloud = provider(slow, pace=HURRIED)
    cloud.launch(request("busy"))
    arm(slow, "conflict")
    with pytest.raises(UnknownOutcome):
        again(cloud, slow, pace=HURRIED).launch(request("busy"))
    assert resources(slow, cloud) == ALL


# --- the end


def test_the_end_takes_all_that_was_made(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("whole"))
    assert resources(azure, cloud) == ALL
    cloud.terminate("whole")
    assert resources(azure, cloud) == []


def test_a_conflict_is_success_when_the_machine_ends_already(slow: StandIn) -> None:
    cloud = provider(slow, pace=HURRIED)
    cloud.launch(request("ends"))
    cloud.terminate("ends")
    arm(slow, "conflict", DELETE)
    cloud.terminate("ends")


def test_a_conflict_is_none_when_it_does_not(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("stays"))
    arm(azure, "conflict", DELETE)
    with pytest.raises(UnknownOutcome):
        cloud.terminate("stays")


def test_a_group_that_is_not_there_is_no_machine_that_is_gone(azure: StandIn) -> None:
    """Its name may be misspelt, and the machines are in another."""
    cloud = provider(azure)
    azure.arm.gone_groups.add(cloud._group)
    with pytest.raises(ProviderError, match="ResourceGroupNotFound"):
        cloud.terminate("anything")
    with pytest.raises(ProviderError, match="ResourceGroupNotFound"):
        cloud.list()


def test_an_evicted_machine_is_gone(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("taken-away"))
    group = cloud._group
    cloud._clients.compute(lambda c: c.virtual_machines.simulate_eviction(group, "taken-away"))
    until(lambda: cloud.list() == [])
    assert not [key for key in azure.arm.world.machines if VM.lower() in key and group in key]


# --- a renewal


def test_a_renewal_between_two_others_loses_nothing(azure: StandIn) -> None:
    """Somebody changes the tags between the read and the update."""
    cloud = provider(azure)
    cloud.launch(request("shared"))
    machine, answer = azure.arm.machine("shared"), azure.arm._patch
    meddled = []

    def meddle(*args: Any) -> Any:
        if not meddled:
            meddled.append(True)
            machine.row["tags"] = {**machine.row["tags"], "owner": "somebody"}
            machine.become("Succeeded")
        return answer(*args)

    azure.arm._patch = meddle  # type: ignore[method-assign]
    try:
        cloud.renew("shared", 1_950_000_000_000_000)
    finally:
        del azure.arm._patch
    assert machine.row["tags"]["owner"] == "somebody"
    assert machine.row["tags"]["spotd-expires"] == "1950000000"
    assert azure.arm.counted()[-4:] == [GET, "PATCH virtualMachines"] * 2
