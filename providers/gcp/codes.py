"""The meaning of Google Cloud's error codes: of operations ("ZONE_RESOURCE_POOL_EXHAUSTED") and
reasons of HTTP errors ("quotaExceeded"). "HTTP 503" stands for an error without a reason.

Sources: Compute Engine's troubleshooting pages, recorded replies (tests/fixtures/recorded/gce); the
affected scope (zone, region or project) follows SkyPilot, dstack and Karpenter.
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
from providers.error_codes import CodeRule, CodeTable

NOT_FOUND = frozenset({"notFound", "RESOURCE_NOT_FOUND"})
EXISTS = frozenset({"alreadyExists", "RESOURCE_ALREADY_EXISTS"})
MODIFIED = frozenset({"conditionNotMet", "CONDITION_NOT_MET", "HTTP 412"})

_ZERO_LIMIT = r"limit: 0(\.0+)?(?![.\d])"
_ALL_REGIONS = r"GPUS[_-]ALL[_-]REGIONS|globally"
# Resources made by `spotctl init gcp`, and the image: missing, or not permitted.
_PREREQUISITE = r"subnetwork|/networks/|/images/|sourceImage|service ?account"
_UNKNOWN_PROJECT = r"'projects/[^/']+' was not found"
_UNKNOWN_ZONE = r"unknown zone|location .* is not found or access is unauthorized"

CODES = CodeTable(
    "GCP",
    (
        # Capacity.
        CodeRule("ZONE_RESOURCE_POOL_EXHAUSTED*", CapacityError),
        CodeRule("REGION_RESOURCE_POOL_EXHAUSTED*", CapacityError, Scope.REGION),
        CodeRule("RESOURCE_POOL_EXHAUSTED*", CapacityError),
        CodeRule("insufficientCapacity", CapacityError),
        CodeRule("GPU_STOCKOUT", CapacityError),
        CodeRule("VM_MIN_COUNT_NOT_REACHED", CapacityError),
        CodeRule("UNSUPPORTED_OPERATION", CapacityError),  # preempted during its creation
        CodeRule("RESOURCE_NOT_READY", CapacityError),
        CodeRule("IP_SPACE_EXHAUSTED*", CapacityError, Scope.REGION),  # subnets are regional
        # Quota. The message has the metric, its limit, and "in region X" or "globally".
        *(
            row
            for code in ("QUOTA_EXCEEDED", "quotaExceeded")
            for row in (
                CodeRule(code, NoQuotaError, Scope.PROVIDER, rf"({_ALL_REGIONS}).*{_ZERO_LIMIT}"),
                CodeRule(code, NoQuotaError, Scope.PROVIDER, rf"{_ZERO_LIMIT}.*({_ALL_REGIONS})"),
                CodeRule(code, QuotaError, Scope.PROVIDER, _ALL_REGIONS),
                CodeRule(code, NoQuotaError, text=_ZERO_LIMIT),
                CodeRule(code, QuotaError),
            )
        ),
        # Too many calls.
        CodeRule("rateLimitExceeded", ThrottledError),
        CodeRule("userRateLimitExceeded", ThrottledError),
        CodeRule("RESOURCE_OPERATION_RATE_EXCEEDED", ThrottledError),
        CodeRule("RATE_LIMIT_EXCEEDED", ThrottledError),
        CodeRule("HTTP 429", ThrottledError),
        # Credentials and permissions.
        CodeRule("*", UnpreparedError, Scope.ZONE, _UNKNOWN_ZONE),
        CodeRule(
            "forbidden", UnpreparedError, text=r"images\.useReadOnly"
        ),  # another project's image
        CodeRule("authError", AuthError),
        CodeRule("HTTP 401", AuthError),
        CodeRule("forbidden", AuthError),
        CodeRule("HTTP 403", AuthError),
        CodeRule("insufficientPermissions", AuthError),
        CodeRule("IAM_PERMISSION_DENIED", AuthError),
        CodeRule("PERMISSION*", AuthError),
        CodeRule("accessNotConfigured", AuthError),
        CodeRule("SERVICE_DISABLED", AuthError),
        CodeRule("billingNotEnabled", AuthError),
        CodeRule("notFound", AuthError, text=_UNKNOWN_PROJECT),
        # Missing prerequisites.
        CodeRule("VPC_NOT_FOUND", UnpreparedError, Scope.PROVIDER),  # networks are global
        CodeRule("SUBNET_NOT_FOUND_FOR_VPC", UnpreparedError),
        CodeRule("notFound", UnpreparedError, text=_PREREQUISITE),
        CodeRule("RESOURCE_NOT_FOUND", UnpreparedError, text=_PREREQUISITE),
        CodeRule("invalid", UnpreparedError, text=_PREREQUISITE),
        CodeRule("INVALID_FIELD_VALUE", UnpreparedError, text=_PREREQUISITE),
        # A wrong request.
        CodeRule("invalid*", RejectedError),
        CodeRule("badRequest", RejectedError),
        CodeRule("required", RejectedError),
        CodeRule("parseError", RejectedError),
        CodeRule("INVALID_FIELD_VALUE", RejectedError),
        CodeRule("INVALID_USAGE", RejectedError),
        CodeRule("alreadyExists", RejectedError),
        CodeRule("RESOURCE_ALREADY_EXISTS", RejectedError),
        CodeRule("resourceInUseByAnotherResource", RejectedError),
        CodeRule("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", RejectedError),
        # A machine that vanished during its creation; elsewhere, an unknown name.
        CodeRule("RESOURCE_NOT_FOUND", CapacityError),
        CodeRule("notFound", UnknownOutcome),
        # A concurrent change, or a failure inside Google Cloud: the call may have taken effect.
        *(CodeRule(code, UnknownOutcome) for code in sorted(MODIFIED)),
        CodeRule("resourceNotReady", UnknownOutcome),
        CodeRule("backendError", UnknownOutcome),
        CodeRule("internalError", UnknownOutcome),
        CodeRule("INTERNAL_ERROR", UnknownOutcome),
        CodeRule("HTTP 5[0-9][0-9]", UnknownOutcome),
        CodeRule("HTTP 408", UnknownOutcome),
    ),
)


def is_not_found(error: ProviderError) -> bool:
    """Whether the error means a missing machine or disk, and not a missing project."""
    return error.code in NOT_FOUND and isinstance(error, UnknownOutcome)


def http_error(
    status: int, reasons: Sequence[str], message: str, retry_after_s: float | None = None
) -> ProviderError:
    """Return the error for an HTTP error. `reasons` are those of its list of errors; the first
    counts."""
    code = next((reason for reason in reasons if reason), f"HTTP {status}")
    return CODES.error(code, message, retry_after_s)


def operation_error(operation: Any) -> ProviderError | None:
    """Return the error of an operation; None without one. Of several, the first counts."""
    for error in operation.error.errors:
        return CODES.error(error.code, error.message or operation.http_error_message)
    if operation.http_error_status_code >= 400:
        message = operation.http_error_message or "an operation failed without a reason"
        return http_error(operation.http_error_status_code, (), message)
    return None
