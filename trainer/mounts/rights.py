"""Whether a machine has a right at a store, and what would give it one."""

from __future__ import annotations

from collections.abc import Mapping

from providers.federation import ExchangeError
from providers.stores import proof_of
from trainer.mounts.copy import MountError

_WHO = ("role", "service_account", "application")  # that a machine is for another cloud
_READING = {
    "s3": "s3:ListBucket and s3:GetObject",
    "gs": "roles/storage.objectViewer",
    "az": "the role Storage Blob Data Reader",
}
_WRITING = {
    "s3": "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject",
    "gs": "roles/storage.objectUser",
    "az": "the role Storage Blob Data Contributor",
}


def show(url: str, options: Mapping[str, str]) -> None:
    """See that who is to believe who this machine is does. Of one who is away nothing is said: the
    store's own client asks again. Raises MountError, StoreConfigError."""
    prove = proof_of(url, options)
    try:
        if prove is not None:
            prove()
    except ExchangeError as error:
        if error.refused:
            raise MountError(
                f"{error}; [stores.NAME.federate] of that url says whom a machine of "
                f"{options['identity']} is to be, and that has to trust it: `spotctl init --trust` "
                "does it; or give the section keys that can read"
            ) from None


def right(url: str, options: Mapping[str, str], *, writing: bool = False) -> str:
    """What to do where the store refuses it."""
    who = next((options[name] for name in _WHO if options.get(name)), "")
    if not who:
        return "a [stores.NAME] of that url can give the job's machines a right"
    rights = _WRITING if writing else _READING
    return f"the machine came as {who}: give that {rights[url.partition(':')[0]]} there"
