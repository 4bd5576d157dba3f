"""What EC2's error codes mean to us.

Sources: the error codes of the EC2 API reference; which of them refuse a pool, a region or an
account is as Karpenter, SkyPilot and dstack treat them.
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

MISMATCH = "IdempotentParameterMismatch"
# Of something that nobody has, or that the vendor could never have named so.
NOBODYS = frozenset(
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
# Of images and what is behind them.
NAME_TAKEN = "InvalidAMIName.Duplicate"
IMAGE_GONE = frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"})
SNAPSHOT_IN_USE = "InvalidSnapshot.InUse"
NOT_LIVE = "UnsupportedOperation"  # of a console, where the type tells it with its end alone
BAD_VALUE = "InvalidParameterValue"  # of an interface in use, too: its words alone say that

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
        CodeRule("AuthFailure", UnpreparedError, text="not authorized for images?:"),  # others' AMI
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
        # Of a gang that was given up meanwhile; whoever asks again makes it again.
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
        CodeRule(MISMATCH, RejectedError),
        CodeRule(
            "DryRunOperation", RejectedError
        ),  # it would have been taken: nothing was to be done
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
        # The vendor's own trouble: it may have happened.
        CodeRule("ServerInternal", UnknownOutcome),
        CodeRule("InternalError", UnknownOutcome),
        CodeRule("InternalFailure", UnknownOutcome),
        CodeRule("InternalServerError", UnknownOutcome),
        CodeRule("ServiceUnavailable*", UnknownOutcome),
        CodeRule("Unavailable", UnknownOutcome),
        CodeRule("RequestTimeout*", UnknownOutcome),
        # Nobody's: of something that has gone, or is not visible yet.
        *(CodeRule(code, UnknownOutcome) for code in sorted(NOBODYS)),
        # Why a create that was accepted came to nothing (StateReason).
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
