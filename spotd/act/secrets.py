"""The secrets that a job starts with: its own, and those of the deployment that it names."""

from __future__ import annotations

from spotd.security.master_key import MasterKeyError
from spotd.security.secrets import SecretBox, open_secrets
from spotd.store.interface import Store


def open_job_secrets(store: Store, vault: SecretBox, job_id: str) -> dict[str, str]:
    """Return the values by name, as of now. A job's own value comes before the deployment's.

    Raises MasterKeyError, also for a secret that no longer exists.
    """
    own = open_secrets(vault, job_id, store.jobs.secrets(job_id))
    job = store.jobs.find(job_id)
    wanted = set(job.spec.program.secrets) - set(own) if job is not None else set()
    stored = open_secrets(vault, "", store.secrets.values(wanted)) if wanted else {}
    if gone := sorted(wanted - set(stored)):
        text = f"the secret {gone[0]} of job {job_id} is no longer stored"
        raise MasterKeyError(text, f"spotctl secret set {gone[0]}")
    return {**stored, **own}
