"""What a fresh machine of a cloud does before we log in: one cloud-config, made of a launch request
alone. The program that prepares the machine is `prepare.sh`, beside this file."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib.resources import files

from providers.base import LaunchRequest

PREPARE = "/usr/local/sbin/spotd-prepare"
STATE = "/run/spotd/prepared"  # what it came to: "ok", or what is wrong; absent while it works
DATA = "/var/lib/spotd"  # local disks are mounted here, where there are any
CONTAINER = "docker:"  # what an image is called that is not a machine's
MOST_BYTES = 16_384  # EC2's limit on user data, the least of the three clouds


def user_data(request: LaunchRequest, *, host_key: bool = True) -> str:
    """The cloud-config of a machine: our user with the job's key, a host key that we know, no
    package manager at work beside us, and the preparation. `host_key` is False where the cloud has
    a channel for it.

    Any program on the machine can read this from the metadata service, so the host key is the
    machine's own and of no use anywhere else. Raises ValueError when it would be too long.
    """
    needs = ["container"] if request.image_id.startswith(CONTAINER) else []
    config: dict[str, object] = {
        "users": [
            {
                "name": request.ssh_user,
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "shell": "/bin/bash",
                "lock_passwd": True,
                "ssh_authorized_keys": [request.ssh_public_key.strip()],
            }
        ],
        "ssh_pwauth": False,
        "disable_root": True,
        "package_update": False,
        "package_upgrade": False,
        "bootcmd": [
            ["systemctl", "mask", "--now", *(f"{name}.timer" for name in _TIMERS)],
            ["systemctl", "mask", "--now", "unattended-upgrades.service"],
        ],
        "write_files": [
            {
                "path": PREPARE,
                "permissions": "0755",
                "encoding": "gz+b64",
                "content": _packed_script(),
            }
        ],
        "runcmd": [[PREPARE, request.ssh_user, DATA, STATE, *needs]],
    }
    if host_key:
        config["ssh_deletekeys"] = True
        config["ssh_genkeytypes"] = ["ed25519"]
        config["ssh_keys"] = {
            "ed25519_private": request.host_private_key,
            "ed25519_public": request.host_public_key,
        }
    # JSON is YAML, and always the same bytes for the same request.
    text = "#cloud-config\n" + json.dumps(config, sort_keys=True, indent=1) + "\n"
    if len(text.encode()) > MOST_BYTES:
        raise ValueError(f"user data of {len(text.encode())} bytes; {MOST_BYTES} are allowed")
    return text


# What takes dpkg's lock while a job's setup installs something.
_TIMERS = ("apt-daily", "apt-daily-upgrade", "unattended-upgrades", "fwupd-refresh", "motd-news")


@cache
def _packed_script() -> str:
    script = files("providers").joinpath("prepare.sh").read_bytes()
    return base64.b64encode(gzip.compress(script, mtime=0)).decode()
