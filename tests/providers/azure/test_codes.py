"""The meaning of each of Azure's codes, with its messages."""

from __future__ import annotations

import logging

import pytest

from providers.azure.codes import CODES
from providers.base import (
    AuthError,
    CapacityError,
    NoQuotaError,
    PriceError,
    ProviderError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
    UnpreparedError,
)

OFFER, REGION, PROVIDER = Scope.OFFER, Scope.REGION, Scope.PROVIDER
DETAILS = (
    "Additional details - Deployment Model: Resource Manager, Location: eastus, "
    "Current Limit: {0}, Current Usage: {0}, Additional Required: 96, (Minimum) New Limit "
    "Required: 192. Setup Alerts when Quota reaches threshold."
)

LINKED = (
    "The client has permission to perform action 'Microsoft.Compute/virtualMachines/write' on "
    "scope '/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/j1'; "
    "however, it does not have permission to perform action(s) 'x/action' on the linked scope(s) "
    "'/subscriptions/s/resourceGroups/o/providers/Microsoft.Compute/{}' (respectively) or the "
    "linked scope(s) are invalid."
)


def quota(what: str, limit: int) -> str:
    message = f"Operation could not be completed as it results in exceeding approved {what} quota. "
    return message + DETAILS.format(limit)


ROWS: list[tuple[str, str, type[ProviderError], Scope]] = [
    ("SkuNotAvailable", "is currently not available in location 'eastus'", CapacityError, OFFER),
    ("AllocationFailed", "", CapacityError, OFFER),
    ("ZonalAllocationFailed", "", CapacityError, OFFER),
    ("AllocationTimedOut", "", CapacityError, OFFER),
    ("OverconstrainedAllocationRequest", "", CapacityError, OFFER),
    ("OverconstrainedZonalAllocationRequest", "", CapacityError, OFFER),
    ("SpotVMEvictedDuringProvisioning", "", CapacityError, OFFER),
    ("CapacityReservationExceeded", "", CapacityError, OFFER),
    ("SubnetIsFull", "Subnet nodes does not have enough capacity", CapacityError, REGION),
    ("SpotPriceGreaterThanProvidedMaxPrice", "", PriceError, OFFER),
    ("OperationNotAllowed", quota("LowPriorityCores", 96), QuotaError, REGION),
    ("OperationNotAllowed", quota("LowPriorityCores", 0), NoQuotaError, REGION),
    ("OperationNotAllowed", quota("Total Regional Cores", 10), QuotaError, REGION),
    ("OperationNotAllowed", quota("Total Regional Cores", 0), NoQuotaError, REGION),
    ("OperationNotAllowed", quota("standardNDSH100v5Family Cores", 96), QuotaError, OFFER),
    ("OperationNotAllowed", quota("standardNDSH100v5Family Cores", 0), NoQuotaError, OFFER),
    ("QuotaExceeded", quota("LowPriorityCores", 96), QuotaError, REGION),
    ("QuotaExceeded", quota("LowPriorityCores", 0), NoQuotaError, REGION),
    ("QuotaExceeded", quota("Total Regional Cores", 10), QuotaError, REGION),
    ("QuotaExceeded", quota("standardNCADSA100v4Family Cores", 0), NoQuotaError, OFFER),
    ("QuotaExceeded", quota("standardNCADSA100v4Family Cores", 24), QuotaError, OFFER),
    ("QuotaExceeded", "", QuotaError, REGION),
    ("PublicIPCountLimitReached", "Cannot create more than 20", QuotaError, REGION),
    ("StandardSkuPublicIPCountLimitReached", "", QuotaError, REGION),
    ("NetworkInterfaceCountExceeded", "", QuotaError, REGION),
    ("ResourceQuotaExceeded", "", QuotaError, REGION),
    ("OperationNotAllowed", "The server rejected it: too many requests", ThrottledError, PROVIDER),
    ("OperationNotAllowed", "The VM is being deleted", UnknownOutcome, OFFER),
    ("OperationNotAllowed", "Not allowed on this resource", RejectedError, OFFER),
    ("TooManyRequests", "", ThrottledError, PROVIDER),
    ("SubscriptionRequestsThrottled", "", ThrottledError, PROVIDER),
    ("RetryableError", "", ThrottledError, PROVIDER),
    ("ExpiredAuthenticationToken", "", AuthError, PROVIDER),
    ("InvalidAuthenticationTokenTenant", "", AuthError, PROVIDER),
    ("AuthenticationFailed", "", AuthError, PROVIDER),
    ("AuthorizationFailed", "", AuthError, PROVIDER),
    ("LinkedAuthorizationFailed", "", AuthError, PROVIDER),
    ("LinkedAuthorizationFailed", LINKED.format("images/theirs"), UnpreparedError, REGION),
    ("LinkedAuthorizationFailed", LINKED.format("galleries/g/images/i"), UnpreparedError, REGION),
    (
        "LinkedAuthorizationFailed",
        LINKED.format("capacityReservationGroups/g"),
        UnpreparedError,
        OFFER,
    ),
    ("RequestDisallowedByPolicy", "", UnpreparedError, REGION),
    ("InvalidSubscriptionId", "", AuthError, PROVIDER),
    ("SubscriptionNotFound", "", AuthError, PROVIDER),
    ("SubscriptionNotRegistered", "", AuthError, PROVIDER),
    ("MissingSubscriptionRegistration", "", AuthError, PROVIDER),
    ("ReadOnlyDisabledSubscription", "", AuthError, PROVIDER),
    ("DisabledSubscription", "", AuthError, PROVIDER),
    ("AzureSpotFeatureNotEnabledForSubscription", "", AuthError, PROVIDER),
    ("ResourceGroupNotFound", "", UnpreparedError, PROVIDER),
    ("InvalidResourceReference", "", UnpreparedError, REGION),
    ("VirtualNetworkSubnetNotFound", "", UnpreparedError, REGION),
    ("SubnetNotFound", "", UnpreparedError, REGION),
    ("ParentResourceNotFound", "", UnpreparedError, REGION),
    ("FailedIdentityOperation", "", UnpreparedError, REGION),
    ("PlatformImageNotFound", "", UnpreparedError, REGION),
    ("GalleryImageNotFound", "", UnpreparedError, REGION),
    ("ImageNotFound", "", UnpreparedError, REGION),
    ("GalleryImageVersionNotFound", "", UnpreparedError, REGION),
    ("ImageVersionDeprecated", "", UnpreparedError, REGION),
    ("MarketplacePurchaseEligibilityFailed", "", UnpreparedError, REGION),
    ("VMMarketplaceInvalidInput", "", UnpreparedError, REGION),
    ("ResourcePurchaseValidationFailed", "", UnpreparedError, REGION),
    ("LocationNotAvailableForResourceType", "", UnpreparedError, REGION),
    ("NoRegisteredProviderFound", "", UnpreparedError, REGION),
    ("InvalidParameter", "The image 'x' was not found", UnpreparedError, REGION),
    ("InvalidParameter", "The value x for the VM size is not valid", RejectedError, OFFER),
    ("InvalidRequestContent", "", RejectedError, OFFER),
    ("InvalidRequestFormat", "", RejectedError, OFFER),
    ("InvalidResourceName", "", RejectedError, OFFER),
    ("BadRequest", "", RejectedError, OFFER),
    ("PropertyChangeNotAllowed", "", RejectedError, OFFER),
    ("MaxPriceValueInvalid", "", RejectedError, OFFER),
    ("AzureSpotIsNotSupportedForThisVMSize", "", RejectedError, OFFER),
    ("EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", "", RejectedError, OFFER),
    ("InvalidTemplateDeployment", "", RejectedError, OFFER),
    ("NoAvailableZone", "", RejectedError, OFFER),
    ("AvailabilityZoneNotSupported", "", RejectedError, OFFER),
    ("VMSizeNotSupported", "", RejectedError, OFFER),
    ("RequestDisallowedByAzure", "", RejectedError, OFFER),
    ("ScopeLocked", "", RejectedError, OFFER),
    ("PreconditionFailed", "", UnknownOutcome, OFFER),
    ("Conflict", "", UnknownOutcome, OFFER),
    ("AnotherOperationInProgress", "", UnknownOutcome, OFFER),
    ("OperationPreempted", "", UnknownOutcome, OFFER),
    ("OperationCanceled", "", UnknownOutcome, OFFER),
    ("Canceled", "", UnknownOutcome, OFFER),
    ("ResourceNotFound", "", UnknownOutcome, OFFER),
    ("NotFound", "", UnknownOutcome, OFFER),
    ("InternalServerError", "", UnknownOutcome, OFFER),
    ("InternalExecutionError", "", UnknownOutcome, OFFER),
    ("InternalDiskManagementError", "", UnknownOutcome, OFFER),
    ("InternalOperationError", "", UnknownOutcome, OFFER),
    ("NetworkingInternalOperationError", "", UnknownOutcome, OFFER),
    ("ServerTimeout", "", UnknownOutcome, OFFER),
    ("OperationTimedOut", "", UnknownOutcome, OFFER),
    ("GatewayTimeout", "", UnknownOutcome, OFFER),
    ("ServiceUnavailable", "", UnknownOutcome, OFFER),
    ("ServerBusy", "", UnknownOutcome, OFFER),
    ("OSProvisioningTimedOut", "", UnknownOutcome, OFFER),
]


@pytest.mark.parametrize(("code", "words", "kind", "scope"), ROWS)
def test_code(code: str, words: str, kind: type[ProviderError], scope: Scope) -> None:
    before = CODES.unknown_codes[code]
    error = CODES.error(code, words)
    assert (type(error), error.scope, error.code) == (kind, scope, code)
    assert code in str(error)
    assert words in str(error)
    assert CODES.unknown_codes[code] == before


def test_every_row_of_the_table_has_one_here() -> None:
    used = {id(CODES.find_rule(code, message)) for code, message, _, _ in ROWS}
    unused = [row for row in CODES.rules if id(row) not in used]
    assert unused == []


def test_an_unknown_code_may_have_happened_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        error = CODES.error("SomethingNew", "of 2027")
    assert type(error) is UnknownOutcome
    assert CODES.unknown_codes["SomethingNew"] == 1
    assert "SomethingNew: of 2027" in caplog.text


def test_throttling_has_a_time_of_its_own_or_the_vendors() -> None:
    reported, untold = (CODES.error("TooManyRequests", "", after) for after in (7.0, None))
    assert isinstance(reported, ThrottledError)
    assert isinstance(untold, ThrottledError)
    assert reported.retry_after_s == 7.0
    assert untold.retry_after_s > 0
