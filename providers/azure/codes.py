"""The meaning of Azure's error codes.

Sources: Azure's documentation of Spot machines, allocation and quotas; the affected scope (pool,
region or account) follows Karpenter, SkyPilot and dstack. One code can have several meanings
(OperationNotAllowed is quota and much else), so the message counts as well.
"""

from __future__ import annotations

from providers.base import (
    AuthError,
    CapacityError,
    NoQuotaError,
    PriceError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
    UnpreparedError,
)
from providers.error_codes import CodeRule, CodeTable

# A missing resource. A missing resource group or subscription has other codes.
NOT_FOUND = frozenset({"ResourceNotFound", "NotFound"})
# A resource that is attached to a machine, which Azure does not delete.
IN_USE = frozenset(
    {
        "OperationNotAllowed",
        "NicInUse",
        "NicInUseWithPrivateEndpoint",
        "InUseResource",
        "PublicIPAddressCannotBeDeleted",
        "ResourceInUse",
        "DiskInUse",
        "AttachedDisk",
    }
)
EXISTS = "PreconditionFailed"  # If-None-Match: the name is taken

_SPOT_QUOTA = r"LowPriorityCores|Total Regional (Spot|Low-priority)"
_REGIONAL_QUOTA = r"Total Regional Cores|approved Cores quota"
_ZERO_LIMIT = r"(Current|Regional) Limit: 0\b"
_QUOTA = r"quota|Current Limit"
_BUSY = r"being (deleted|modified|used)|in progress|conflict|another operation|try again"
_LINKED = "LinkedAuthorizationFailed"

CODES = CodeTable(
    "Azure",
    (
        # "Not available for this subscription" and "no Spot capacity" have the same code.
        CodeRule("SkuNotAvailable", CapacityError),
        CodeRule("AllocationFailed", CapacityError),
        CodeRule("ZonalAllocationFailed", CapacityError),
        CodeRule("AllocationTimedOut", CapacityError),
        CodeRule("Overconstrained*AllocationRequest", CapacityError),
        CodeRule("SpotVMEvicted*", CapacityError),
        CodeRule("CapacityReservation*", CapacityError),
        CodeRule("SubnetIsFull", CapacityError, Scope.REGION),
        CodeRule("SpotPriceGreaterThanProvidedMaxPrice", PriceError),
        # Spot machines of all sizes share one quota in a region; others have one per family.
        *(
            row
            for code in ("OperationNotAllowed", "QuotaExceeded")
            for row in (
                CodeRule(
                    code,
                    NoQuotaError,
                    text=rf"({_SPOT_QUOTA}|{_REGIONAL_QUOTA})[\s\S]*{_ZERO_LIMIT}",
                ),
                CodeRule(code, QuotaError, text=rf"{_SPOT_QUOTA}|{_REGIONAL_QUOTA}"),
                CodeRule(code, NoQuotaError, Scope.OFFER, text=rf"quota[\s\S]*{_ZERO_LIMIT}"),
                CodeRule(code, QuotaError, Scope.OFFER, text=_QUOTA),
            )
        ),
        CodeRule("QuotaExceeded", QuotaError),
        CodeRule("*PublicIPCountLimitReached", QuotaError),
        CodeRule("NetworkInterfaceCountExceeded", QuotaError),
        CodeRule("ResourceQuotaExceeded", QuotaError),
        CodeRule(
            "OperationNotAllowed", ThrottledError, text=r"too many requests|rate limit|throttl"
        ),
        CodeRule("OperationNotAllowed", UnknownOutcome, text=_BUSY),
        CodeRule("OperationNotAllowed", RejectedError),
        CodeRule("TooManyRequests", ThrottledError),
        CodeRule("*RequestsThrottled", ThrottledError),
        CodeRule("RetryableError*", ThrottledError),
        # Credentials and permissions.
        CodeRule("ExpiredAuthenticationToken", AuthError),
        CodeRule("InvalidAuthenticationToken*", AuthError),
        CodeRule("AuthenticationFailed*", AuthError),
        CodeRule("AuthorizationFailed", AuthError),
        # A resource named by the request: another account's image, or a reservation without access.
        CodeRule(
            _LINKED, UnpreparedError, text=r"linked scope.*Microsoft\.Compute/(images|galleries)/"
        ),
        CodeRule(
            _LINKED, UnpreparedError, Scope.OFFER, r"linked scope.*/capacityReservationGroups/"
        ),
        CodeRule(_LINKED, AuthError),
        CodeRule("InvalidSubscriptionId", AuthError),
        CodeRule("SubscriptionNotFound", AuthError),
        CodeRule("SubscriptionNotRegistered", AuthError),
        CodeRule("MissingSubscriptionRegistration", AuthError),
        CodeRule("ReadOnlyDisabledSubscription", AuthError),
        CodeRule("DisabledSubscription", AuthError),
        CodeRule("AzureSpotFeatureNotEnabledForSubscription", AuthError),
        # Missing prerequisites: the resources of `spotctl init azure`, and the image.
        CodeRule("ResourceGroupNotFound", UnpreparedError, Scope.PROVIDER),
        CodeRule("InvalidResourceReference", UnpreparedError),
        CodeRule("*SubnetNotFound", UnpreparedError),
        CodeRule("ParentResourceNotFound", UnpreparedError),
        CodeRule("FailedIdentityOperation", UnpreparedError),
        CodeRule("RequestDisallowedByPolicy", UnpreparedError),  # a policy of the subscription
        CodeRule("*ImageNotFound", UnpreparedError),
        CodeRule("*ImageVersionNotFound", UnpreparedError),
        CodeRule("ImageVersionDeprecated", UnpreparedError),
        CodeRule("MarketplacePurchaseEligibilityFailed", UnpreparedError),
        CodeRule("VMMarketplaceInvalidInput", UnpreparedError),
        CodeRule("ResourcePurchaseValidationFailed", UnpreparedError),
        CodeRule("LocationNotAvailableForResourceType", UnpreparedError),
        CodeRule("NoRegisteredProviderFound", UnpreparedError),
        CodeRule("InvalidParameter", UnpreparedError, text=r"image.*(not found|does not exist)"),
        # A wrong request.
        CodeRule("InvalidParameter", RejectedError),
        CodeRule("InvalidRequestContent", RejectedError),
        CodeRule("InvalidRequestFormat", RejectedError),
        CodeRule("InvalidResourceName", RejectedError),
        CodeRule("BadRequest", RejectedError),
        CodeRule("PropertyChangeNotAllowed", RejectedError),
        CodeRule("MaxPriceValueInvalid", RejectedError),
        CodeRule("AzureSpotIsNotSupportedForThisVMSize", RejectedError),
        CodeRule("EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", RejectedError),
        CodeRule("InvalidTemplateDeployment", RejectedError),
        CodeRule("NoAvailableZone*", RejectedError),
        CodeRule("AvailabilityZoneNotSupported", RejectedError),
        CodeRule("VMSizeNotSupported", RejectedError),
        CodeRule("RequestDisallowedByAzure", RejectedError),
        CodeRule("ScopeLocked", RejectedError),
        CodeRule(EXISTS, UnknownOutcome),
        # The call may have taken effect, or another one is in progress.
        CodeRule("Conflict", UnknownOutcome),
        CodeRule("AnotherOperationInProgress", UnknownOutcome),
        CodeRule("OperationPreempted", UnknownOutcome),
        CodeRule("OperationCanceled", UnknownOutcome),
        CodeRule("Canceled", UnknownOutcome),
        CodeRule("ResourceNotFound", UnknownOutcome),  # perhaps a create that is not visible yet
        CodeRule("NotFound", UnknownOutcome),
        CodeRule("InternalServerError", UnknownOutcome),
        CodeRule("InternalExecutionError", UnknownOutcome),
        CodeRule("InternalDiskManagementError", UnknownOutcome),
        CodeRule("InternalOperationError", UnknownOutcome),
        CodeRule("NetworkingInternalOperationError", UnknownOutcome),
        CodeRule("ServerTimeout", UnknownOutcome),
        CodeRule("OperationTimedOut", UnknownOutcome),
        CodeRule("GatewayTimeout", UnknownOutcome),
        CodeRule("ServiceUnavailable", UnknownOutcome),
        CodeRule("ServerBusy", UnknownOutcome),
        CodeRule("OSProvisioningTimedOut", UnknownOutcome),
    ),
)
