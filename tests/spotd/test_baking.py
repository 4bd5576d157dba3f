"""A bake from its job to an image, through every death of the daemon; and jobs that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.base import AuthError, ProviderError, RejectedError, UnknownOutcome
from providers.images import Image, ImageState
from spotd.act.image_builder import tags_of
from spotd.domain.job import Desired
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.observe.images import MISSED, SURE_S
from tests.spotd.bakery import Bakery, Made


@pytest.fixture
def bakery(quick_folder: Path) -> Iterator[Bakery]:
    stage = Bakery(quick_folder)
    yield stage
    stage.close()


def cleaned(bakery: Bakery) -> bool:
    return any(node.bake.cleaned_at_us for node in bakery.nodes("j1"))


def begun(bakery: Bakery) -> bool:
    return any(cloud.made for cloud in bakery.bakers.values())


def sweep(bakery: Bakery) -> None:
    """Until nothing can come any more."""
    bakery.look()
    bakery.look(SURE_S)
    bakery.look()


def test_a_bake_ends_in_an_image_that_is_on_record(bakery: Bakery) -> None:
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    assert bakery.job().outcome is Outcome.SUCCEEDED
    assert bakery.job().end.outcome_text == "image torch is available in aws/aws-1"
    (row,) = bakery.images()
    (made,) = bakery.bakers["aws"].made.values()
    assert (row.name, row.provider, row.region, row.size_gib) == ("torch", "aws", "aws-1", 200)
    assert row.image_id == made.image.image_id
    assert made.clean, "no image is made of a disk with the machine's keys"
    assert made.image.tags["spotd-baked"] == "torch"
    assert bakery.alive() == []
    assert bakery.link.cleans == 1
    assert bakery.store.nodes.of_job("j1")[0].departure.leave_reason is LeaveReason.DONE
    assert bakery.job().head is None, "nothing is saved, so nothing is claimed"


def test_the_daemon_may_die_anywhere(bakery: Bakery) -> None:
    """Around the image: one is made, of a clean disk; or the bake failed, and nothing is left."""
    bakery.bake("j0")
    bakery.run(lambda s: s.over("j0"))
    steps = list(bakery.boundaries)
    # What comes before is a job's beginning like any other, and what comes after its end.
    first = next(at for at, step in enumerate(steps) if step.what == "image")
    last = next(at for at, step in enumerate(steps) if step.what == "terminate")
    assert last - first >= 12
    lost = []
    for number in range(first - 2, last):
        ident = f"k{number}"
        bakery.forget()
        bakery.kill_at = number
        made_before = {n for cloud in bakery.bakers.values() for n in cloud.made}
        bakery.bake(ident)
        bakery.run(lambda s, ident=ident: s.over(ident))  # type: ignore[misc]
        made = [
            one
            for cloud in bakery.bakers.values()
            for name, one in cloud.made.items()
            if name not in made_before
        ]
        assert all(one.clean for one in made), number
        assert bakery.alive() == [], number
        good = [row for row in bakery.images() if row.good and row.job_id == ident]
        assert len(good) == (bakery.job(ident).outcome is Outcome.SUCCEEDED), number
        if not good:
            lost.append(steps[number])
            assert "whether its disk was cleaned" in bakery.job(ident).end.outcome_text
    sweep(bakery)
    assert bakery.leaked() == []
    assert [(step.when, step.what) for step in lost] == [("before", "record image")]


def _bakery(folder: Path, name: str) -> Bakery:
    home = folder / name
    home.mkdir()
    return Bakery(home)


def test_a_lost_answer_of_the_cleaning_fails_the_bake_and_says_so(bakery: Bakery) -> None:
    bakery.link.lost = 1
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    assert bakery.job().outcome is Outcome.FAILED
    assert "it is not known whether its disk was cleaned" in bakery.job().end.outcome_text
    assert "bake it again" in bakery.job().end.outcome_text
    assert not begun(bakery)
    assert bakery.alive() == []
    assert len(bakery.nodes("j1")) == 1, "no machine is rented again and again"


def test_no_image_is_made_of_a_disk_that_could_not_be_cleaned(bakery: Bakery) -> None:
    bakery.link.dirty = "what may not be in an image stays on the disk: /root/.ssh"
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    assert bakery.job().outcome is Outcome.FAILED
    assert "/root/.ssh" in bakery.job().end.outcome_text
    assert not begun(bakery)


@pytest.mark.parametrize(
    "error", [RejectedError("no such thing"), AuthError("you are not authorized: CreateImage")]
)
def test_a_refusal_of_the_image_is_the_end_of_the_bake_alone(
    bakery: Bakery, error: ProviderError
) -> None:
    bakery.bakers["aws"].fail("make_image", error)
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    assert bakery.job().outcome is Outcome.FAILED
    assert f"aws makes no image: {error}" in bakery.job().end.outcome_text
    assert bakery.store.market.load(0).launch.disabled == {}, (
        "other jobs need no right to make images"
    )


def test_what_may_pass_is_tried_again(bakery: Bakery) -> None:
    bakery.bakers["aws"].fail("make_image", *[UnknownOutcome("503")] * 3)
    bakery.bakers["aws"].fail("make_image", *[UnknownOutcome("lost")] * 2, answer=True)
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    assert bakery.job().outcome is Outcome.SUCCEEDED
    assert len(bakery.bakers["aws"].made) == 1


def test_an_image_that_fails_is_removed(bakery: Bakery) -> None:
    bakery.bakers["aws"].fails = "internal error"
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    assert bakery.job().end.outcome_text == "bake failed: internal error"
    assert bakery.leaked()
    sweep(bakery)
    assert bakery.leaked() == []
    assert bakery.images() == []


def test_a_preemption_in_the_middle_bakes_again_and_removes_what_was_half_made(
    bakery: Bakery,
) -> None:
    bakery.bake()
    bakery.run(begun)
    first = bakery.booting()
    bakery.strike(first)
    bakery.run(lambda s: s.over("j1"), 3600)
    assert bakery.job().outcome is Outcome.SUCCEEDED
    assert bakery.job().generation == 2
    assert len(bakery.bakers["aws"].made) + len(bakery.bakers["gcp"].made) == 2
    sweep(bakery)
    assert bakery.leaked() == []
    (row,) = bakery.images()
    assert row.good
    assert row.node_id != first.id


def test_a_cancel_leaves_neither_machine_nor_image(bakery: Bakery) -> None:
    bakery.bake()
    bakery.run(begun)
    bakery.store.jobs.set_desired("j1", Desired.CANCEL, bakery.clock.now_us())
    bakery.run(lambda s: s.over("j1"))
    assert bakery.job().outcome is Outcome.CANCELLED
    sweep(bakery)
    assert bakery.leaked() == []
    assert bakery.images() == []


def test_an_image_that_shows_up_late_is_removed_as_well(bakery: Bakery) -> None:
    bakery.bake()
    bakery.run(cleaned)
    baker, node = bakery.bakers["aws"], bakery.booting()
    bakery.store.jobs.set_desired("j1", Desired.CANCEL, bakery.clock.now_us())
    (row,) = bakery.images()
    late = dict(baker.machines)
    bakery.run(lambda s: s.over("j1"))
    bakery.look()
    assert bakery.images(), "a call that was under way may still have made it"
    baker.machines[node.instance_id].instance = late[node.instance_id].instance
    instance = baker.machines[node.instance_id].instance
    baker.machines[node.instance_id].instance = type(instance)(
        **{**vars(instance), "state": type(instance.state)("running")}
    )
    baker.make_image(node.instance_id, row.vendor_name, {})
    baker.end(node.instance_id)
    sweep(bakery)
    assert bakery.leaked() == []
    assert bakery.images() == []


def test_an_image_is_removed_when_nobody_wants_it_and_not_while_in_quarantine(
    bakery: Bakery,
) -> None:
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    (row,) = bakery.images()
    bakery.store.images.request_removal([row.node_id], bakery.clock.now_us())
    bakery.store.deployment.set_quarantine("restored", bakery.clock.now_us())
    bakery.look()
    assert len(bakery.bakers["aws"].made) == 1
    bakery.store.deployment.set_quarantine("", bakery.clock.now_us())
    bakery.look()
    assert bakery.bakers["aws"].made == {}
    assert bakery.images() == []


def test_one_that_somebody_else_removed_is_taken_off_the_record(bakery: Bakery) -> None:
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    bakery.look(600)
    bakery.bakers["aws"].made.clear()
    for _ in range(MISSED):
        assert bakery.images()
        bakery.look(600)
    assert bakery.images() == []
    assert bakery.store.market.load(0).images == ()


def test_a_restored_record_takes_its_images_over_and_removes_none(bakery: Bakery) -> None:
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    (row,) = bakery.images()
    fresh = _bakery(bakery.folder, "restored")
    fresh.bakers["aws"].made = bakery.bakers["aws"].made
    fresh.look()
    (found,) = fresh.images()
    assert (found.name, found.image_id, found.setup) == (row.name, row.image_id, row.setup)
    assert found.good
    assert len(fresh.bakers["aws"].made) == 1
    fresh.close()


def test_a_restored_record_of_before_an_image_was_there_does_not_remove_it(
    bakery: Bakery,
) -> None:
    """To such a record the bake's machine left in the middle: the image is half made, whatever its
    cloud says. A cloud that does not say since when is Azure."""
    baker, store, clock = bakery.bakers["aws"], bakery.store, bakery.clock
    bakery.bake()
    bakery.run(cleaned)
    [node] = bakery.nodes("j1")
    store.deployment.set_quarantine("restored", clock.now_us())
    store.jobs.set_desired("j1", Desired.CANCEL, clock.now_us())
    bakery.run(lambda s: s.over("j1"))
    [row] = bakery.images()
    assert row.half_made
    image = Image("ami-1", row.vendor_name, ImageState.AVAILABLE, row.region, tags_of(row))
    baker.made[row.vendor_name] = Made(image, node.instance_id, clean=True)
    bakery.look(600)
    store.deployment.set_quarantine("", clock.now_us())
    sweep(bakery)
    [row] = bakery.images()
    assert row.good
    assert row.image_id == image.image_id
    assert bakery.leaked() == []
    said = [row.event.text for row in store.events.rows(None) if row.event.kind == "image"]
    assert len([text for text in said if "was not on record, and is now" in text]) == 1


def test_a_job_starts_from_the_image_and_skips_the_same_setup(bakery: Bakery) -> None:
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    (row,) = bakery.images()
    bakery.link.setups.clear()
    bakery.submit("j2", image_id="baked:torch", setup="pip install torch")
    bakery.run(lambda s: s.nodes("j2", NodeState.RUNNING))
    machine = bakery.machine(bakery.nodes("j2")[0])
    assert machine.request.image_id == row.image_id
    assert bakery.link.setups == [""]
    bakery.submit("j3", image_id="baked:torch", setup="pip install torch jax")
    bakery.run(lambda s: s.nodes("j3", NodeState.RUNNING))
    assert bakery.link.setups[1:] == ["pip install torch jax"]


def test_where_the_image_is_not_the_plain_one_and_setup_do(bakery: Bakery) -> None:
    bakery.bake()
    bakery.run(lambda s: s.over("j1"))
    bakery.link.setups.clear()
    bakery.clouds["aws"].on_sale = []
    bakery.store.market.record_offers("aws", [], bakery.clock.now_us())
    bakery.submit("j2", image_id="baked:torch", setup="pip install torch")
    bakery.run(lambda s: s.nodes("j2", NodeState.RUNNING))
    node = bakery.nodes("j2")[0]
    assert (node.offer.provider, bakery.machine(node).request.image_id) == ("gcp", "")
    assert bakery.link.setups == ["pip install torch"]
    texts = [
        row.event.text for row in bakery.store.events.rows("j2") if row.event.kind == "requested"
    ]
    assert texts[0].endswith("; no image torch there: setup runs")
