"""What each cloud's SDK costs a daemon: which are loaded, and the resident memory.

    python -m bench.imports [--json FILE]

Each row is a process of its own: the daemon's modules, and providers of some kinds that were asked
once for what they offer and list, from stand-ins in this process. Linux: memory is of /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

# kind -> the top of its SDK's modules
SDKS = {
    "aws": ("boto3", "botocore"),
    "gcp": ("google.cloud", "google.auth", "google.api_core"),
    "azure": ("azure", "msal"),
}
ROWS: tuple[tuple[str, ...], ...] = ((), ("aws",), ("gcp",), ("azure",), ("aws", "gcp", "azure"))

CHILD = """
import json, sys
import spotd.daemon.daemon
from providers.base import OfferRequest
from spotd.config.provider_registry import build_provider

sections, sdks = json.loads(sys.stdin.read())
for name, settings in sections.items():
    cloud = build_provider(name, name, "d0", settings)
    cloud.offers(OfferRequest())
    cloud.list()
with open("/proc/self/status") as status:
    [kib] = [line.split()[1] for line in status if line.startswith("VmRSS:")]
loaded = sorted(kind for kind, tops in sdks.items() if any(top in sys.modules for top in tops))
print(json.dumps({"resident_mib": round(int(kib) / 1024, 1), "modules": len(sys.modules),
                  "sdks": loaded}))
"""


@contextmanager
def clouds(folder: Path) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, str]]]:
    """({kind: settings of its provider}, environment) of stand-ins for the length of the block."""
    from tests.clouds.aws import market as ec2
    from tests.clouds.aws import serving as aws
    from tests.clouds.azure import serving as azure
    from tests.clouds.gcp import market as gce
    from tests.clouds.gcp import serving as gcp

    with ExitStack() as stack:
        one = stack.enter_context(aws.serving(folder))
        two = stack.enter_context(gcp.serving(folder))
        three = stack.enter_context(azure.serving(folder))
        google = {key: str(value) for key, value in two.settings.items()}
        settings = {
            "aws": {"profile": aws.PROFILE, "regions": ec2.REGIONS, "instance_types": ("p5.*",)},
            "gcp": {"project": "lab", "regions": gce.REGIONS, **google},
            "azure": {"regions": ("eastus",), **three.settings},
        }
        yield settings, {**one.environ, **three.environ}


def measure(
    kinds: Sequence[str], settings: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """One process with providers of these kinds: resident_mib, modules, and the SDKs it loaded."""
    given = json.dumps([{kind: settings[kind] for kind in kinds}, SDKS])
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=given,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"providers": [*kinds], **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, clouds(Path(name)) as (settings, environ):
        rows = [measure(kinds, settings, environ) for kinds in ROWS]
    print(f"{'providers':16} {'MiB':>7} {'modules':>8}  SDKs")
    for row in rows:
        names = "+".join(row["providers"]) or "none"
        print(f"{names:16} {row['resident_mib']:7.1f} {row['modules']:8}  {' '.join(row['sdks'])}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return int(any(row["sdks"] != sorted(row["providers"]) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
