"""Azure's refusals: HTTP status, code, message."""

from __future__ import annotations

from typing import Any

ALLOCATION = (
    "Allocation failed. We do not have sufficient capacity for the requested VM size in this "
    "region. Read more about improving likelihood of allocation success at "
    "https://aka.ms/allocation-guidance"
)
QUOTA = (
    "Operation could not be completed as it results in exceeding approved {what} quota. "
    "Additional details - Deployment Model: Resource Manager, Location: eastus, "
    "Current Limit: {limit}, Current Usage: {limit}, Additional Required: 96, "
    "(Minimum) New Limit Required: {new}."
)

REFUSALS: dict[str, tuple[int, str, str]] = {
    "no_capacity": (
        409,
        "SkuNotAvailable",
        (
            "The requested VM size for resource 'Following SKUs have failed for Capacity "
            "Restrictions: Standard_ND96isr_H100_v5' is currently not available in location "
            "'eastus'."
        ),
    ),
    "quota": (
        409,
        "OperationNotAllowed",
        QUOTA.format(what="LowPriorityCores", limit=96, new=192),
    ),
    "no_quota": (
        409,
        "OperationNotAllowed",
        QUOTA.format(what="LowPriorityCores", limit=0, new=96),
    ),
    "expired": (401, "ExpiredAuthenticationToken", "The access token has expired."),
    "price": (
        409,
        "SpotPriceGreaterThanProvidedMaxPrice",
        (
            "Unable to perform operation because the provided max price is lower than the Azure "
            "Spot VM price."
        ),
    ),
    "rejected": (400, "InvalidParameter", "The value of parameter adminUsername is invalid."),
    "unauthorized": (
        403,
        "AuthorizationFailed",
        (
            "The client 'spotd' with object id 'x' does not have authorization to perform action "
            "'Microsoft.Compute/virtualMachines/write' over scope '/subscriptions/x'."
        ),
    ),
    "throttled": (429, "TooManyRequests", "The server rejected the request: too many requests."),
    "http_500": (500, "InternalServerError", "An internal server error occurred."),
    "conflict": (
        409,
        "Conflict",
        "The request failed due to conflict with a concurrent request.",
    ),
}

# Of what hangs on something: kind -> refusal.
IN_USE = {
    "Microsoft.Compute/availabilitySets": (
        409,
        "OperationNotAllowed",
        "Availability Set cannot be deleted: it has machines.",
    ),
    "Microsoft.Compute/disks": (409, "OperationNotAllowed", "Disk is attached to VM."),
    "Microsoft.Network/networkInterfaces": (400, "NicInUse", "It is used by a machine."),
    "Microsoft.Network/publicIPAddresses": (
        400,
        "PublicIPAddressCannotBeDeleted",
        "It is still allocated to a resource.",
    ),
}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    """Return the body of a refusal."""
    return {"error": {"code": code, "message": message, **more}}
