"""Machines can be terminated while one of two sets of credentials is valid: at a real local
cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.base import AuthError, InstanceState, OfferRequest, Provider
from providers.images import ImageMaker
from providers.local.control import RunningCloud
from providers.split_credentials import SplitProvider
from providers.warnings import ProviderWarning
from spotd.config.provider_registry import build_provider
from tests.fixtures.local_cloud import launch_request, launch_running, running
from tests.fixtures.waiting import until


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    with running(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


class Keys:
    """Two files with the cloud's token, each valid until it is removed."""

    def __init__(self, folder: Path, local: RunningCloud) -> None:
        self.make, self.end = folder / "make", folder / "end"
        for file in (self.make, self.end):
            file.write_bytes(local.token_file.read_bytes())
        files = {"token_file": self.make, "end_token_file": self.end}
        settings = {"url": local.url, "personality": "aws", **files}
        self.cloud: Provider = build_provider("local", "here", "d0", settings)


def living(cloud: Provider) -> set[str]:
    return {i.instance_id for i in cloud.list() if i.state is InstanceState.RUNNING}


def test_it_knows_how_late_a_machine_is_seen_when_the_cloud_has_told(
    local: RunningCloud, tmp_path: Path
) -> None:
    keys = Keys(tmp_path, local)
    before = keys.cloud.visibility_s
    keys.cloud.list()
    assert keys.cloud.visibility_s != before


def test_who_may_make_no_more_still_ends_and_sees_it(local: RunningCloud, tmp_path: Path) -> None:
    keys = Keys(tmp_path, local)
    stored = launch_running(keys.cloud, "kept").instance_id
    more = launch_request(keys.cloud, "more")
    keys.make.write_text("revoked\n")
    with pytest.raises(AuthError):
        keys.cloud.launch(more)
    assert stored in living(keys.cloud)
    keys.cloud.terminate(stored)
    until(lambda: stored not in living(keys.cloud))


def test_credentials_for_the_end_that_are_refused_are_told_before_they_are_needed(
    local: RunningCloud, tmp_path: Path
) -> None:
    keys = Keys(tmp_path, local)
    assert keys.cloud.offers(OfferRequest())
    stored = launch_running(keys.cloud, "last").instance_id
    keys.end.write_text("revoked\n")
    with pytest.raises(AuthError, match="the credentials that end machines"):
        keys.cloud.offers(OfferRequest())
    keys.cloud.terminate(stored)
    until(lambda: stored not in living(keys.cloud))
    keys.make.write_text("revoked\n")
    for ask in (keys.cloud.list, lambda: keys.cloud.terminate(stored)):
        with pytest.raises(AuthError):
            ask()


def test_both_sides_remarks_are_the_makers_alone() -> None:
    """One kind of cloud has one table of codes."""

    class Talkative:
        name, local, watcher, limits_life, power_off = "aws", False, "aws", False, ()
        prepared_file = ""

        def warnings(self) -> list[ProviderWarning]:
            return [ProviderWarning("code/AWS/New", "x")]

    talkative: Any = Talkative()
    assert SplitProvider(talkative, talkative).warnings() == [ProviderWarning("code/AWS/New", "x")]


def test_a_cloud_that_makes_images_still_does(local: RunningCloud, tmp_path: Path) -> None:
    """And one without images, like the local one, does not pretend to have them."""
    keys = Keys(tmp_path, local)
    assert isinstance(keys.cloud, SplitProvider)
    assert not isinstance(keys.cloud, ImageMaker)
    settings = {"regions": ["us-east-1"], "network": "public", "profile": "a", "end_profile": "b"}
    aws = build_provider("aws", "aws", "d0", settings)
    assert isinstance(aws, SplitProvider)
    assert isinstance(aws, ImageMaker)
