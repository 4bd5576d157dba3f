"""Machine images, made of disks by Compute Engine."""

from __future__ import annotations

import pytest

from providers.base import Launched, ProviderError, RejectedError, UnknownOutcome
from providers.gcp.cloud import GcpCloud
from providers.images import Image, ImageMaker, ImageState
from tests.clouds.gcp.state import Project
from tests.fixtures.waiting import until
from tests.providers.gcp.conftest import Lab, request

MACHINE = "us-central1-a/spotd-bake"
NAME = "spotd-baked"


@pytest.fixture
def cloud(lab: Lab) -> GcpCloud:
    cloud = lab.cloud()
    cloud.launch(request("spotd-bake"))
    lab.calls()
    return cloud


def ready(cloud: GcpCloud) -> Image:
    def settled() -> Image | None:
        image = cloud.make_image(MACHINE, NAME, {})
        return image if image.state is not ImageState.MAKING else None

    return until(settled)


def test_the_name_makes_one_image_of_it_and_machines_start_from_that(
    lab: Lab, cloud: GcpCloud
) -> None:
    assert isinstance(cloud, ImageMaker)
    first = cloud.make_image(MACHINE, NAME, {"spotd-job": "j1"})
    assert first.state is ImageState.MAKING
    made = ready(cloud)
    assert lab.calls().count("images.insert") == 1
    assert (made.state, made.region) == (ImageState.AVAILABLE, "")
    assert made.image_id == first.image_id == f"projects/{lab.name}/global/images/{NAME}"
    assert made.tags == {"spotd-job": "j1", "spotd-deployment": "d0", "spotd-image": NAME}
    assert made.made_at_us > 1_500_000_000_000_000
    assert cloud.images() == [made]
    assert lab.cloud("d1").images() == []
    assert isinstance(cloud.launch(request("spotd-next", image_id=made.image_id)), Launched)
    # The operation is in no zone, and no machine of ours.
    assert {machine.token for machine in cloud.list()} == {"spotd-bake", "spotd-next"}


def test_an_answer_that_was_lost_is_found_by_the_name(lab: Lab, cloud: GcpCloud) -> None:
    lab.fault("lost_reply", "images.insert")
    with pytest.raises(UnknownOutcome):
        cloud.make_image(MACHINE, NAME, {})
    assert ready(cloud).state is ImageState.AVAILABLE
    assert lab.calls().count("images.insert") == 1


def test_one_that_is_made_and_not_seen_yet_is_not_made_again(lab: Lab, cloud: GcpCloud) -> None:
    cloud.make_image(MACHINE, NAME, {})
    lab.fault("invisible", "images.get")
    assert cloud.make_image(MACHINE, NAME, {}).state is ImageState.MAKING
    assert list(lab.project.images) == [NAME]


def test_one_that_fails_says_so_each_time(lab: Lab, cloud: GcpCloud) -> None:
    lab.fault("quota", "images.insert")
    for _ in range(2):
        image = ready(cloud)
        assert image.state is ImageState.FAILED
        assert "QUOTA_EXCEEDED" in image.error
    assert cloud.images() == []


def test_a_name_of_somebody_else_is_not_taken_from_them(lab: Lab, cloud: GcpCloud) -> None:
    taken, other = ready(cloud), lab.cloud("d1")
    with pytest.raises(RejectedError, match="of another deployment: use another name"):
        other.make_image(MACHINE, NAME, {})
    other.remove_image(taken.image_id)
    assert cloud.images() == [taken]


def test_a_machine_that_is_gone_and_a_name_that_is_none_are_refused(
    lab: Lab, cloud: GcpCloud
) -> None:
    for machine in ("us-central1-a/spotd-other", "nothing"):
        with pytest.raises(RejectedError, match="is gone, and no image can be made of it"):
            cloud.make_image(machine, NAME, {})
    with pytest.raises(RejectedError, match="is not a valid image name"):
        cloud.make_image(MACHINE, "baked", {})
    assert "images.insert" not in lab.calls()


def test_it_goes_and_an_unknown_one_is_success(lab: Lab, cloud: GcpCloud) -> None:
    image = ready(cloud)
    lab.fault("went_before", "images.delete")
    cloud.remove_image(image.image_id)
    until(lambda: cloud.images() == [])
    cloud.remove_image(image.image_id)
    lab.calls()
    cloud.remove_image("projects/ubuntu-os-cloud/global/images/theirs")
    assert lab.calls() == []


def test_a_list_has_pages_and_half_a_look_is_none(lab: Lab, cloud: GcpCloud) -> None:
    _more_images(lab.project, cloud)
    lab.gce.page = 2
    assert len(cloud.images()) == 3
    for what in ("unauthorized", "throttled", "http_500"):
        lab.fault(what, "images.list")
        with pytest.raises(ProviderError):
            cloud.images()


def _more_images(project: Project, cloud: GcpCloud) -> None:
    for number in range(3):
        cloud.make_image(MACHINE, f"{NAME}-{number}", {})
    project.finish_all()
