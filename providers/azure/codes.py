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
from providers.codes import Codes, Row

# Of something that is not there; a missing group or subscription is another matter.
NOBODYS = frozenset({"ResourceNotFound", "NotFound"})
# Of something that hangs on a machine: Azure does not delete it.
IN_USE = frozenset(
    {
        *("OperationNotAllowed", "NicInUse", "NicInUseWithPrivateEndpoint", "InUseResource"),
        *("PublicIPAddressCannotBeDeleted", "ResourceInUse", "DiskInUse", "AttachedDisk"),
    }
)
EXISTS = "PreconditionFailed"  # If-None-Match: the name is taken

_ALL_SPOT = r"LowPriorityCores|Total Regional (Spot|Low-priority)"
_REGION = r"Total Regional Cores|approved Cores quota"
_NONE = r"(Current|Regional) Limit: 0\b"
_QUOTA = r"quota|Current Limit"
_BUSY = r"being (deleted|modified|used)|in progress|conflict|another operation|try again"
_LINKED = "LinkedAuthorizationFailed"

CODES = Codes(
    "Azure",
    (
        # "Not to be had for this subscription" and "no Spot capacity" have one code.
        Row("SkuNotAvailable", CapacityError),
        Row("AllocationFailed", CapacityError),
        Row("ZonalAllocationFailed", CapacityError),
        Row("AllocationTimedOut", CapacityError),
        Row("Overconstrained*AllocationRequest", CapacityError),
        Row("SpotVMEvicted*", CapacityError),
        Row("CapacityReservation*", CapacityError),
        Row("SubnetIsFull", CapacityError, Scope.REGION),
        Row("SpotPriceGreaterThanProvidedMaxPrice", PriceError),
        # Spot machines of all sizes share one quota in a region; others have one for each family.
        *(
            row
            for code in ("OperationNotAllowed", "QuotaExceeded")
            for row in (
                Row(code, NoQuotaError, text=rf"({_ALL_SPOT}|{_REGION})[\s\S]*{_NONE}"),
                Row(code, QuotaError, text=rf"{_ALL_SPOT}|{_REGION}"),
                Row(code, NoQuotaError, Scope.OFFER, text=rf"quota[\s\S]*{_NONE}"),
                Row(code, QuotaError, Scope.OFFER, text=_QUOTA),
            )
        ),
        Row("QuotaExceeded", QuotaError),
        Row("*PublicIPCountLimitReached", QuotaError),
        Row("NetworkInterfaceCountExceeded", QuotaError),
        Row("ResourceQuotaExceeded", QuotaError),
        Row("OperationNotAllowed", ThrottledError, text=r"too many requests|rate limit|throttl"),
        Row("OperationNotAllowed", UnknownOutcome, text=_BUSY),
        Row("OperationNotAllowed", RejectedError),
        Row("TooManyRequests", ThrottledError),
        Row("*RequestsThrottled", ThrottledError),
        Row("RetryableError*", ThrottledError),
        # Who we are, and what we may.
        Row("ExpiredAuthenticationToken", AuthError),
        Row("InvalidAuthenticationToken*", AuthError),
        Row("AuthenticationFailed*", AuthError),
        Row("AuthorizationFailed", AuthError),
        # Of what one request names: others' images, and reservations that we may not use.
        Row(_LINKED, UnpreparedError, text=r"linked scope.*Microsoft\.Compute/(images|galleries)/"),
        Row(_LINKED, UnpreparedError, Scope.OFFER, r"linked scope.*/capacityReservationGroups/"),
        Row(_LINKED, AuthError),
        Row("InvalidSubscriptionId", AuthError),
        Row("SubscriptionNotFound", AuthError),
        Row("SubscriptionNotRegistered", AuthError),
        Row("MissingSubscriptionRegistration", AuthError),
        Row("ReadOnlyDisabledSubscription", AuthError),
        Row("DisabledSubscription", AuthError),
        Row("AzureSpotFeatureNotEnabledForSubscription", AuthError),
        # What `spotctl init azure` makes, and the image.
        Row("ResourceGroupNotFound", UnpreparedError, Scope.PROVIDER),
        Row("InvalidResourceReference", UnpreparedError),
        Row("*SubnetNotFound", UnpreparedError),
        Row("ParentResourceNotFound", UnpreparedError),
        Row("FailedIdentityOperation", UnpreparedError),
        Row("RequestDisallowedByPolicy", UnpreparedError),  # of the subscription, on a place
        Row("*ImageNotFound", UnpreparedError),
        Row("*ImageVersionNotFound", UnpreparedError),
        Row("ImageVersionDeprecated", UnpreparedError),
        Row("MarketplacePurchaseEligibilityFailed", UnpreparedError),
        Row("VMMarketplaceInvalidInput", UnpreparedError),
        Row("ResourcePurchaseValidationFailed", UnpreparedError),
        Row("LocationNotAvailableForResourceType", UnpreparedError),
        Row("NoRegisteredProviderFound", UnpreparedError),
        Row("InvalidParameter", UnpreparedError, text=r"image.*(not found|does not exist)"),
        # Our request is wrong.
        Row("InvalidParameter", RejectedError),
        Row("InvalidRequestContent", RejectedError),
        Row("InvalidRequestFormat", RejectedError),
        Row("InvalidResourceName", RejectedError),
        Row("BadRequest", RejectedError),
        Row("PropertyChangeNotAllowed", RejectedError),
        Row("MaxPriceValueInvalid", RejectedError),
        Row("AzureSpotIsNotSupportedForThisVMSize", RejectedError),
        Row("EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", RejectedError),
        Row("InvalidTemplateDeployment", RejectedError),
        Row("NoAvailableZone*", RejectedError),
        Row("AvailabilityZoneNotSupported", RejectedError),
        Row("VMSizeNotSupported", RejectedError),
        Row("RequestDisallowedByAzure", RejectedError),
        Row("ScopeLocked", RejectedError),
        Row(EXISTS, UnknownOutcome),
        # It may have happened, or somebody is at it.
        Row("Conflict", UnknownOutcome),
        Row("AnotherOperationInProgress", UnknownOutcome),
        Row("OperationPreempted", UnknownOutcome),
        Row("OperationCanceled", UnknownOutcome),
        Row("Canceled", UnknownOutcome),
        Row("ResourceNotFound", UnknownOutcome),  # of a create that is not visible yet
        Row("NotFound", UnknownOutcome),
        Row("InternalServerError", UnknownOutcome),
        Row("InternalExecutionError", UnknownOutcome),
        Row("InternalDiskManagementError", UnknownOutcome),
        Row("InternalOperationError", UnknownOutcome),
        Row("NetworkingInternalOperationError", UnknownOutcome),
        Row("ServerTimeout", UnknownOutcome),
        Row("OperationTimedOut", UnknownOutcome),
        Row("GatewayTimeout", UnknownOutcome),
        Row("ServiceUnavailable", UnknownOutcome),
        Row("ServerBusy", UnknownOutcome),
        Row("OSProvisioningTimedOut", UnknownOutcome),
    ),
)
