"""What Google Cloud's codes mean to us: of operations ("ZONE_RESOURCE_POOL_EXHAUSTED") and reasons
of HTTP errors ("quotaExceeded"); "HTTP 503" is an error without a reason.

Sources: Compute Engine's troubleshooting pages, recorded replies (tests/fixtures/recorded/gce);
what refuses a zone, a region or a project is as SkyPilot, dstack and Karpenter treat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from providers.base import (
    AuthError,
    CapacityError,
    NoQuotaError,
    ProviderError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
    UnpreparedError,
)
from providers.codes import Codes, Row

NOT_FOUND = frozenset({"notFound", "RESOURCE_NOT_FOUND"})
EXISTS = frozenset({"alreadyExists", "RESOURCE_ALREADY_EXISTS"})
CHANGED = frozenset({"conditionNotMet", "CONDITION_NOT_MET", "HTTP 412"})

_NONE = r"limit: 0(\.0+)?(?![.\d])"
_ALL_REGIONS = r"GPUS[_-]ALL[_-]REGIONS|globally"
# What `spotctl init gcp` makes, and the image: missing, or not ours to use.
_SITE = r"subnetwork|/networks/|/images/|sourceImage|service ?account"
_PROJECT = r"'projects/[^/']+' was not found"
_ZONE = r"unknown zone|location .* is not found or access is unauthorized"

CODES = Codes(
    "GCP",
    (
        # Capacity.
        Row("ZONE_RESOURCE_POOL_EXHAUSTED*", CapacityError),
        Row("REGION_RESOURCE_POOL_EXHAUSTED*", CapacityError, Scope.REGION),
        Row("RESOURCE_POOL_EXHAUSTED*", CapacityError),
        Row("insufficientCapacity", CapacityError),
        Row("GPU_STOCKOUT", CapacityError),
        Row("VM_MIN_COUNT_NOT_REACHED", CapacityError),
        Row("UNSUPPORTED_OPERATION", CapacityError),  # preempted while it was made
        Row("RESOURCE_NOT_READY", CapacityError),
        Row("IP_SPACE_EXHAUSTED*", CapacityError, Scope.REGION),  # subnets are regional
        # Quota. The message has the metric, its limit, and "in region X" or "globally".
        *(
            row
            for code in ("QUOTA_EXCEEDED", "quotaExceeded")
            for row in (
                Row(code, NoQuotaError, Scope.PROVIDER, rf"({_ALL_REGIONS}).*{_NONE}"),
                Row(code, NoQuotaError, Scope.PROVIDER, rf"{_NONE}.*({_ALL_REGIONS})"),
                Row(code, QuotaError, Scope.PROVIDER, _ALL_REGIONS),
                Row(code, NoQuotaError, text=_NONE),
                Row(code, QuotaError),
            )
        ),
        # Too many calls.
        Row("rateLimitExceeded", ThrottledError),
        Row("userRateLimitExceeded", ThrottledError),
        Row("RESOURCE_OPERATION_RATE_EXCEEDED", ThrottledError),
        Row("RATE_LIMIT_EXCEEDED", ThrottledError),
        Row("HTTP 429", ThrottledError),
        # Credentials, and what they are worth.
        Row("*", UnpreparedError, Scope.ZONE, _ZONE),
        Row("forbidden", UnpreparedError, text=r"images\.useReadOnly"),  # others' image
        Row("authError", AuthError),
        Row("HTTP 401", AuthError),
        Row("forbidden", AuthError),
        Row("HTTP 403", AuthError),
        Row("insufficientPermissions", AuthError),
        Row("IAM_PERMISSION_DENIED", AuthError),
        Row("PERMISSION*", AuthError),
        Row("accessNotConfigured", AuthError),
        Row("SERVICE_DISABLED", AuthError),
        Row("billingNotEnabled", AuthError),
        Row("notFound", AuthError, text=_PROJECT),
        # What the place lacks.
        Row("VPC_NOT_FOUND", UnpreparedError, Scope.PROVIDER),  # networks are global
        Row("SUBNET_NOT_FOUND_FOR_VPC", UnpreparedError),
        Row("notFound", UnpreparedError, text=_SITE),
        Row("RESOURCE_NOT_FOUND", UnpreparedError, text=_SITE),
        Row("invalid", UnpreparedError, text=_SITE),
        Row("INVALID_FIELD_VALUE", UnpreparedError, text=_SITE),
        # What is wrong with our request.
        Row("invalid*", RejectedError),
        Row("badRequest", RejectedError),
        Row("required", RejectedError),
        Row("parseError", RejectedError),
        Row("INVALID_FIELD_VALUE", RejectedError),
        Row("INVALID_USAGE", RejectedError),
        Row("alreadyExists", RejectedError),
        Row("RESOURCE_ALREADY_EXISTS", RejectedError),
        Row("resourceInUseByAnotherResource", RejectedError),
        Row("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", RejectedError),
        # A machine that vanished while it was made; elsewhere, nobody's name.
        Row("RESOURCE_NOT_FOUND", CapacityError),
        Row("notFound", UnknownOutcome),
        # Somebody changed it meanwhile, or the vendor's own trouble: it may have happened.
        *(Row(code, UnknownOutcome) for code in sorted(CHANGED)),
        Row("resourceNotReady", UnknownOutcome),
        Row("backendError", UnknownOutcome),
        Row("internalError", UnknownOutcome),
        Row("INTERNAL_ERROR", UnknownOutcome),
        Row("HTTP 5[0-9][0-9]", UnknownOutcome),
        Row("HTTP 408", UnknownOutcome),
    ),
)


def nobodys(error: ProviderError) -> bool:
    """Whether it says that there is no such machine or disk, and not that there is no project."""
    return error.code in NOT_FOUND and isinstance(error, UnknownOutcome)


def http_error(
    status: int, reasons: Sequence[str], words: str, retry_after_s: float | None = None
) -> ProviderError:
    """What an HTTP error means; `reasons` are those of its list of errors, the first counts."""
    code = next((reason for reason in reasons if reason), f"HTTP {status}")
    return CODES.error(code, words, retry_after_s)


def operation_error(operation: Any) -> ProviderError | None:
    """What the error of an operation means; None for one without. Of several the first counts."""
    for error in operation.error.errors:
        return CODES.error(error.code, error.message or operation.http_error_message)
    if operation.http_error_status_code >= 400:
        words = operation.http_error_message or "an operation failed without a reason"
        return http_error(operation.http_error_status_code, (), words)
    return None
