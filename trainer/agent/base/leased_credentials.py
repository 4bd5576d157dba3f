"""Credentials of the checkpoint store that this machine was lent.

They lie in memory in one private file, whose path stays the same for as long as the generation
lives; fresh ones take its place in one step. Whoever reads them, our engine and the clouds' own
SDKs, looks there again before those that it has are over.
"""

from __future__ import annotations

import fcntl
import shlex
from contextlib import suppress

from providers.credential_leases import LeasedCredentials
from trainer.agent.base.paths import AgentPaths, write_private

PROFILE = "spotd-store"  # in the file that AWS_CONFIG_FILE can name


def borrow(places: AgentPaths, lent: LeasedCredentials, store: str = "") -> bool:
    """Keep `lent`, of the job's store or of another one, by its URL; False where what is there
    lasts as long or longer, so that one who was slow takes nothing away. Raises OSError."""
    path = places.lent_of(store)
    until = path.with_suffix(".until")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(OSError, ValueError):
            if path.exists() and int(until.read_text()) >= lent.expires_at_us:
                return False
        if lent.kind == "aws" and not store:
            write_private(places.aws_config, aws_config(places).encode())
        write_private(path, lent.text.encode())
        write_private(until, str(lent.expires_at_us).encode())
    return True


def give_back(places: AgentPaths) -> None:
    """Nothing of it stays."""
    for path in places.all_lent:
        path.unlink(missing_ok=True)
        path.with_suffix(".until").unlink(missing_ok=True)
    places.aws_config.unlink(missing_ok=True)


def aws_config(places: AgentPaths) -> str:
    """A profile with which every SDK of AWS reads the file anew when it has to. (It is run without
    a shell, in words as a shell has them.)"""
    return f"[profile {PROFILE}]\ncredential_process = cat {shlex.quote(str(places.lent))}\n"
