"""The secrets that a job starts with: its own, and those that it names and the deployment keeps."""

from __future__ import annotations

from spotd.masterkey import VaultError
from spotd.store.base import Store
from spotd.vault import Vault, open_secrets


def open_job_secrets(store: Store, vault: Vault, job_id: str) -> dict[str, str]:
    """Name to value, as of now. A value that came with the job comes before a kept one. Raises
    VaultError, also for one that is not kept any more."""
    own = open_secrets(vault, job_id, store.secrets(job_id))
    job = store.find_job(job_id)
    wanted = set(job.spec.secrets) - set(own) if job is not None else set()
    kept = open_secrets(vault, "", store.kept_secret_values(wanted)) if wanted else {}
    if gone := sorted(wanted - set(kept)):
        text = f"the secret {gone[0]} of job {job_id} is not kept any more"
        raise VaultError(text, f"spotctl secret set {gone[0]}")
    return {**kept, **own}
