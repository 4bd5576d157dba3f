"""Machine images, by snapshots of disks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from providers.azure.cloud import AzureCloud
from providers.base import Launched, ProviderError, RejectedError, UnknownOutcome
from providers.images import ImageMaker, ImageState
from tests.clouds.azure.arm import SUBSCRIPTION
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import again, provider, request
from tests.providers.azure.test_launch import on_the_wire, shown

NAME = "spotd-baked"


@pytest.fixture
def cloud(azure: StandIn) -> Iterator[AzureCloud]:
    cloud = provider(azure)
    cloud.launch(request("bake"))
    azure.arm.calls.clear()
    yield cloud
    azure.arm.images.state = "Succeeded"


def puts(azure: StandIn) -> list[str]:
    return [call.call for call in azure.arm.calls if call.method == "PUT"]


def test_the_page_shows_what_goes_over_the_wire(azure: StandIn) -> None:
    cloud = provider(azure, resource_group="spotd")
    cloud.launch(request("bake"))
    azure.arm.calls.clear()
    for _ in range(2):
        image = cloud.make_image("bake", NAME, {"spotd-job": "j1"})
    cloud.remove_image(image.image_id)
    disk = azure.arm.machine("bake").row["properties"]["storageProfile"]["osDisk"]["name"]
    sent = [call for call in azure.arm.calls if call.method in ("PUT", "DELETE")]
    for call, heading in zip(sent, ("snapshot", "image", "remove image"), strict=False):
        line, body = shown(heading)
        assert line == on_the_wire(call)
        if body is not None:
            source = body["properties"].get("creationData", {})
            if "sourceResourceId" in source:
                source["sourceResourceId"] = source["sourceResourceId"].replace("OSDISK", disk)
            assert body == call.body
    assert [call.call for call in sent] == [
        "PUT snapshots",
        "PUT images",
        "DELETE images",
        "DELETE snapshots",
    ]


def test_the_name_makes_one_image_of_it_and_machines_start_from_that(
    azure: StandIn, cloud: AzureCloud
) -> None:
    assert isinstance(cloud, ImageMaker)
    arm = azure.arm
    arm.images.state = "Updating"
    for _ in range(2):
        first = cloud.make_image("bake", NAME, {"spotd-job": "j1"})
        assert first.state is ImageState.MAKING
    assert puts(azure) == ["PUT snapshots"]
    assert cloud.images() == [cloud.make_image("bake", NAME, {})]  # told before it is one
    arm.images.become(arm.world, "Succeeded")
    cloud.terminate("bake")  # the snapshot has all that is needed
    for _ in range(2):
        assert cloud.make_image("bake", NAME, {}).state is ImageState.MAKING
    assert puts(azure) == ["PUT snapshots", "PUT images"]
    arm.images.become(arm.world, "Succeeded")
    made = cloud.make_image("bake", NAME, {})
    assert (made.state, made.region) == (ImageState.AVAILABLE, "eastus")
    assert made.image_id == first.image_id
    assert made.tags == {"spotd-job": "j1", "spotd-deployment": "d0", "spotd-image": NAME}
    assert cloud.images() == [made]
    assert again(cloud, azure, deployment="d1").images() == []
    assert cloud.launch(request("next", image_id=made.image_id)) == Launched("next")


@pytest.mark.parametrize("kind", ["snapshots", "images"])
def test_an_answer_that_was_lost_is_found_by_the_name(
    azure: StandIn, cloud: AzureCloud, kind: str
) -> None:
    if kind == "images":
        cloud.make_image("bake", NAME, {})
    azure.arm.faults.arm(Fault("lost_reply", (f"PUT {kind}",)))
    with pytest.raises(UnknownOutcome):
        cloud.make_image("bake", NAME, {})
    for _ in range(2):
        image = cloud.make_image("bake", NAME, {})
    assert image.state is ImageState.AVAILABLE
    assert puts(azure) == ["PUT snapshots", "PUT images"]


def test_one_that_fails_says_so(azure: StandIn, cloud: AzureCloud) -> None:
    azure.arm.images.state = "Failed"
    cloud.make_image("bake", NAME, {})
    image = cloud.make_image("bake", NAME, {})
    assert (image.state, image.error) == (
        ImageState.FAILED,
        "Microsoft.Compute/snapshots is Failed",
    )
    assert puts(azure) == ["PUT snapshots"]


def test_a_name_of_somebody_else_is_not_taken_from_them(azure: StandIn, cloud: AzureCloud) -> None:
    for _ in range(3):
        taken = cloud.make_image("bake", NAME, {})
    other = again(cloud, azure, deployment="d1")
    with pytest.raises(RejectedError, match="of another deployment: use another name"):
        other.make_image("bake", NAME, {})
    other.remove_image(taken.image_id)
    assert cloud.images() == [taken]


def test_a_machine_that_is_gone_and_a_name_that_is_none_are_refused(
    azure: StandIn, cloud: AzureCloud
) -> None:
    with pytest.raises(RejectedError, match="other is gone, and no image can be made of it"):
        cloud.make_image("other", NAME, {})
    with pytest.raises(RejectedError, match="is not a valid image name"):
        cloud.make_image("bake", "Baked", {})
    assert puts(azure) == []


def test_a_removal_that_broke_off_is_finished_by_the_next(
    azure: StandIn, cloud: AzureCloud
) -> None:
    for _ in range(3):
        image = cloud.make_image("bake", NAME, {})
    azure.arm.faults.arm(Fault("http_500", ("DELETE snapshots",)))
    with pytest.raises(UnknownOutcome):
        cloud.remove_image(image.image_id)
    assert [image.state for image in cloud.images()] == [ImageState.MAKING]  # what is left of it
    cloud.remove_image(image.image_id)
    assert cloud.images() == []
    cloud.remove_image(image.image_id)  # unknown
    azure.arm.calls.clear()
    elsewhere = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/x/providers/Microsoft.Compute"
    cloud.remove_image(f"{elsewhere}/images/{NAME}")
    assert azure.arm.counted() == []


@pytest.mark.parametrize("kind", ["snapshots", "images"])
@pytest.mark.parametrize("what", ["unauthorized", "throttled", "http_500"])
def test_half_a_look_is_none(azure: StandIn, cloud: AzureCloud, kind: str, what: str) -> None:
    azure.arm.faults.arm(Fault(what, (f"LIST {kind}",)))
    with pytest.raises(ProviderError):
        cloud.images()
