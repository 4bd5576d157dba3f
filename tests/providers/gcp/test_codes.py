"""The meaning of Google Cloud's codes: every rule of the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from providers.base import (
    AuthError,
    CapacityError,
    NoQuotaError,
    OfferRequest,
    ProviderError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
    UnpreparedError,
)
from providers.gcp.codes import CODES, http_error, is_not_found, operation_error
from tests.fixtures.later import Later
from tests.providers.gcp.conftest import Lab, request

compute_v1: Any = Later("google.cloud.compute_v1")

H100 = "Quota 'PREEMPTIBLE_NVIDIA_H100_GPUS' exceeded.  Limit: {} in region us-central1."
ALL = "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: {} globally."
SUBNET = (
    "Invalid value for field 'resource.networkInterfaces[0].subnetwork': "
    "'projects/p/regions/us-east4/subnetworks/spotd'. The referenced subnetwork resource cannot "
    "be found."
)
IMAGE = "The resource 'projects/i/global/images/family/gone' was not found"
NO_IMAGE = "Required 'compute.images.useReadOnly' permission for 'projects/i/global/images/theirs'"
NODE = "The resource 'projects/p/zones/us-east4-a/instances/spotd-j1' was not found"
TYPE = (
    "Invalid value for field 'resource.machineType': 'p9'. The referenced resource does not exist"
)
NOWHERE = "Invalid value for field 'zone': 'mars-a'. Unknown zone."
ODD_PLACE = "Location us-west8-a is not found or access is unauthorized."

TABLE: list[tuple[str, str, type[ProviderError], Scope]] = [
    ("ZONE_RESOURCE_POOL_EXHAUSTED", "no resources", CapacityError, Scope.OFFER),
    ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "no resources", CapacityError, Scope.OFFER),
    ("REGION_RESOURCE_POOL_EXHAUSTED", "no resources", CapacityError, Scope.REGION),
    ("RESOURCE_POOL_EXHAUSTED", "no resources", CapacityError, Scope.OFFER),
    ("insufficientCapacity", "none", CapacityError, Scope.OFFER),
    ("GPU_STOCKOUT", "none", CapacityError, Scope.OFFER),
    ("VM_MIN_COUNT_NOT_REACHED", "none", CapacityError, Scope.OFFER),
    ("UNSUPPORTED_OPERATION", "preempted during creation", CapacityError, Scope.OFFER),
    ("RESOURCE_NOT_READY", "not ready", CapacityError, Scope.OFFER),
    ("RESOURCE_NOT_FOUND", NODE, CapacityError, Scope.OFFER),
    ("IP_SPACE_EXHAUSTED", "subnet is full", CapacityError, Scope.REGION),
    ("IP_SPACE_EXHAUSTED_WITH_DETAILS", "subnet is full", CapacityError, Scope.REGION),
    ("QUOTA_EXCEEDED", H100.format("8.0"), QuotaError, Scope.REGION),
    ("quotaExceeded", H100.format("8.0"), QuotaError, Scope.REGION),
    ("QUOTA_EXCEEDED", H100.format("0.0"), NoQuotaError, Scope.REGION),
    ("quotaExceeded", H100.format("0"), NoQuotaError, Scope.REGION),
    ("QUOTA_EXCEEDED", H100.format("0.5"), QuotaError, Scope.REGION),
    ("QUOTA_EXCEEDED", ALL.format("8.0"), QuotaError, Scope.PROVIDER),
    ("quotaExceeded", ALL.format("8.0"), QuotaError, Scope.PROVIDER),
    ("QUOTA_EXCEEDED", ALL.format("0.0"), NoQuotaError, Scope.PROVIDER),
    ("quotaExceeded", ALL.format("0.0"), NoQuotaError, Scope.PROVIDER),
    ("QUOTA_EXCEEDED", "Limit: 0.0 globally.", NoQuotaError, Scope.PROVIDER),
    ("quotaExceeded", "Limit: 0.0 globally.", NoQuotaError, Scope.PROVIDER),
    ("rateLimitExceeded", "Rate Limit Exceeded", ThrottledError, Scope.PROVIDER),
    ("userRateLimitExceeded", "Rate Limit Exceeded", ThrottledError, Scope.PROVIDER),
    ("RESOURCE_OPERATION_RATE_EXCEEDED", "slowly", ThrottledError, Scope.PROVIDER),
    ("RATE_LIMIT_EXCEEDED", "slowly", ThrottledError, Scope.PROVIDER),
    ("HTTP 429", "slowly", ThrottledError, Scope.PROVIDER),
    ("invalid", NOWHERE, UnpreparedError, Scope.ZONE),
    ("forbidden", ODD_PLACE, UnpreparedError, Scope.ZONE),
    ("authError", "Invalid Credentials", AuthError, Scope.PROVIDER),
    ("HTTP 401", "who are you", AuthError, Scope.PROVIDER),
    ("forbidden", "Required 'compute.instances.create'", AuthError, Scope.PROVIDER),
    ("forbidden", NO_IMAGE, UnpreparedError, Scope.REGION),
    ("HTTP 403", "Policy update access denied.", AuthError, Scope.PROVIDER),
    ("insufficientPermissions", "scopes", AuthError, Scope.PROVIDER),
    ("IAM_PERMISSION_DENIED", "no", AuthError, Scope.PROVIDER),
    ("PERMISSIONS_ERROR", "no", AuthError, Scope.PROVIDER),
    ("accessNotConfigured", "API has not been used", AuthError, Scope.PROVIDER),
    ("SERVICE_DISABLED", "API is disabled", AuthError, Scope.PROVIDER),
    ("billingNotEnabled", "no account", AuthError, Scope.PROVIDER),
    ("notFound", "The resource 'projects/nobodys' was not found", AuthError, Scope.PROVIDER),
    ("VPC_NOT_FOUND", "no network", UnpreparedError, Scope.PROVIDER),
    ("SUBNET_NOT_FOUND_FOR_VPC", "no subnet", UnpreparedError, Scope.REGION),
    ("invalid", SUBNET, UnpreparedError, Scope.REGION),
    ("INVALID_FIELD_VALUE", SUBNET, UnpreparedError, Scope.REGION),
    ("notFound", IMAGE, UnpreparedError, Scope.REGION),
    ("RESOURCE_NOT_FOUND", IMAGE, UnpreparedError, Scope.REGION),
    ("invalid", "The service account 'x@p' does not exist", UnpreparedError, Scope.REGION),
    ("invalid", TYPE, RejectedError, Scope.OFFER),
    ("invalidParameter", "odd", RejectedError, Scope.OFFER),
    ("badRequest", "odd", RejectedError, Scope.OFFER),
    ("required", "name", RejectedError, Scope.OFFER),
    ("parseError", "not JSON", RejectedError, Scope.OFFER),
    ("INVALID_FIELD_VALUE", "odd", RejectedError, Scope.OFFER),
    ("INVALID_USAGE", "odd", RejectedError, Scope.OFFER),
    ("alreadyExists", "there is one", RejectedError, Scope.OFFER),
    ("RESOURCE_ALREADY_EXISTS", "there is one", RejectedError, Scope.OFFER),
    ("resourceInUseByAnotherResource", "in use", RejectedError, Scope.OFFER),
    ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "in use", RejectedError, Scope.OFFER),
    ("notFound", NODE, UnknownOutcome, Scope.OFFER),
    ("conditionNotMet", "fingerprint", UnknownOutcome, Scope.OFFER),
    ("CONDITION_NOT_MET", "fingerprint", UnknownOutcome, Scope.OFFER),
    ("HTTP 412", "fingerprint", UnknownOutcome, Scope.OFFER),
    ("resourceNotReady", "not yet", UnknownOutcome, Scope.OFFER),
    ("backendError", "Backend Error", UnknownOutcome, Scope.OFFER),
    ("internalError", "Internal error", UnknownOutcome, Scope.OFFER),
    ("INTERNAL_ERROR", "Internal error", UnknownOutcome, Scope.OFFER),
    ("HTTP 502", "a proxy's page", UnknownOutcome, Scope.OFFER),
    ("HTTP 408", "timed out", UnknownOutcome, Scope.OFFER),
]


@pytest.mark.parametrize(
    ("code", "words", "kind", "scope"), TABLE, ids=[f"{c} {w[:24]}" for c, w, _, _ in TABLE]
)
def test_a_code_has_its_class(
    code: str, words: str, kind: type[ProviderError], scope: Scope
) -> None:
    error = CODES.error(code, words)
    assert (type(error), error.scope, error.code) == (kind, scope, code)
    assert words in str(error)


def test_the_table_says_something_of_every_row() -> None:
    hit = {id(CODES.find_rule(code, message)) for code, message, _, _ in TABLE}
    assert [row for row in CODES.rules if id(row) not in hit] == []


def test_an_unheard_of_code_may_have_happened_and_is_counted() -> None:
    before = CODES.unknown_codes["SOMETHING_NEW"]
    assert type(CODES.error("SOMETHING_NEW", "never seen")) is UnknownOutcome
    assert CODES.unknown_codes["SOMETHING_NEW"] == before + 1


def test_an_http_error_without_a_reason_is_its_status() -> None:
    assert http_error(503, [""], "upstream").code == "HTTP 503"
    error = http_error(429, [], "slowly", 7.0)
    assert isinstance(error, ThrottledError)
    assert error.retry_after_s == 7.0


def test_nobodys_machine_is_not_nobodys_project() -> None:
    assert is_not_found(CODES.error("notFound", NODE))
    assert not is_not_found(
        CODES.error("notFound", "The resource 'projects/nobodys' was not found")
    )
    assert not is_not_found(CODES.error("notFound", IMAGE))


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"status": "DONE"}, None),
        ({"status": "RUNNING"}, None),
        (
            {"status": "DONE", "error": {"errors": [{"code": "GPU_STOCKOUT", "message": "x"}]}},
            CapacityError,
        ),
        ({"status": "DONE", "httpErrorStatusCode": 503}, UnknownOutcome),
        ({"status": "DONE", "httpErrorStatusCode": 401, "httpErrorMessage": "NO"}, AuthError),
    ],
)
def test_an_operation_tells_its_error(document: dict[str, Any], kind: type | None) -> None:
    error = operation_error(compute_v1.Operation.from_json(json.dumps(document)))
    assert (error if error is None else type(error)) == kind


# --- over the wire


def test_a_revoked_key_is_an_error_of_the_credentials(lab: Lab) -> None:
    lab.standin.identity.revoked = True
    with pytest.raises(AuthError, match="authError") as caught:
        lab.cloud().list()
    assert caught.value.scope is Scope.PROVIDER


def test_a_token_that_is_not_given_says_what_to_do(lab: Lab, tmp_path: Path) -> None:
    lab.standin.identity.write_stranger(tmp_path / "them.json", lab.standin.endpoint)
    with pytest.raises(AuthError, match=r"invalid_grant.*check that `gcloud auth"):
        lab.cloud(credentials_file=tmp_path / "them.json").list()


@pytest.mark.parametrize("text", [None, "no JSON", '{"type": "odd"}'])
def test_credentials_that_cannot_be_read(lab: Lab, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "key.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AuthError, match="no credentials for Google Cloud"):
        lab.cloud(credentials_file=path).list()


def test_a_server_that_is_not_there_is_an_unknown_outcome(lab: Lab) -> None:
    nobody = lab.cloud(compute_endpoint="http://127.0.0.1:9")
    for ask in (nobody.list, nobody.notices, lambda: nobody.offers(OfferRequest())):
        with pytest.raises(UnknownOutcome):
            ask()
    with pytest.raises(UnknownOutcome):
        nobody.launch(request("nowhere"))


@pytest.mark.parametrize(
    ("what", "kind"), [("no_quota", NoQuotaError), ("unheard_of", UnknownOutcome)]
)
def test_what_an_operation_comes_to(lab: Lab, what: str, kind: type) -> None:
    lab.fault(what, "instances.insert")
    with pytest.raises(ProviderError) as caught:
        lab.cloud().launch(request("refused"))
    assert type(caught.value) is kind
