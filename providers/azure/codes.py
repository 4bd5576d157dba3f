"""What Azure's error codes mean to us.

Sources: the error codes of Azure's documentation for Spot machines, allocation and quotas; which of
them refuse a pool, a region or an account is as Karpenter, SkyPilot and dstack treat them. One code
may mean two things (OperationNotAllowed is quota and much else), so the words count as well.
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

# Of something that is not there; a missing group or subscription is another matter.
NOBODYS = frozenset({"ResourceNotFound", "NotFound"})
# Of something that hangs on a machine: Azure does not delete it.
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

_ALL_SPOT = r"LowPriorityCores|Total Regional (Spot|Low-priority)"
_REGION = r"Total Regional Cores|approved Cores quota"
_NONE = r"(Current|Regional) Limit: 0\b"
_QUOTA = r"quota|Current Limit"
_BUSY = r"being (deleted|modified|used)|in progress|conflict|another operation|try again"
_LINKED = "LinkedAuthorizationFailed"

CODES = CodeTable(
    "Azure",
    (
        # "Not to be had for this subscription" and "no Spot capacity" have one code.
        CodeRule("SkuNotAvailable", CapacityError),
        CodeRule("AllocationFailed", CapacityError),
        CodeRule("ZonalAllocationFailed", CapacityError),
        CodeRule("AllocationTimedOut", CapacityError),
        CodeRule("Overconstrained*AllocationRequest", CapacityError),
        CodeRule("SpotVMEvicted*", CapacityError),
        CodeRule("CapacityReservation*", CapacityError),
        CodeRule("SubnetIsFull", CapacityError, Scope.REGION),
        CodeRule("SpotPriceGreaterThanProvidedMaxPrice", PriceError),
        # Spot machines of all sizes share one quota in a region; others have one for each family.
        *(
            row
            for code in ("OperationNotAllowed", "QuotaExceeded")
            for row in (
                CodeRule(code, NoQuotaError, text=rf"({_ALL_SPOT}|{_REGION})[\s\S]*{_NONE}"),
                CodeRule(code, QuotaError, text=rf"{_ALL_SPOT}|{_REGION}"),
                CodeRule(code, NoQuotaError, Scope.OFFER, text=rf"quota[\s\S]*{_NONE}"),
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
        # Who we are, and what we may.
        CodeRule("ExpiredAuthenticationToken", AuthError),
        CodeRule("InvalidAuthenticationToken*", AuthError),
        CodeRule("AuthenticationFailed*", AuthError),
        CodeRule("AuthorizationFailed", AuthError),
        # Of what one request names: others' images, and reservations that we may not use.
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
        # What `spotctl init azure` makes, and the image.
        CodeRule("ResourceGroupNotFound", UnpreparedError, Scope.PROVIDER),
        CodeRule("InvalidResourceReference", UnpreparedError),
        CodeRule("*SubnetNotFound", UnpreparedError),
        CodeRule("ParentResourceNotFound", UnpreparedError),
        CodeRule("FailedIdentityOperation", UnpreparedError),
        CodeRule("RequestDisallowedByPolicy", UnpreparedError),  # of the subscription, on a place
        CodeRule("*ImageNotFound", UnpreparedError),
        CodeRule("*ImageVersionNotFound", UnpreparedError),
        CodeRule("ImageVersionDeprecated", UnpreparedError),
        CodeRule("MarketplacePurchaseEligibilityFailed", UnpreparedError),
        CodeRule("VMMarketplaceInvalidInput", UnpreparedError),
        CodeRule("ResourcePurchaseValidationFailed", UnpreparedError),
        CodeRule("LocationNotAvailableForResourceType", UnpreparedError),
        CodeRule("NoRegisteredProviderFound", UnpreparedError),
        CodeRule("InvalidParameter", UnpreparedError, text=r"image.*(not found|does not exist)"),
        # Our request is wrong.
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
        # It may have happened, or somebody is at it.
        CodeRule("Conflict", UnknownOutcome),
        CodeRule("AnotherOperationInProgress", UnknownOutcome),
        CodeRule("OperationPreempted", UnknownOutcome),
        CodeRule("OperationCanceled", UnknownOutcome),
        CodeRule("Canceled", UnknownOutcome),
        CodeRule("ResourceNotFound", UnknownOutcome),  # of a create that is not visible yet
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
