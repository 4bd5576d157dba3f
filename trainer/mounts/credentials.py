"""`python -m trainer.mounts.credentials FILE`: what `credential_process` of AWS's SDKs is to print,
for a machine that shows who it is. FILE has the options of the store, as `open_store` takes them.
Standard library only."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from providers.stores.s3 import proof_of

MARGIN = timedelta(minutes=5)  # before their end, from which on they are not to be used


def main(path: str) -> int:
    """Raises ExchangeError, StoreConfigError, OSError: whoever asked shows what is said of it."""
    made = proof_of(json.loads(Path(path).read_bytes()), reading=True)()
    lasts = made["expires_at"] - datetime.now(timezone.utc)
    # Who is given it asks again at this time and not before; clocks differ, and requests take long.
    until = made["expires_at"] - min(MARGIN, lasts / 3)
    said = {
        "Version": 1,
        "AccessKeyId": made["access_key_id"],
        "SecretAccessKey": made["secret_access_key"],
        "SessionToken": made["token"],
        "Expiration": f"{until:%Y-%m-%dT%H:%M:%SZ}",
    }
    sys.stdout.write(json.dumps(said))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
