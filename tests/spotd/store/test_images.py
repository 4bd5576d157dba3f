"""Baked images on record, on all three stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.images import Image, ImageState
from spotd.domain.node import EffectKind
from spotd.domain.states import NodeState
from spotd.store.images import ImageRow
from spotd.store.interface import Store
from tests.spotd.store.build import NOW, move, node, placed, view

NODE = "j1-g1-0"
ROW = ImageRow(NODE, "j1", "torch", "aws", "aws-1", "spotd-torch-1", setup="s", asked_at_us=NOW)
MAKING = Image("ami-1", "spotd-torch-1", ImageState.MAKING, "aws-1", {})
MADE = replace(MAKING, state=ImageState.AVAILABLE, size_gib=200)


@pytest.fixture
def baking(store: Store) -> Store:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    return store


def test_an_image_is_on_record_before_it_is_asked_for(baking: Store) -> None:
    notes = view(baking).job.wakeup.notes
    baking.nodes.record_effect_failed(NODE, EffectKind.IMAGE, "lost", NOW)
    baking.nodes.record_cleaned(ROW, NOW + 1)
    baking.nodes.record_cleaned(
        replace(ROW, name="other"), NOW + 2
    )  # told twice: it stays what it was
    now = node(baking)
    assert (now.bake.cleaned_at_us, now.call.effect_failures, now.call.effect_error) == (
        NOW + 2,
        0,
        "",
    )
    assert view(baking).job.wakeup.notes == notes + 3
    [row] = baking.images.rows()
    assert row == replace(ROW, state=NodeState.LAUNCHING)
    assert not row.good
    assert not row.half_made
    assert baking.market.load(NOW).images == ()


def test_it_is_good_when_it_is_there(baking: Store) -> None:
    baking.nodes.record_cleaned(ROW, NOW)
    baking.nodes.record_image(NODE, MAKING, NOW + 1)
    assert (node(baking).bake.image_asked_at_us, node(baking).bake.imaged_at_us) == (NOW + 1, 0)
    assert baking.images.rows()[0].image_id == "ami-1"
    assert not baking.images.rows()[0].good
    baking.nodes.record_image(NODE, MADE, NOW + 2)
    assert (node(baking).bake.image_asked_at_us, node(baking).bake.imaged_at_us) == (
        NOW + 2,
        NOW + 2,
    )
    [row] = baking.images.rows()
    assert (row.size_gib, row.made_at_us, row.good) == (200, NOW + 2, True)
    [image] = baking.market.load(NOW).images
    assert (image.name, image.provider, image.region, image.image_id, image.setup) == (
        "torch",
        "aws",
        "aws-1",
        "ami-1",
        "s",
    )


def test_one_that_comes_when_its_machine_is_being_ended_is_not_good(baking: Store) -> None:
    """Whoever sweeps may be removing it."""
    baking.nodes.record_cleaned(ROW, NOW)
    move(baking, NODE, NodeState.TERMINATING)
    baking.nodes.record_image(NODE, MADE, NOW + 1)
    assert node(baking).bake.imaged_at_us == 0
    [row] = baking.images.rows()
    assert (row.half_made, row.good, row.image_id) == (True, False, "ami-1")


def test_one_that_fails_keeps_its_id(baking: Store) -> None:
    baking.nodes.record_cleaned(ROW, NOW)
    baking.nodes.record_image(NODE, MAKING, NOW + 1)
    never = Image("", "", ImageState.FAILED, "aws-1", {}, error="it is full")
    baking.nodes.record_image(NODE, never, NOW + 2)
    assert node(baking).bake.image_error == "it is full"
    assert baking.images.rows()[0].image_id == "ami-1"
    baking.nodes.record_image(NODE, replace(never, error=""), NOW + 3)
    assert node(baking).bake.image_error == "the cloud reports that it failed"


def test_what_nobody_wants_is_offered_to_no_machine(baking: Store) -> None:
    baking.nodes.record_cleaned(ROW, NOW)
    baking.nodes.record_image(NODE, MADE, NOW)
    baking.images.request_removal([NODE, "nobody"], NOW + 1)
    baking.images.request_removal([NODE], NOW + 2)
    assert baking.images.rows()[0].unwanted_at_us == NOW + 1
    assert baking.market.load(NOW).images == ()
    baking.images.record_gone(NODE, NOW + 3)
    assert baking.images.rows() == []
    baking.images.adopt(ROW)
    assert baking.images.rows() == [], "it is on record, as gone"


def test_one_that_no_machine_is_known_of_can_be_taken_over(store: Store) -> None:
    found = replace(ROW, node_id="j9-g1", made_at_us=NOW, image_id="ami-9")
    store.images.adopt(found)
    assert store.images.rows() == [found]
    assert [image.image_id for image in store.market.load(NOW).images] == ["ami-9"]


def test_one_that_the_record_has_as_not_yet_there_is_taken_over(baking: Store) -> None:
    baking.nodes.record_cleaned(ROW, NOW)
    found = replace(ROW, made_at_us=NOW + 5, image_id="ami-9", size_gib=7)
    baking.images.adopt(found)
    [row] = baking.images.rows()
    assert (row.good, row.made_at_us, row.image_id, row.size_gib) == (True, NOW + 5, "ami-9", 7)
    baking.images.adopt(replace(found, image_id="ami-10"))
    assert baking.images.rows() == [row], "it is there"


def test_calls_for_machines_that_nobody_knows_change_nothing(store: Store) -> None:
    store.nodes.record_cleaned(ROW, NOW)
    store.nodes.record_image("nobody", MADE, NOW)
    store.images.request_removal([], NOW)
    assert store.images.rows() == []


def test_a_machine_whose_disk_is_being_cleaned_is_not_followed(baking: Store) -> None:
    baking.nodes.record_booted(NODE, NOW)
    assert NODE in baking.nodes.booted()
    move(baking, NODE, NodeState.BOOTING, effect=EffectKind.SAVE)
    assert NODE in baking.nodes.booted()
    move(baking, NODE, NodeState.BOOTING, effect=EffectKind.IMAGE)
    assert NODE not in baking.nodes.booted()
