"""A provider's status: in use, or out of use since its credentials were refused.

A credential that is being rotated is refused for a moment. If that lasts, a person must fix it:
until then spotd cannot end its machines there either.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotd.domain.events import Event, Severity
from spotd.domain.units import S
from spotd.store.columns import clean

REFUSED_S = 120.0  # before an alert is sent


@dataclass(frozen=True)
class ProviderStatus:
    """Why a provider is out of use since `at_us` (`disabled`; "": in use since then).

    `told_at_us` is the time of the alert, 0 if there was none.
    """

    disabled: str = ""
    at_us: int = 0
    told_at_us: int = 0


def judge(
    was: ProviderStatus | None, provider: str, disabled: str, at_us: int
) -> tuple[ProviderStatus, Event | None]:
    """Return the new status, and the event to record, when a provider cannot be used (`disabled` is
    the reason) or is used ("").

    Another text for the same refusal does not change its start.
    """
    disabled = clean(disabled)
    if was is None or bool(was.disabled) != bool(disabled):
        alerted = was is not None and was.told_at_us and not disabled
        return ProviderStatus(disabled, at_us), _back(provider) if alerted else None
    if not disabled or was.told_at_us or at_us - was.at_us < REFUSED_S * S:
        return ProviderStatus(disabled, was.at_us, was.told_at_us), None
    return ProviderStatus(disabled, was.at_us, at_us), _refused(provider, disabled)


def _refused(provider: str, disabled: str) -> Event:
    text = (
        f"{provider} refuses spotd's credentials and is not used: {disabled}. Nothing is launched "
        "there, and nothing that runs there can be ended, until they work again: put "
        f"[providers.{provider}] right, and look with `spotctl doctor`"
    )
    return Event("credentials", text, severity=Severity.ERROR, alert=True, key=_key(provider))


def _back(provider: str) -> Event:
    text = f"{provider} accepts spotd's credentials again and is used"
    return Event("credentials", text, alert=True, key=_key(provider))


def _key(provider: str) -> str:
    return f"credentials/{provider}"
