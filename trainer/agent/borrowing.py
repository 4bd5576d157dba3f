"""Credentials of the checkpoint store that this machine was lent.

They lie in memory in one private file, whose path stays the same for as long as the generation
lives; fresh ones take its place in one step. Whoever reads them, our engine and the clouds' own
SDKs, looks there again before those that it has are over.
"""

from __future__ import annotations

import fcntl
import shlex
from contextlib import suppress

from providers.lending import Lent
from trainer.agent.places import Places, write_private

PROFILE = "spotd-store"  # in the file that AWS_CONFIG_FILE can name


def borrow(places: Places, lent: Lent) -> bool:
    """Keep `lent`; False where what is there lasts as long or longer, so that one who was slow
    takes nothing away. Raises OSError."""
    until = places.lent.with_suffix(".until")
    with places.lent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(OSError, ValueError):
            if places.lent.exists() and int(until.read_text()) >= lent.expires_at_us:
                return False
        if lent.kind == "aws":
            write_private(places.aws_config, aws_config(places).encode())
        write_private(places.lent, lent.text.encode())
        write_private(until, str(lent.expires_at_us).encode())
    return True


def give_back(places: Places) -> None:
    """Nothing of it stays."""
    for path in (places.lent, places.lent.with_suffix(".until"), places.aws_config):
        path.unlink(missing_ok=True)


def aws_config(places: Places) -> str:
    """A profile with which every SDK of AWS reads the file anew when it has to. (It is run without
    a shell, in words as a shell has them.)"""
    return f"[profile {PROFILE}]\ncredential_process = cat {shlex.quote(str(places.lent))}\n"
