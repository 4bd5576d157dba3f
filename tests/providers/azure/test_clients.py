"""Credentials, and malformed answers."""

from __future__ import annotations

import pytest

from providers.azure.clients import Clients
from providers.base import (
    AuthError,
    LeftoverKind,
    OfferRequest,
    RejectedError,
    ThrottledError,
    UnknownOutcome,
)
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import provider, request


def test_a_wrong_secret_is_told_with_the_fix(
    azure: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    with pytest.raises(AuthError, match=r"AADSTS7000215[\s\S]*az account get-access-token"):
        provider(azure, clients=None).list()


def test_no_credentials_at_all(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    with pytest.raises(AuthError, match="no credentials for Azure"):
        provider(azure, clients=None).list()


def test_a_token_that_azure_refuses(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.clouds.azure.arm.TOKEN", "another")
    with pytest.raises(AuthError, match=r"InvalidAuthenticationToken|access token is invalid"):
        provider(azure).list()


def test_the_trouble_of_the_token_service_is_no_refusal(azure: StandIn) -> None:
    for _ in range(5):  # azure-identity asks again by itself
        azure.arm.faults.arm(Fault("http_500", ("POST token",)))
    try:
        with pytest.raises(UnknownOutcome):
            provider(azure, clients=None).list()
    finally:
        azure.arm.faults.clear()


def test_that_nobody_tells_tokens_is_no_refusal(azure: StandIn) -> None:
    with pytest.raises(UnknownOutcome, match="no token"):
        provider(azure, authority="https://127.0.0.1:1").list()


def test_a_right_that_is_missing_is_named(azure: StandIn) -> None:
    azure.arm.faults.arm(Fault("unauthorized", ("LIST virtualMachines",)))
    with pytest.raises(AuthError, match=r"AuthorizationFailed.*virtualMachines/write"):
        provider(azure).list()


def test_azure_says_when_to_come_back(azure: StandIn) -> None:
    azure.arm.faults.arm(Fault("throttled", ("LIST virtualMachines",)))
    with pytest.raises(ThrottledError) as caught:
        provider(azure).list()
    assert caught.value.retry_after_s == 3.0


@pytest.mark.parametrize("what", ["throttled", "http_500"])
def test_nothing_is_tried_twice_down_here(azure: StandIn, what: str) -> None:
    azure.arm.faults.arm(Fault(what, ("LIST virtualMachines",)))
    with pytest.raises((ThrottledError, UnknownOutcome)):
        provider(azure).list()
    assert azure.arm.counted() == ["LIST virtualMachines"]


def test_nobody_there(azure: StandIn) -> None:
    with pytest.raises(UnknownOutcome):
        Clients("s", prices_endpoint="https://127.0.0.1:1", timeout_s=1.0).prices({})


def test_another_certificate_is_not_believed(
    azure: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(UnknownOutcome, match=r"(?i)certificate"):
        provider(azure, clients=None).offers(OfferRequest())


# --- leftovers that are none


@pytest.mark.parametrize(
    "kind", [LeftoverKind.DISK, LeftoverKind.NETWORK_INTERFACE, LeftoverKind.ADDRESS]
)
def test_what_hangs_on_a_machine_is_not_taken_from_it(azure: StandIn, kind: LeftoverKind) -> None:
    cloud = provider(azure)
    cloud.launch(request("whole"))
    assert cloud.leftovers() == []
    part = {"disk": "/disks/", "card": "/networkinterfaces/", "address": "/publicipaddresses/"}
    world = azure.arm.world
    mine = [k for k in world.others if part[kind.value] in k and f"/{cloud._group}/" in k]
    with pytest.raises(RejectedError):
        cloud.discard(f"{kind.value}/{mine[0].rpartition('/')[2]}")
    assert mine[0] in world.others


@pytest.mark.parametrize("ident", ["", "disk", "disk/", "vm/x", "husk/nobody", "card/nobody"])
def test_what_nobody_has_is_no_error(azure: StandIn, ident: str) -> None:
    provider(azure).discard(ident)


def test_all_three_kinds_are_left_and_found(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("leaves"))
    azure.arm.faults.arm(Fault("leftovers", ("DELETE virtualMachines",)))
    cloud.terminate("leaves")
    left = cloud.leftovers()
    kinds = {LeftoverKind.DISK, LeftoverKind.NETWORK_INTERFACE, LeftoverKind.ADDRESS}
    assert {item.kind for item in left} == kinds
    disk = next(item for item in left if item.kind is LeftoverKind.DISK)
    assert disk.since_us > 1_700_000_000_000_000
    azure.arm.calls.clear()
    cloud.leftovers()
    assert len(azure.arm.counted()) == 5  # no machine, so no list of statuses
    cloud.launch(request("lives"))
    azure.arm.calls.clear()
    cloud.leftovers()
    assert len(azure.arm.counted()) == 6
