"""Leased Google Cloud Storage credentials reach one prefix, by Google's own token service.

The service is a stand-in: it accepts only a token of the account, and stores the requests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

import pytest

from providers.base import AuthError, UnknownOutcome
from providers.gcp.credential_leases import GcpCredentialIssuer, boundary
from providers.iam.policy import StorePrefix
from providers.stores import open_store
from providers.stores.base import StoreUnavailableError
from tests.fixtures.gcs import BUCKET, Gcs
from tests.fixtures.lent_gcs import ACCOUNT, Service, serving
from tests.providers.evaluate import gcp_allows
from tests.providers.leased_credentials import keeps_to_its_folder, lasts

PLACE = StorePrefix("bucket", "runs/jobs/j1/")
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as running:
        yield running


@pytest.fixture
def lender(service: Service, tmp_path: Path) -> GcpCredentialIssuer:
    key = tmp_path / "key.json"
    service.identity.write_key(key, service.endpoint)
    service.longest_s, service.down, service.expires_in = 43_200, 0, 0
    service.lifetimes.clear()
    service.exchanged.clear()
    endpoints = {"iam": service.endpoint, "tokens": f"{service.endpoint}/v1/token"}
    return GcpCredentialIssuer(ACCOUNT, key, endpoints=endpoints)


def test_a_token_of_one_prefix_is_exchanged_for_the_account_s(
    service: Service, lender: GcpCredentialIssuer
) -> None:
    before_us = time.time_ns() // 1000
    lent = lender.issue(PLACE, "j1")
    [received] = service.exchanged
    assert (received["grant_type"], received["subject_token"]) == (EXCHANGE, "whole-43200")
    assert json.loads(unquote(received["options"])) == boundary(PLACE)
    document = json.loads(lent.text)
    assert (lent.kind, document["access_token"]) == ("gcp", "limited-1")
    assert lasts(lent, 43_200, before_us)
    assert datetime.fromisoformat(document["expiry"]).timestamp() == lent.expires_at_us / 1e6
    assert "limited-1" not in repr(lent)


def test_the_boundary_is_the_folder_of_one_job() -> None:
    [rule] = boundary(PLACE)["accessBoundary"]["accessBoundaryRules"]
    assert rule["availableResource"] == "//storage.googleapis.com/projects/_/buckets/bucket"
    assert rule["availablePermissions"] == ["inRole:roles/storage.objectAdmin"]
    rights = ["storage.objects.get", "storage.objects.list"]
    condition = {"expression": rule["availabilityCondition"]["expression"]}
    document = {"grants": [{"includedPermissions": rights, "condition": condition}]}
    objects = "projects/_/buckets/bucket/objects/runs/jobs/"
    for name, allowed in (("j1/HEAD", True), ("j10/HEAD", False), ("j2/HEAD", False)):
        assert gcp_allows(document, rights[0], objects + name) is allowed
    for listing, allowed in (("runs/jobs/j1/", True), ("runs/jobs/", False), ("", False)):
        assert gcp_allows(document, rights[1], "projects/_/buckets/bucket", listing) is allowed


@pytest.mark.xdist_group("gcs")
def test_a_machine_saves_with_it_below_its_prefix_and_nowhere_else(
    service: Service, lender: GcpCredentialIssuer, gcs: Gcs, tmp_path: Path
) -> None:
    file = tmp_path / "store-credentials"
    file.write_text(lender.issue(StorePrefix(BUCKET, f"{gcs.folder}/jobs/j1/"), "j1").text)
    [rule] = json.loads(unquote(service.exchanged[-1]["options"]))["accessBoundary"][
        "accessBoundaryRules"
    ]
    rights = {"GET": "get", "HEAD": "get", "PUT": "create", "POST": "create", "DELETE": "delete"}
    over = False

    def guard(token: str, method: str, key: str, listing: bool) -> str:
        if token != "limited-1":
            return ""  # the box
        if over:
            return "401 AuthenticationRequired"
        right = f"storage.objects.{'list' if listing else rights[method]}"
        grant = {"includedPermissions": [right], "condition": rule["availabilityCondition"]}
        bucket = f"projects/_/buckets/{BUCKET}"
        name, prefix = (bucket, key) if listing else (f"{bucket}/objects/{key}", "")
        allowed = gcp_allows({"grants": [grant]}, right, name, prefix)
        return "" if allowed else "403 AccessDenied"

    gcs.guard = guard
    box = open_store(gcs.url, gcs.options)
    box.put("jobs/j2/HEAD", b"{}")
    store = open_store(gcs.url, {**gcs.plain, "credentials_file": str(file)})
    keeps_to_its_folder(store)
    over = True
    with pytest.raises(StoreUnavailableError):
        store.get("jobs/j1/HEAD")
    over = False
    assert store.get("jobs/j1/HEAD")[0] == b"2"


def test_the_longest_that_the_organisation_allows_is_found_once(
    service: Service, lender: GcpCredentialIssuer
) -> None:
    service.longest_s, before_us = 3600, time.time_ns() // 1000
    lent = lender.issue(PLACE, "j1")
    assert lasts(lent, 3600, before_us)
    lender.issue(PLACE, "j1")
    assert service.lifetimes == [43_200, 3600, 3600]


@pytest.mark.parametrize(("said_s", "lasts_s"), [(600, 600), (90_000, 43_200)])
def test_it_lasts_as_long_as_the_shorter_of_the_two_tokens(
    service: Service, lender: GcpCredentialIssuer, said_s: int, lasts_s: int
) -> None:
    service.expires_in, before_us = said_s, time.time_ns() // 1000
    lent = lender.issue(PLACE, "j1")
    assert lasts(lent, lasts_s, before_us)


def test_who_may_not_is_told_so(service: Service, lender: GcpCredentialIssuer) -> None:
    service.identity.revoked = True
    try:
        with pytest.raises(AuthError):
            lender.issue(PLACE, "j1")
    finally:
        service.identity.revoked = False
    service.longest_s = 10
    with pytest.raises(AuthError, match="lifetime"):
        lender.issue(PLACE, "j1")


def test_nobody_there_says_nothing_about_our_rights(
    lender: GcpCredentialIssuer, tmp_path: Path
) -> None:
    nowhere = {"iam": "http://127.0.0.1:9", "tokens": "http://127.0.0.1:9"}
    with pytest.raises(UnknownOutcome):
        GcpCredentialIssuer(ACCOUNT, tmp_path / "key.json", endpoints=nowhere).issue(PLACE, "j1")
