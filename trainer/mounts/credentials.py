"""`python -m trainer.mounts.credentials FILE`: a `credential_process` for AWS SDKs.

Exchanges the machine's identity for credentials and prints them. FILE has the options of the store
in the form `open_store` takes. Standard library only.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from providers.stores.s3 import credential_provider

MARGIN = timedelta(minutes=5)  # before the expiry, the credentials are not used any more


def main(path: str) -> int:
    """Print credentials. Raises ExchangeError, StoreConfigError, OSError: the SDK shows stderr."""
    credentials = credential_provider(json.loads(Path(path).read_bytes()), read_only=True)()
    lifetime = credentials["expires_at"] - datetime.now(timezone.utc)
    # The SDK renews only at this time, so allow for clock differences and slow requests.
    expiry = credentials["expires_at"] - min(MARGIN, lifetime / 3)
    output = {
        "Version": 1,
        "AccessKeyId": credentials["access_key_id"],
        "SecretAccessKey": credentials["secret_access_key"],
        "SessionToken": credentials["token"],
        "Expiration": f"{expiry:%Y-%m-%dT%H:%M:%SZ}",
    }
    sys.stdout.write(json.dumps(output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
