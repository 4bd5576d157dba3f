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
from providers.codes import Codes, Row

MISMATCH = "IdempotentParameterMismatch"
# Of something that nobody has, or that the vendor could never have named so.
NOBODYS = frozenset(
    {
        *("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"),
        *("InvalidVolume.NotFound", "InvalidVolumeID.Malformed"),
        *("InvalidNetworkInterfaceID.NotFound", "InvalidNetworkInterfaceId.Malformed"),
        *("InvalidAllocationID.NotFound", "InvalidPlacementGroup.Unknown"),
        "InvalidSnapshot.NotFound",
    }
)
IN_USE = frozenset(
    {
        *("VolumeInUse", "InvalidIPAddress.InUse", "InvalidNetworkInterface.InUse"),
        "InvalidPlacementGroup.InUse",
    }
)
# Of images and what is behind them.
NAME_TAKEN = "InvalidAMIName.Duplicate"
IMAGE_GONE = frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"})
SNAPSHOT_IN_USE = "InvalidSnapshot.InUse"
NOT_LIVE = "UnsupportedOperation"  # of a console, where the type tells it with its end alone
BAD_VALUE = "InvalidParameterValue"  # of an interface in use, too: its words alone say that

CODES = Codes(
    "AWS",
    (
        Row("InsufficientInstanceCapacity", CapacityError),
        Row("InsufficientHostCapacity", CapacityError),
        Row("InsufficientCapacity", CapacityError),
        Row("UnfulfillableCapacity", CapacityError),
        Row("ReservationCapacityExceeded", CapacityError),
        Row("MaxFleetCountExceeded", CapacityError),
        Row("InsufficientFreeAddressesInSubnet", CapacityError, Scope.ZONE),
        Row("Unsupported", CapacityError),  # that type, in that zone
        Row("SpotMaxPriceTooLow", PriceError),
        Row("VcpuLimitExceeded", NoQuotaError, text=r"limit of 0\b"),
        Row("VcpuLimitExceeded", QuotaError),
        Row("MaxSpotInstanceCountExceeded", QuotaError),
        Row("InstanceLimitExceeded", QuotaError),
        Row("VolumeLimitExceeded", QuotaError),
        Row("*SnapshotLimitExceeded", QuotaError),
        Row("NetworkInterfaceLimitExceeded", QuotaError),
        Row("RequestLimitExceeded", ThrottledError),
        Row("Throttling*", ThrottledError),
        Row("EC2ThrottledException", ThrottledError),
        Row("TooManyRequestsException", ThrottledError),
        Row("UnauthorizedOperation", AuthError),
        Row("AccessDenied*", AuthError),
        Row("AuthFailure", UnpreparedError, text="not authorized for images?:"),  # others' AMI
        Row("AuthFailure*", AuthError),
        Row("ExpiredToken*", AuthError),
        Row("RequestExpired", AuthError),
        Row("InvalidClientTokenId", AuthError),
        Row("UnrecognizedClientException", AuthError),
        Row("SignatureDoesNotMatch", AuthError),
        Row("MissingAuthenticationToken*", AuthError),
        Row("PendingVerification", AuthError),
        Row("Blocked", AuthError),
        Row("OptInRequired", UnpreparedError),
        Row("InvalidAMIID.*", UnpreparedError),
        Row("InvalidSubnetID.*", UnpreparedError),
        Row("InvalidGroup.*", UnpreparedError),
        Row("InvalidSecurityGroupID.*", UnpreparedError),
        # Of a gang that was given up meanwhile; whoever asks again makes it again.
        Row("InvalidPlacementGroup.Unknown", UnknownOutcome),
        Row("InvalidPlacementGroup.*", UnpreparedError),
        Row("PlacementGroupLimitExceeded", QuotaError),
        Row("ParameterNotFound", UnpreparedError),
        Row("*NonExistentQueue", UnpreparedError),
        Row("QueueDoesNotExist", UnpreparedError),
        Row("NoSuchEntity", UnpreparedError),
        Row("ResourceNotFoundException", UnpreparedError),
        Row(BAD_VALUE, UnpreparedError, text="instance profile"),
        Row("InvalidCapacityReservationId.*", CapacityError),
        Row(MISMATCH, RejectedError),
        Row("DryRunOperation", RejectedError),  # it would have been taken: nothing was to be done
        Row("InvalidAMIName.*", RejectedError),
        Row(SNAPSHOT_IN_USE, RejectedError),
        Row("IncorrectInstanceState", RejectedError),
        Row("InvalidInstanceType", RejectedError),
        Row("InvalidParameter*", RejectedError),
        Row("InvalidUserData.*", RejectedError),
        Row("MissingParameter", RejectedError),
        Row("UnknownParameter", RejectedError),
        Row("UnsupportedOperation", RejectedError),
        Row("ValidationError", RejectedError),
        # The vendor's own trouble: it may have happened.
        Row("ServerInternal", UnknownOutcome),
        Row("InternalError", UnknownOutcome),
        Row("InternalFailure", UnknownOutcome),
        Row("InternalServerError", UnknownOutcome),
        Row("ServiceUnavailable*", UnknownOutcome),
        Row("Unavailable", UnknownOutcome),
        Row("RequestTimeout*", UnknownOutcome),
        # Nobody's: of something that has gone, or is not visible yet.
        *(Row(code, UnknownOutcome) for code in sorted(NOBODYS)),
        # Why a create that was accepted came to nothing (StateReason).
        Row("Server.InsufficientInstanceCapacity", CapacityError),
        Row("Server.SpotInstanceTermination", CapacityError),
        Row("Client.VolumeLimitExceeded", QuotaError),
        Row("Client.InstanceInitiatedShutdown", UnknownOutcome),
        Row("Client.UserInitiatedShutdown", UnknownOutcome),
        Row("Client.InvalidSnapshot.NotFound", UnpreparedError),
        Row("Client.InternalError", UnpreparedError, text="Client error on launch"),
        Row("Server.InternalError", UnknownOutcome),
    ),
)
