"""The closed set of errors that spotd understands of a cloud, each with how much of the market it
spoils. Everybody has them from `providers.base`. Standard library only: the node agent ships this
file too."""

from __future__ import annotations

from enum import Enum


class Scope(str, Enum):
    """How much of the market an error spoils."""

    OFFER = "offer"
    ZONE = "zone"
    REGION = "region"
    PROVIDER = "provider"


class ProviderError(Exception):
    """Base of the closed set. `scope` says how much of the market the error spoils."""

    scope: Scope = Scope.OFFER

    def __init__(self, text: str, *, scope: Scope | None = None, code: str = "") -> None:
        super().__init__(text)
        self.code = code  # the vendor's own code, for the log and the event
        if scope is not None:
            self.scope = scope


class CapacityError(ProviderError):
    """No machine to be had there now: cool the offer and try the next one."""


class QuotaError(ProviderError):
    """Our quota is used up or zero: cool the region, for longer."""

    scope = Scope.REGION


class NoQuotaError(QuotaError):
    """Our quota there is zero: waiting does not help, somebody has to ask the vendor for one."""


class UnpreparedError(ProviderError):
    """The place lacks what machines need there (a subnet, the image, a role): no machine until
    somebody mends that; elsewhere there may be one."""

    scope = Scope.REGION


class PriceError(ProviderError):
    """The price is above the cap that we sent."""


class RejectedError(ProviderError):
    """Our request is wrong: fail the job with the vendor's text, trying again cannot help."""


class AuthError(ProviderError):
    """Credentials refused: the provider is out of use until they change."""

    scope = Scope.PROVIDER


class ThrottledError(ProviderError):
    """Too many calls: same target, later."""

    scope = Scope.PROVIDER

    def __init__(self, text: str, *, retry_after_s: float = 1.0, code: str = "") -> None:
        super().__init__(text, code=code)
        self.retry_after_s = retry_after_s


class UnknownOutcome(ProviderError):
    """It may have happened. Nothing is recorded; the same token is tried again."""
