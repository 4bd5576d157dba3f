"""Check a machine's access to a store, and explain how to grant it."""

from __future__ import annotations

from collections.abc import Mapping

from providers.clouds import STORE_OF_SCHEME
from providers.federation import ExchangeError
from providers.stores import credential_provider
from trainer.mounts.copy import MountError

_PRINCIPAL_OPTIONS = (
    "role",
    "service_account",
    "application",
)  # options that name whom the machine acts as


def check_identity(url: str, options: Mapping[str, str]) -> None:
    """Check that the store's cloud accepts this machine's identity.

    Raises MountError if it does not, StoreConfigError. Outages are ignored: the store's own client
    retries.
    """
    provider = credential_provider(url, options)
    try:
        if provider is not None:
            provider()
    except ExchangeError as error:
        if error.refused:
            raise MountError(
                f"{error}; the account in the store's [stores.NAME.federate] must trust machines "
                f"of {options['identity']}: run `spotctl init --trust`, or put keys that can read "
                "into [stores.NAME]"
            ) from None


def permission_hint(url: str, options: Mapping[str, str], *, writing: bool = False) -> str:
    """How to fix a refusal by the store, for an error message."""
    principal = next((options[name] for name in _PRINCIPAL_OPTIONS if options.get(name)), "")
    if not principal:
        return "a [stores.NAME] section with that url can give the job's machines access"
    store = STORE_OF_SCHEME[url.partition(":")[0]]
    right = store.write_right if writing else store.read_right
    return f"the machine acts as {principal}: grant it {right} there"
