"""Leased credentials of the checkpoint stores on this machine.

Each store's credentials are in one private file in memory. The path is the same for the whole
generation, and fresh credentials replace the file atomically. Readers (the checkpoint engine and
the clouds' SDKs) read it again before the credentials they hold expire.
"""

from __future__ import annotations

import fcntl
import shlex
from contextlib import suppress

from providers.clouds import STORES
from providers.credential_leases import LeasedCredentials
from trainer.agent.base.paths import AgentPaths, write_private

PROFILE = "spotd-store"  # the profile's name in the file for AWS_CONFIG_FILE


def store_credentials(paths: AgentPaths, credentials: LeasedCredentials, store: str = "") -> bool:
    """Store credentials for the store at URL `store`, or "" for the job's own.

    Returns False if the existing ones last as long or longer, so that a slow sender replaces
    nothing newer. Raises OSError.
    """
    path = paths.credentials_file_of(store)
    expiry_file = path.with_suffix(".until")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(OSError, ValueError):
            if path.exists() and int(expiry_file.read_text()) >= credentials.expires_at_us:
                return False
        if STORES[credentials.kind].credential_process and not store:
            write_private(paths.aws_config, aws_config(paths).encode())
        write_private(path, credentials.text.encode())
        write_private(expiry_file, str(credentials.expires_at_us).encode())
    return True


def delete_credentials(paths: AgentPaths) -> None:
    """Delete the credentials of all stores."""
    for path in paths.credentials_files:
        path.unlink(missing_ok=True)
        path.with_suffix(".until").unlink(missing_ok=True)
    paths.aws_config.unlink(missing_ok=True)


def aws_config(paths: AgentPaths) -> str:
    """Return an AWS profile that makes every AWS SDK read the credentials file again when needed.

    `credential_process` runs without a shell, and its words are quoted as in a shell.
    """
    path = shlex.quote(str(paths.credentials_file))
    return f"[profile {PROFILE}]\ncredential_process = cat {path}\n"
