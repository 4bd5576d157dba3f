"""The meaning of EC2's error codes.

Sources: the error codes of the EC2 API reference; the affected scope (pool, region or account)
follows Karpenter, SkyPilot and dstack.
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

PARAMETER_MISMATCH = "IdempotentParameterMismatch"
# A resource that does not exist, or an id that is malformed.
NOT_FOUND = frozenset(
    {
        "InvalidInstanceID.NotFound",
        "InvalidInstanceID.Malformed",
        "InvalidVolume.NotFound",
        "InvalidVolumeID.Malformed",
        "InvalidNetworkInterfaceID.NotFound",
        "InvalidNetworkInterfaceId.Malformed",
        "InvalidAllocationID.NotFound",
        "InvalidPlacementGroup.Unknown",
        "InvalidSnapshot.NotFound",
    }
)
IN_USE = frozenset(
    {
        "VolumeInUse",
        "InvalidIPAddress.InUse",
        "InvalidNetworkInterface.InUse",
        "InvalidPlacementGroup.InUse",
    }
)
# Images and their snapshots.
NAME_TAKEN = "InvalidAMIName.Duplicate"
IMAGE_GONE = frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"})
SNAPSHOT_IN_USE = "InvalidSnapshot.InUse"
NO_LIVE_CONSOLE = "UnsupportedOperation"  # the type has no live console
BAD_VALUE = "InvalidParameterValue"  # also an interface in use: only the message tells

CODES = CodeTable(
    "AWS",
    (
        CodeRule("InsufficientInstanceCapacity", CapacityError),
        CodeRule("InsufficientHostCapacity", CapacityError),
        CodeRule("InsufficientCapacity", CapacityError),
        CodeRule("UnfulfillableCapacity", CapacityError),
        CodeRule("ReservationCapacityExceeded", CapacityError),
        CodeRule("MaxFleetCountExceeded", CapacityError),
        CodeRule("InsufficientFreeAddressesInSubnet", CapacityError, Scope.ZONE),
        CodeRule("Unsupported", CapacityError),  # that type, in that zone
        CodeRule("SpotMaxPriceTooLow", PriceError),
        CodeRule("VcpuLimitExceeded", NoQuotaError, text=r"limit of 0\b"),
        CodeRule("VcpuLimitExceeded", QuotaError),
        CodeRule("MaxSpotInstanceCountExceeded", QuotaError),
        CodeRule("InstanceLimitExceeded", QuotaError),
        CodeRule("VolumeLimitExceeded", QuotaError),
        CodeRule("*SnapshotLimitExceeded", QuotaError),
        CodeRule("NetworkInterfaceLimitExceeded", QuotaError),
        CodeRule("RequestLimitExceeded", ThrottledError),
        CodeRule("Throttling*", ThrottledError),
        CodeRule("EC2ThrottledException", ThrottledError),
        CodeRule("TooManyRequestsException", ThrottledError),
        CodeRule("UnauthorizedOperation", AuthError),
        CodeRule("AccessDenied*", AuthError),
        CodeRule(
            "AuthFailure", UnpreparedError, text="not authorized for images?:"
        ),  # another account's AMI
        CodeRule("AuthFailure*", AuthError),
        CodeRule("ExpiredToken*", AuthError),
        CodeRule("RequestExpired", AuthError),
        CodeRule("InvalidClientTokenId", AuthError),
        CodeRule("UnrecognizedClientException", AuthError),
        CodeRule("SignatureDoesNotMatch", AuthError),
        CodeRule("MissingAuthenticationToken*", AuthError),
        CodeRule("PendingVerification", AuthError),
        CodeRule("Blocked", AuthError),
        CodeRule("OptInRequired", UnpreparedError),
        CodeRule("InvalidAMIID.*", UnpreparedError),
        CodeRule("InvalidSubnetID.*", UnpreparedError),
        CodeRule("InvalidGroup.*", UnpreparedError),
        CodeRule("InvalidSecurityGroupID.*", UnpreparedError),
        # The group of an abandoned gang was deleted; a retry creates it again.
        CodeRule("InvalidPlacementGroup.Unknown", UnknownOutcome),
        CodeRule("InvalidPlacementGroup.*", UnpreparedError),
        CodeRule("PlacementGroupLimitExceeded", QuotaError),
        CodeRule("ParameterNotFound", UnpreparedError),
        CodeRule("*NonExistentQueue", UnpreparedError),
        CodeRule("QueueDoesNotExist", UnpreparedError),
        CodeRule("NoSuchEntity", UnpreparedError),
        CodeRule("ResourceNotFoundException", UnpreparedError),
        CodeRule(BAD_VALUE, UnpreparedError, text="instance profile"),
        CodeRule("InvalidCapacityReservationId.*", CapacityError),
        CodeRule(PARAMETER_MISMATCH, RejectedError),
        CodeRule("DryRunOperation", RejectedError),  # a dry run that would have succeeded
        CodeRule("InvalidAMIName.*", RejectedError),
        CodeRule(SNAPSHOT_IN_USE, RejectedError),
        CodeRule("IncorrectInstanceState", RejectedError),
        CodeRule("InvalidInstanceType", RejectedError),
        CodeRule("InvalidParameter*", RejectedError),
        CodeRule("InvalidUserData.*", RejectedError),
        CodeRule("MissingParameter", RejectedError),
        CodeRule("UnknownParameter", RejectedError),
        CodeRule("UnsupportedOperation", RejectedError),
        CodeRule("ValidationError", RejectedError),
        # Failures inside AWS: the call may have taken effect.
        CodeRule("ServerInternal", UnknownOutcome),
        CodeRule("InternalError", UnknownOutcome),
        CodeRule("InternalFailure", UnknownOutcome),
        CodeRule("InternalServerError", UnknownOutcome),
        CodeRule("ServiceUnavailable*", UnknownOutcome),
        CodeRule("Unavailable", UnknownOutcome),
        CodeRule("RequestTimeout*", UnknownOutcome),
        # A resource that is gone, or not visible yet.
        *(CodeRule(code, UnknownOutcome) for code in sorted(NOT_FOUND)),
        # StateReason of an accepted create that failed later.
        CodeRule("Server.InsufficientInstanceCapacity", CapacityError),
        CodeRule("Server.SpotInstanceTermination", CapacityError),
        CodeRule("Client.VolumeLimitExceeded", QuotaError),
        CodeRule("Client.InstanceInitiatedShutdown", UnknownOutcome),
        CodeRule("Client.UserInitiatedShutdown", UnknownOutcome),
        CodeRule("Client.InvalidSnapshot.NotFound", UnpreparedError),
        CodeRule("Client.InternalError", UnpreparedError, text="Client error on launch"),
        CodeRule("Server.InternalError", UnknownOutcome),
    ),
)
