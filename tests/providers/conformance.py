"""The conformance suite that every provider must pass, whatever its cloud.

An adapter's tests inherit `ProviderConformance` and provide a `rig` fixture that makes the cloud
(or its stand-in) misbehave on demand. A rig skips what it cannot play by raising `CannotPlay`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from ipaddress import IPv4Address
from typing import Protocol

import pytest

from providers.base import (
    EXPIRES_TAG,
    AuthError,
    CapacityError,
    CapacityType,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    OfferRequest,
    PriceError,
    Provider,
    ProviderError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
)
from providers.clouds import CLOUDS
from tests.fixtures.waiting import LIMIT_S, until

LIVE = (InstanceState.PENDING, InstanceState.RUNNING)
REFUSALS = {
    "no_capacity": CapacityError,
    "quota": QuotaError,
    "price": PriceError,
    "rejected": RejectedError,
    "unauthorized": AuthError,
    "throttled": ThrottledError,
    "http_500": UnknownOutcome,
    "garbage": UnknownOutcome,
}


class CannotPlay(Exception):
    """This rig cannot make its cloud do that."""


class Rig(Protocol):
    """A cloud under the test's control. `break_next` affects only the next launch."""

    def provider(self, deployment: str = "one", *, timeout_s: float = 10.0) -> Provider:
        """Return an adapter for one deployment; a new one each time, as after a restart."""
        ...

    def request(self, provider: Provider, token: str) -> LaunchRequest:
        """Return a spot request that the cloud can serve; the same for the same token."""
        ...

    def break_next(self, what: str, operation: str = "launch") -> None:
        """Make the next call fail: a key of REFUSALS, or "lost_reply" (done, no answer), "hang"
        (done, the answer comes after 8 s), "fails_later" (accepted, then a failed create)."""
        ...


class ProviderConformance:
    """Inherit, and provide a fixture `rig`."""

    @pytest.fixture
    def cloud(self, rig: Rig) -> Provider:
        return rig.provider()

    # --- launch

    def test_same_token_is_same_machine(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "same")
        first, second = cloud.launch(request), cloud.launch(request)
        assert settled(cloud, "same").instance_id
        assert first == second or not isinstance(first, Launched)
        assert len([i for i in cloud.list() if i.token == "same"]) == 1

    def test_same_token_is_same_machine_for_another_process(self, rig: Rig) -> None:
        request = rig.request(rig.provider(), "moved")
        rig.provider().launch(request)
        rig.provider().launch(request)
        assert len([i for i in rig.provider().list() if i.token == "moved"]) == 1

    def test_parallel_launches_of_one_token_make_one_machine(self, rig: Rig) -> None:
        cloud = rig.provider()
        request = rig.request(cloud, "race")
        answers: list[object] = []

        def launch() -> None:
            try:
                answers.append(cloud.launch(request))
            except ProviderError as error:
                answers.append(error)

        threads = [threading.Thread(target=launch) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert len(answers) == 6
        assert len([i for i in cloud.list() if i.token == "race"]) == 1

    def test_token_with_another_request_is_rejected(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "twice")
        cloud.launch(request)
        settled(cloud, "twice")
        with pytest.raises(RejectedError):
            cloud.launch(dataclasses.replace(request, tags={**request.tags, "job": "other"}))
        assert len([i for i in cloud.list() if i.token == "twice"]) == 1

    @pytest.mark.parametrize("what", ["lost_reply", "hang"])
    def test_lost_reply_is_unknown_and_the_replay_finds_it(self, rig: Rig, what: str) -> None:
        # Long enough for a busy cloud to receive the request: only its reply is waited for in vain.
        cloud = rig.provider(timeout_s=4.0 if what == "hang" else 10.0)
        request = rig.request(cloud, f"lost-{what}")
        _break(rig, what)
        with pytest.raises(UnknownOutcome):
            cloud.launch(request)
        cloud = rig.provider()
        settled(cloud, request.token)  # it was done, although nobody said so
        cloud.launch(request)
        result = settled(cloud, request.token)
        assert [i.instance_id for i in cloud.list() if i.token == request.token] == [
            result.instance_id
        ]

    def test_replay_after_the_end_starts_nothing(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "ended")
        cloud.launch(request)
        cloud.terminate(settled(cloud, "ended").instance_id)
        until(lambda: live(cloud, "ended") == [])
        with contextlib.suppress(RejectedError):  # "used up" is as good as the ended machine
            cloud.launch(request)
        assert live(cloud, "ended") == []

    @pytest.mark.parametrize("what", sorted(REFUSALS))
    def test_refusal_has_its_class(self, rig: Rig, cloud: Provider, what: str) -> None:
        request = rig.request(cloud, f"no-{what}")
        _break(rig, what)
        with pytest.raises(ProviderError) as caught:
            cloud.launch(request)
        assert type(caught.value) is REFUSALS[what]
        assert str(caught.value)

    def test_throttling_says_when_to_come_back(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "slow-down")
        _break(rig, "throttled")
        with pytest.raises(ThrottledError) as caught:
            cloud.launch(request)
        assert caught.value.retry_after_s > 0

    def test_scopes(self, rig: Rig, cloud: Provider) -> None:
        for what, scope in {"quota": Scope.REGION, "unauthorized": Scope.PROVIDER}.items():
            request = rig.request(cloud, f"scope-{what}")
            _break(rig, what)
            with pytest.raises(ProviderError) as caught:
                cloud.launch(request)
            assert caught.value.scope is scope

    def test_refused_launch_leaves_nothing(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "refused")
        _break(rig, "no_capacity")
        with pytest.raises(CapacityError):
            cloud.launch(request)
        assert live(cloud, "refused") == []

    def test_after_a_refusal_the_same_token_may_succeed(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "again")
        _break(rig, "no_capacity")
        with pytest.raises(CapacityError):
            cloud.launch(request)
        cloud.launch(request)
        assert settled(cloud, "again").state in LIVE

    def test_unknown_machine_type_is_rejected(self, rig: Rig, cloud: Provider) -> None:
        request = dataclasses.replace(rig.request(cloud, "odd"), instance_type="no.such-type")
        with pytest.raises(RejectedError, match=re.escape("no.such-type")):
            cloud.launch(request)

    def test_price_above_the_cap(self, rig: Rig, cloud: Provider) -> None:
        request = dataclasses.replace(rig.request(cloud, "cap"), max_price_microusd_per_h=1)
        with pytest.raises(PriceError):
            cloud.launch(request)

    def test_failed_create_is_listed_with_its_error(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "husk")
        _break(rig, "fails_later")
        cloud.launch(request)

        def failed() -> Instance | None:
            rows = [i for i in cloud.list() if i.token == "husk"]
            return next((i for i in rows if i.state is InstanceState.FAILED), None)

        instance = until(failed)
        assert instance.error
        assert instance.error_code == CapacityError.__name__
        cloud.terminate(instance.instance_id)  # a husk is deleted like anything else

    # --- terminate

    def test_terminate_of_an_unknown_id_is_success(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "shape")
        cloud.launch(request)
        known = settled(cloud, "shape").instance_id
        cloud.terminate(known[:-2] + ("00" if known[-2:] != "00" else "11"))
        assert len(live(cloud, "shape")) == 1

    def test_terminate_twice(self, rig: Rig, cloud: Provider) -> None:
        cloud.launch(rig.request(cloud, "end"))
        instance = settled(cloud, "end")
        cloud.terminate(instance.instance_id)
        cloud.terminate(instance.instance_id)
        until(lambda: live(cloud, "end") == [])
        cloud.terminate(instance.instance_id)

    @pytest.mark.parametrize("what", ["lost_reply", "http_500"])
    def test_terminate_may_be_unknown_too(self, rig: Rig, what: str) -> None:
        cloud = rig.provider()
        cloud.launch(rig.request(cloud, f"end-{what}"))
        instance = settled(cloud, f"end-{what}")
        _break(rig, what, "terminate")
        with pytest.raises(UnknownOutcome):
            cloud.terminate(instance.instance_id)
        cloud.terminate(instance.instance_id)
        until(lambda: live(cloud, f"end-{what}") == [])

    # --- renew

    def test_a_renewal_moves_the_expiry_on_and_never_back(self, rig: Rig, cloud: Provider) -> None:
        cloud.launch(_expiring(rig, cloud, "renewed", 1_900_000_000))
        resource_id = settled(cloud, "renewed").instance_id
        for until_s, then_s in ((0, 1_900_000_000), (1_900_003_600, 1_900_003_600)):
            cloud.renew(resource_id, until_s * 1_000_000)
            until(lambda then_s=then_s: expiry_s(cloud, "renewed") == then_s)  # type: ignore[misc]
        cloud.renew(resource_id, 1_900_003_600 * 1_000_000)  # again is the same
        cloud.renew(resource_id, 1_900_000_001 * 1_000_000)  # a caller who was asleep
        assert expiry_s(cloud, "renewed") == 1_900_003_600

    def test_a_renewal_of_a_machine_without_an_expiry_gives_it_one(
        self, rig: Rig, cloud: Provider
    ) -> None:
        cloud.launch(rig.request(cloud, "bare"))
        cloud.renew(settled(cloud, "bare").instance_id, 1_900_000_000 * 1_000_000)
        until(lambda: expiry_s(cloud, "bare") == 1_900_000_000)

    def test_a_renewal_changes_nothing_else(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "kept")
        cloud.launch(request)
        before = settled(cloud, "kept")
        cloud.renew(before.instance_id, 1_900_000_000 * 1_000_000)
        after = until(lambda: expiry_s(cloud, "kept") and settled(cloud, "kept"))
        assert set(request.tags.items()) <= set(after.tags.items())
        # Asked for again: a tag that has moved makes no other request of it.
        cloud.launch(request)
        assert [i.instance_id for i in cloud.list() if i.token == "kept"] == [before.instance_id]

    def test_a_renewal_brings_nothing_back(self, rig: Rig, cloud: Provider) -> None:
        cloud.launch(rig.request(cloud, "over"))
        instance = settled(cloud, "over")
        cloud.renew(instance.instance_id[:-2] + "zz", 1_900_000_000 * 1_000_000)  # nobody's id
        cloud.terminate(instance.instance_id)
        cloud.renew(instance.instance_id, 1_900_000_000 * 1_000_000)
        until(lambda: live(cloud, "over") == [])
        cloud.renew(instance.instance_id, 1_900_000_000 * 1_000_000)
        assert live(cloud, "over") == []

    def test_a_renewal_may_be_unknown_too(self, rig: Rig, cloud: Provider) -> None:
        cloud.launch(rig.request(cloud, "vague"))
        resource_id = settled(cloud, "vague").instance_id
        _break(rig, "http_500", "renew")
        with pytest.raises(UnknownOutcome):
            cloud.renew(resource_id, 1_900_000_000 * 1_000_000)

    # --- the cloud's own limit

    def test_a_machine_ends_by_the_clouds_own_limit(self, rig: Rig, cloud: Provider) -> None:
        """Without anybody to terminate it. Clouds without such a limit rely on spotd and the
        reaper."""
        if not cloud.limits_life:
            pytest.skip(f"{cloud.name} has no limit of its own")
        cloud.launch(dataclasses.replace(rig.request(cloud, "limited"), max_run_s=1))
        cloud.launch(rig.request(cloud, "unlimited"))
        settled(cloud, "unlimited")
        until(lambda: live(cloud, "limited") == [])
        assert len(live(cloud, "unlimited")) == 1

    # --- leftovers

    def test_what_a_machine_leaves_behind_is_listed_and_discarded(self, rig: Rig) -> None:
        cloud, other = rig.provider(), rig.provider("other")
        request = rig.request(cloud, "leaves")
        cloud.launch(request)
        instance = settled(cloud, "leaves")
        assert list(cloud.leftovers()) == []
        _break(rig, "leftovers", "terminate")
        cloud.terminate(instance.instance_id)
        left = cloud.leftovers()
        assert left
        for item in left:
            assert dict(item.tags).items() >= dict(request.tags).items()
            assert item.region == request.region
        assert list(other.leftovers()) == []
        for item in left:
            cloud.discard(item.leftover_id)
            cloud.discard(item.leftover_id)
        assert list(cloud.leftovers()) == []
        cloud.discard("nobody-knows-it")

    @pytest.mark.parametrize("what", ["http_500", "garbage", "unauthorized"])
    def test_leftovers_of_a_broken_cloud_are_an_error(self, rig: Rig, what: str) -> None:
        cloud = rig.provider()
        _break(rig, what, "leftovers")
        with pytest.raises(ProviderError):
            cloud.leftovers()

    # --- list

    def test_list_carries_what_we_asked_for(self, rig: Rig, cloud: Provider) -> None:
        request = rig.request(cloud, "facts")
        cloud.launch(request)
        instance = until(
            lambda: next((i for i in cloud.list() if i.token == "facts" and i.host), None)
        )
        assert set(request.tags.items()) <= set(instance.tags.items())
        assert (instance.region, instance.zone) == (request.region, request.zone)
        assert instance.instance_type == request.instance_type
        assert instance.capacity_type is request.capacity_type
        assert IPv4Address(instance.private_host).is_private, "where a gang's ranks meet"
        assert instance.port > 0
        assert instance.ssh_user
        assert instance.launched_at_us > 1_500_000_000_000_000

    def test_list_is_complete(self, rig: Rig, cloud: Provider) -> None:
        tokens = {f"many-{n}" for n in range(5)}
        for token in sorted(tokens):
            cloud.launch(rig.request(cloud, token))
        for token in tokens:
            settled(cloud, token)
        assert tokens <= {i.token for i in cloud.list()}

    def test_list_of_a_broken_cloud_is_an_error(self, rig: Rig, cloud: Provider) -> None:
        _break(rig, "http_500", "list")
        with pytest.raises(UnknownOutcome):
            cloud.list()

    def test_other_deployments_are_invisible(self, rig: Rig) -> None:
        own, theirs = rig.provider("one"), rig.provider("two")
        own.launch(rig.request(own, "ours"))
        settled(own, "ours")
        assert "ours" not in {i.token for i in theirs.list()}

    # --- offers and notices

    def test_offers_have_prices(self, cloud: Provider) -> None:
        offers = cloud.offers(OfferRequest())
        assert offers
        for offer in offers:
            assert offer.provider == cloud.name
            assert offer.local is cloud.local
            assert 0 < offer.price_microusd_per_h <= offer.list_microusd_per_h
            assert offer.region
            assert offer.zone
        assert len({offer.key for offer in offers}) == len(offers)

    def test_offers_fit_what_is_asked(self, cloud: Provider) -> None:
        model = next(o for o in cloud.offers(OfferRequest()) if o.accelerator)
        want = OfferRequest(
            accelerator=model.accelerator,
            accelerator_count=model.accelerator_count,
            region=model.region,
            zone=model.zone,
            capacity_types=(CapacityType.SPOT,),
        )
        result = cloud.offers(want)
        assert result
        for offer in result:
            assert offer.accelerator == model.accelerator
            assert offer.accelerator_count >= model.accelerator_count
            assert (offer.region, offer.zone) == (model.region, model.zone)
            assert offer.capacity_type is CapacityType.SPOT
        assert not cloud.offers(dataclasses.replace(want, accelerator="NoSuchThing"))

    def test_offers_of_a_broken_cloud_are_an_error(self, rig: Rig, cloud: Provider) -> None:
        _break(rig, "http_500", "offers")
        with pytest.raises(UnknownOutcome):
            cloud.offers(OfferRequest())

    def test_notices_answer(self, cloud: Provider) -> None:
        assert list(cloud.notices()) == []

    def test_says_what_it_is(self, cloud: Provider) -> None:
        assert cloud.name
        assert cloud.watcher in CLOUDS
        assert cloud.visibility_s >= 0
        assert cloud.prepared_file == "" or cloud.prepared_file.startswith("/")


def _break(rig: Rig, what: str, operation: str = "launch") -> None:
    try:
        rig.break_next(what, operation)
    except CannotPlay as error:
        pytest.skip(f"the rig cannot play {what}: {error}")


def settled(cloud: Provider, token: str) -> Instance:
    """Return the machine of that token once it is past the pending state."""

    def look() -> Instance | None:
        rows = [i for i in cloud.list() if i.token == token]
        return next((i for i in rows if i.instance_id and i.state in LIVE), None)

    return until(look)


def _expiring(rig: Rig, cloud: Provider, token: str, expires_at_s: int) -> LaunchRequest:
    request = rig.request(cloud, token)
    return dataclasses.replace(request, tags={**request.tags, EXPIRES_TAG: str(expires_at_s)})


def expiry_s(cloud: Provider, token: str) -> int:
    """Return the expiry in the listing; 0 without one."""
    return next((i.expires_at_us // 1_000_000 for i in cloud.list() if i.token == token), 0)


def live(cloud: Provider, token: str) -> list[Instance]:
    return [i for i in cloud.list() if i.token == token and i.state in LIVE]
