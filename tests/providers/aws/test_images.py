"""Machine images: what goes over the wire, and their life cycle."""

from __future__ import annotations

import pytest

from providers.aws.cloud import AwsCloud
from providers.base import Launched, ProviderError, RejectedError, UnknownOutcome
from providers.images import ImageMaker, ImageState
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented
from tests.providers.aws.test_launch import golden, lines

US = "us-east-1"


@pytest.fixture
def cloud(rented: Rented) -> AwsCloud:
    return rented.cloud()


@pytest.fixture
def machine(rented: Rented, cloud: AwsCloud) -> str:
    cloud.launch(rented.request("bake"))
    rented.forget()
    return cloud.list()[0].instance_id


def test_it_goes_over_the_wire_as_the_page_shows(
    rented: Rented, cloud: AwsCloud, machine: str
) -> None:
    image = cloud.make_image(machine, f"spotd-{rented.deployment}", {"spotd-job": "j1"})
    [body] = [item.body for item in rented.aws.ec2.seen if item.action == "CreateImage"]
    shown = [line.replace(image.name, "spotd-NAME") for line in lines(body)]
    assert shown == golden("image", shown)
    assert isinstance(cloud, ImageMaker)


def test_the_name_makes_one_image_of_it_and_machines_start_from_that(
    rented: Rented, cloud: AwsCloud, machine: str
) -> None:
    name = f"spotd-{rented.deployment}"
    rented.aws.ec2.images.state = "pending"
    first = cloud.make_image(machine, name, {"spotd-job": "j1"})
    assert first.state is ImageState.MAKING
    assert cloud.make_image(machine, name, {}).state is ImageState.MAKING
    rented.aws.ec2.images.finish(US, first.image_id)
    made = cloud.make_image(machine, name, {})
    assert rented.actions("CreateImage") == ["CreateImage"]
    assert (made.state, made.image_id, made.region) == (ImageState.AVAILABLE, first.image_id, US)
    assert made.tags["spotd-job"] == "j1"
    assert made.made_at_us > 1_500_000_000_000_000
    assert cloud.images() == [made]
    assert Rented(rented.aws).cloud().images() == []
    assert isinstance(cloud.launch(rented.request("next", image_id=made.image_id)), Launched)


def test_an_answer_that_was_lost_is_found_by_the_name(
    rented: Rented, cloud: AwsCloud, machine: str
) -> None:
    name = f"spotd-{rented.deployment}"
    rented.aws.ec2.faults.arm(Fault("lost_reply", ("CreateImage",)))
    with pytest.raises(UnknownOutcome):
        cloud.make_image(machine, name, {})
    assert cloud.make_image(machine, name, {}).state is ImageState.AVAILABLE
    assert len(cloud.images()) == 1


def test_one_that_fails_says_so(rented: Rented, cloud: AwsCloud, machine: str) -> None:
    rented.aws.ec2.images.state = "failed"
    name = f"spotd-{rented.deployment}"
    cloud.make_image(machine, name, {})
    image = cloud.make_image(machine, name, {})
    assert (image.state, image.error) == (ImageState.FAILED, "failed")


def test_a_name_of_somebody_else_is_not_taken_from_them(
    rented: Rented, cloud: AwsCloud, machine: str
) -> None:
    other = Rented(rented.aws)
    theirs = other.cloud()
    theirs.launch(other.request("theirs"))
    name = f"spotd-{rented.deployment}"
    taken = theirs.make_image(theirs.list()[0].instance_id, name, {})
    with pytest.raises(RejectedError, match="of another deployment: use another name"):
        cloud.make_image(machine, name, {})
    cloud.remove_image(taken.image_id)
    assert [image.image_id for image in theirs.images()] == [taken.image_id]
    assert name in rented.aws.ec2.images.snapshots(US)


def test_a_machine_that_is_gone_and_a_name_that_is_none_are_refused(
    rented: Rented, cloud: AwsCloud, machine: str
) -> None:
    cloud.terminate(machine)
    with pytest.raises(RejectedError, match="is gone, and no image can be made of it"):
        cloud.make_image(machine, f"spotd-{rented.deployment}", {})
    for name in ("spotd-", "mine", "spotd-Upper", "spotd-x_y", "spotd-" + "x" * 60):
        with pytest.raises(RejectedError, match="is not a valid image name"):
            cloud.make_image(machine, name, {})


def test_its_snapshots_go_with_it_and_those_of_others_stay(
    rented: Rented, cloud: AwsCloud, machine: str
) -> None:
    name = f"spotd-{rented.deployment}"
    image, stored = (cloud.make_image(machine, f"{name}-{n}", {}) for n in (1, 2))
    cloud.remove_image(image.image_id)
    assert rented.actions("DeleteSnapshot") == ["DeleteSnapshot"]
    assert [image.image_id for image in cloud.images()] == [stored.image_id]
    assert {snapshot for snapshot in rented.aws.ec2.images.snapshots(US) if name in snapshot} == {
        stored.name
    }
    cloud.remove_image(image.image_id)  # unknown
    assert len(cloud.images()) == 1


def test_a_removal_that_broke_off_is_finished_by_the_next(
    rented: Rented, cloud: AwsCloud, machine: str
) -> None:
    name = f"spotd-{rented.deployment}"
    image = cloud.make_image(machine, name, {})
    rented.aws.ec2.faults.arm(Fault("http_500", ("DeleteSnapshot",)))
    with pytest.raises(UnknownOutcome):
        cloud.remove_image(image.image_id)
    assert cloud.images() == []
    assert name in rented.aws.ec2.images.snapshots(US)
    cloud.remove_image(image.image_id)
    assert name not in rented.aws.ec2.images.snapshots(US)


@pytest.mark.parametrize("what", ["unauthorized", "throttled", "http_500"])
def test_half_a_look_is_none(rented: Rented, cloud: AwsCloud, what: str) -> None:
    rented.aws.ec2.faults.arm(Fault(what, ("DescribeImages",)))
    with pytest.raises(ProviderError):
        cloud.images()
