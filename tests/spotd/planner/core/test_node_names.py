"""Names follow from the intent alone: the same again for the same, another for any other."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from providers.base import CapacityType
from spotd.planner.core.node_names import gang_name, launch_token, node_id
from tests.spotd.planner.build import node, offer

OFFER = offer("aws-1a")


def test_a_node_is_named_by_its_place_in_the_job() -> None:
    assert node_id("jabcdefghi", 7, 2, 1) == "jabcdefghi-g7-c1-r2"


def test_no_two_nodes_share_a_name() -> None:
    names = {node_id("j1", g, r, c) for g in range(1, 13) for r in range(12) for c in range(12)}
    assert len(names) == 12**3


def test_a_token_is_the_same_for_the_same_intent() -> None:
    assert launch_token("d1", "j1-g1-c0-r0", OFFER, 7) == launch_token(
        "d1", "j1-g1-c0-r0", OFFER, 7
    )


def test_a_token_differs_with_everything_that_makes_it_another_machine() -> None:
    """AWS's tokens are zonal: the same one in another zone would launch a second machine."""
    variants = [
        ("d1", "j1-g1-c0-r0", OFFER),
        ("d2", "j1-g1-c0-r0", OFFER),
        ("d1", "j1-g2-c0-r0", OFFER),
        ("d1", "j1-g1-c0-r0", replace(OFFER, zone="aws-1b")),
        ("d1", "j1-g1-c0-r0", replace(OFFER, instance_type="1xh100")),
        ("d1", "j1-g1-c0-r0", replace(OFFER, capacity_type=CapacityType.ON_DEMAND)),
        ("d1", "j1-g1-c0-r0", replace(OFFER, provider="aws2")),
    ]
    variants = [(*variant, 7) for variant in variants] + [("d1", "j1-g1-c0-r0", OFFER, 8)]
    assert len({launch_token(*variant) for variant in variants}) == len(variants)


def test_a_price_change_does_not_make_a_retry_another_request() -> None:
    dearer = replace(OFFER, price_microusd_per_h=99)
    assert launch_token("d", "n", OFFER, 7) == launch_token("d", "n", dearer, 7)


@given(
    st.from_regex(r"j[a-z2-7]{9}", fullmatch=True),
    st.integers(1, 99_999),
    st.integers(0, 999),
    st.integers(0, 99),
)
def test_every_cloud_takes_it_as_a_token_a_name_and_a_label(
    job: str, generation: int, rank: int, candidate: int
) -> None:
    """AWS: 64 ASCII characters; GCP: a name of 63, letter first, [a-z0-9-], no dash at the end."""
    token = launch_token("d0123456789a", node_id(job, generation, rank, candidate), OFFER, 7)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])", token)


def test_the_ranks_of_a_candidate_share_one_name() -> None:
    def name(deployment: str = "d1", **fields: object) -> str:
        return gang_name(deployment, node(**{"id": "j1-g1-c0-r0", "offer": OFFER} | fields))

    first = name()
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,62}", first)
    assert first.startswith("spotd-j1-g1-c0-")
    assert name(id="j1-g1-c0-r1", rank=1, token="other") == first
    others = {
        name("d2"),
        name(id="j1-g1-c1-r0"),
        name(id="j1-g2-c0-r0"),
        name(offer=replace(OFFER, zone="aws-1b")),  # where the group would be somewhere else
        name(requested_at_us=1),  # of a database that was restored
    }
    assert len(others | {first}) == 6
