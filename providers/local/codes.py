"""The local cloud's error codes as errors of the port."""

from __future__ import annotations

from providers.base import (
    AuthError,
    CapacityError,
    PriceError,
    ProviderError,
    QuotaError,
    RejectedError,
)

# Not listed: throttling, which carries a retry time. Any other code is an unknown outcome.
ERRORS: dict[str, type[ProviderError]] = {
    "no_capacity": CapacityError,
    "quota": QuotaError,
    "price": PriceError,
    "rejected": RejectedError,
    "token_mismatch": RejectedError,
    "not_found": RejectedError,
    "conflict": RejectedError,
    "unauthorized": AuthError,
}
THROTTLED = "throttled"
