"""Every rule of AWS's table, by an error as AWS writes it."""

from __future__ import annotations

import pytest

from providers.aws import codes as aws
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
from providers.error_codes import CodeTable

OFFER, ZONE, REGION, PROVIDER = Scope.OFFER, Scope.ZONE, Scope.REGION, Scope.PROVIDER
NO_VCPU = "more vCPU capacity than your current vCPU limit of {} allows for the instance bucket"
PROFILE = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile"
# code, words, what it is to us, how much it spoils
TABLE: list[tuple[str, str, type[ProviderError], Scope]] = [
    ("InsufficientInstanceCapacity", "There is no Spot capacity", CapacityError, OFFER),
    ("InsufficientHostCapacity", "", CapacityError, OFFER),
    ("InsufficientCapacity", "", CapacityError, OFFER),
    ("UnfulfillableCapacity", "", CapacityError, OFFER),
    ("ReservationCapacityExceeded", "", CapacityError, OFFER),
    ("MaxFleetCountExceeded", "", CapacityError, OFFER),
    ("DryRunOperation", "Request would have succeeded", RejectedError, OFFER),
    ("InsufficientFreeAddressesInSubnet", "", CapacityError, ZONE),
    ("Unsupported", "not supported in your requested Availability Zone", CapacityError, OFFER),
    ("SpotMaxPriceTooLow", "", PriceError, OFFER),
    ("VcpuLimitExceeded", NO_VCPU.format(0), NoQuotaError, REGION),
    ("VcpuLimitExceeded", NO_VCPU.format(192), QuotaError, REGION),
    ("MaxSpotInstanceCountExceeded", "", QuotaError, REGION),
    ("InstanceLimitExceeded", "", QuotaError, REGION),
    ("VolumeLimitExceeded", "", QuotaError, REGION),
    ("SnapshotLimitExceeded", "", QuotaError, REGION),
    ("ConcurrentSnapshotLimitExceeded", "", QuotaError, REGION),
    ("NetworkInterfaceLimitExceeded", "", QuotaError, REGION),
    ("RequestLimitExceeded", "", ThrottledError, PROVIDER),
    ("Throttling", "", ThrottledError, PROVIDER),
    ("ThrottlingException", "", ThrottledError, PROVIDER),
    ("EC2ThrottledException", "", ThrottledError, PROVIDER),
    ("TooManyRequestsException", "", ThrottledError, PROVIDER),
    ("UnauthorizedOperation", "", AuthError, PROVIDER),
    ("AccessDenied", "", AuthError, PROVIDER),
    ("AccessDeniedException", "", AuthError, PROVIDER),
    ("AuthFailure", "", AuthError, PROVIDER),
    ("AuthFailure", "Not authorized for images: [ami-1]", UnpreparedError, REGION),
    ("AuthFailure", "Not authorized for image:ami-1", UnpreparedError, REGION),
    ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "", AuthError, PROVIDER),
    ("ExpiredToken", "", AuthError, PROVIDER),
    ("ExpiredTokenException", "", AuthError, PROVIDER),
    ("RequestExpired", "", AuthError, PROVIDER),
    ("InvalidClientTokenId", "", AuthError, PROVIDER),
    ("UnrecognizedClientException", "", AuthError, PROVIDER),
    ("SignatureDoesNotMatch", "", AuthError, PROVIDER),
    ("MissingAuthenticationToken", "", AuthError, PROVIDER),
    ("PendingVerification", "", AuthError, PROVIDER),
    ("Blocked", "", AuthError, PROVIDER),
    ("OptInRequired", "", UnpreparedError, REGION),
    ("InvalidAMIID.NotFound", "", UnpreparedError, REGION),
    ("InvalidAMIID.Unavailable", "", UnpreparedError, REGION),
    ("InvalidSubnetID.NotFound", "", UnpreparedError, REGION),
    ("InvalidGroup.NotFound", "", UnpreparedError, REGION),
    ("InvalidSecurityGroupID.NotFound", "", UnpreparedError, REGION),
    ("InvalidPlacementGroup.Unknown", "", UnknownOutcome, OFFER),
    ("InvalidPlacementGroup.Reserved", "", UnpreparedError, REGION),
    ("PlacementGroupLimitExceeded", "", QuotaError, REGION),
    ("ParameterNotFound", "", UnpreparedError, REGION),
    ("AWS.SimpleQueueService.NonExistentQueue", "", UnpreparedError, REGION),
    ("QueueDoesNotExist", "", UnpreparedError, REGION),
    ("NoSuchEntity", "", UnpreparedError, REGION),
    ("ResourceNotFoundException", "", UnpreparedError, REGION),
    ("InvalidParameterValue", PROFILE, UnpreparedError, REGION),
    ("InvalidCapacityReservationId.NotFound", "", CapacityError, OFFER),
    ("IdempotentParameterMismatch", "", RejectedError, OFFER),
    ("InvalidAMIName.Duplicate", "", RejectedError, OFFER),
    ("InvalidAMIName.Malformed", "", RejectedError, OFFER),
    ("InvalidSnapshot.InUse", "", RejectedError, OFFER),
    ("IncorrectInstanceState", "", RejectedError, OFFER),
    ("InvalidInstanceType", "", RejectedError, OFFER),
    ("InvalidParameterValue", "Invalid value 'p9' for InstanceType.", RejectedError, OFFER),
    ("InvalidParameterCombination", "", RejectedError, OFFER),
    ("InvalidUserData.Malformed", "", RejectedError, OFFER),
    ("MissingParameter", "", RejectedError, OFFER),
    ("UnknownParameter", "", RejectedError, OFFER),
    ("UnsupportedOperation", "", RejectedError, OFFER),
    ("ValidationError", "", RejectedError, OFFER),
    ("ServerInternal", "", UnknownOutcome, OFFER),
    ("InternalError", "An internal error has occurred", UnknownOutcome, OFFER),
    ("InternalFailure", "", UnknownOutcome, OFFER),
    ("InternalServerError", "", UnknownOutcome, OFFER),
    ("ServiceUnavailable", "", UnknownOutcome, OFFER),
    ("ServiceUnavailableException", "", UnknownOutcome, OFFER),
    ("Unavailable", "", UnknownOutcome, OFFER),
    ("RequestTimeout", "", UnknownOutcome, OFFER),
    ("InvalidInstanceID.NotFound", "", UnknownOutcome, OFFER),
    ("InvalidInstanceID.Malformed", "", UnknownOutcome, OFFER),
    ("InvalidSnapshot.NotFound", "", UnknownOutcome, OFFER),
    ("InvalidVolume.NotFound", "", UnknownOutcome, OFFER),
    ("InvalidVolumeID.Malformed", "", UnknownOutcome, OFFER),
    ("InvalidNetworkInterfaceID.NotFound", "", UnknownOutcome, OFFER),
    ("InvalidNetworkInterfaceId.Malformed", "", UnknownOutcome, OFFER),
    ("InvalidAllocationID.NotFound", "", UnknownOutcome, OFFER),
    ("Server.InsufficientInstanceCapacity", "", CapacityError, OFFER),
    ("Server.SpotInstanceTermination", "", CapacityError, OFFER),
    ("Client.VolumeLimitExceeded", "", QuotaError, REGION),
    ("Client.InstanceInitiatedShutdown", "", UnknownOutcome, OFFER),
    ("Client.UserInitiatedShutdown", "", UnknownOutcome, OFFER),
    ("Client.InvalidSnapshot.NotFound", "", UnpreparedError, REGION),
    (
        "Client.InternalError",
        "Client.InternalError: Client error on launch",
        UnpreparedError,
        REGION,
    ),
    ("Server.InternalError", "", UnknownOutcome, OFFER),
]


@pytest.fixture
def codes() -> CodeTable:
    """A copy of the table with its own counter."""
    return CodeTable("AWS", aws.CODES.rules)


@pytest.mark.parametrize(("code", "words", "kind", "scope"), TABLE)
def test_row(
    codes: CodeTable, code: str, words: str, kind: type[ProviderError], scope: Scope
) -> None:
    error = codes.error(code, f"us-east-1: {words}")
    assert (type(error), error.scope, error.code) == (kind, scope, code)
    assert not codes.unknown_codes


def test_no_row_is_without_an_example_above(codes: CodeTable) -> None:
    used = {codes.find_rule(code, f"us-east-1: {message}") for code, message, _, _ in TABLE}
    assert [row for row in codes.rules if row not in used] == []
