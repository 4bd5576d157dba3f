"""What the local cloud's codes mean to spotd: data, so that a new code is a new line."""

from __future__ import annotations

from providers.base import (
    AuthError,
    CapacityError,
    PriceError,
    ProviderError,
    QuotaError,
    RejectedError,
)

# Throttling carries a time and is built apart; a code that is not here is an unknown outcome.
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
