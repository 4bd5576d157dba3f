"""The closed set of provider errors, each with the scope of the market that it affects.

Import them from `providers.base`. Standard library only: the node agent ships this file too.
"""

from __future__ import annotations

from enum import Enum


class Scope(str, Enum):
    """How much of the market an error affects."""

    OFFER = "offer"
    ZONE = "zone"
    REGION = "region"
    PROVIDER = "provider"


class ProviderError(Exception):
    """Base of the closed set. `scope` is how much of the market the error affects."""

    scope: Scope = Scope.OFFER

    def __init__(self, text: str, *, scope: Scope | None = None, code: str = "") -> None:
        super().__init__(text)
        self.code = code  # the vendor's own code, for the log and the event
        if scope is not None:
            self.scope = scope


class CapacityError(ProviderError):
    """No capacity there now: put the offer on cooldown and try the next one."""


class QuotaError(ProviderError):
    """The account's quota is used up or zero: put the region on a longer cooldown."""

    scope = Scope.REGION


class NoQuotaError(QuotaError):
    """The account's quota is zero: waiting does not help, somebody has to request one."""


class UnpreparedError(ProviderError):
    """The region or zone lacks a prerequisite (a subnet, the image, a role). No machine can start
    there until somebody creates it; other regions are not affected."""

    scope = Scope.REGION


class PriceError(ProviderError):
    """The price is above the maximum price of the request."""


class RejectedError(ProviderError):
    """The request is wrong: fail the job with the vendor's message, retrying cannot help."""


class AuthError(ProviderError):
    """The credentials are refused: the provider is unusable until they change."""

    scope = Scope.PROVIDER


class ThrottledError(ProviderError):
    """Too many calls: retry the same target later."""

    scope = Scope.PROVIDER

    def __init__(self, text: str, *, retry_after_s: float = 1.0, code: str = "") -> None:
        super().__init__(text, code=code)
        self.retry_after_s = retry_after_s


class UnknownOutcome(ProviderError):
    """The call may have taken effect. Nothing is recorded; it is retried with the same token."""
