"""Check a machine's access to a store, and explain how to grant it."""

from __future__ import annotations

from collections.abc import Mapping

from providers.federation import ExchangeError
from providers.stores import credential_provider
from trainer.mounts.copy import MountError

_PRINCIPAL_OPTIONS = (
    "role",
    "service_account",
    "application",
)  # options that name whom the machine acts as
_READ_PERMISSIONS = {
    "s3": "s3:ListBucket and s3:GetObject",
    "gs": "roles/storage.objectViewer",
    "az": "the role Storage Blob Data Reader",
}
_WRITE_PERMISSIONS = {
    "s3": "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject",
    "gs": "roles/storage.objectUser",
    "az": "the role Storage Blob Data Contributor",
}


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
    permissions = _WRITE_PERMISSIONS if writing else _READ_PERMISSIONS
    return f"the machine acts as {principal}: grant it {permissions[url.partition(':')[0]]} there"
