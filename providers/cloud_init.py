"""Cloud-init user data: the first boot of a machine, derived from its launch request alone.

The program that prepares the machine is `prepare.sh`, beside this file.
"""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib.resources import files

from providers.base import LaunchRequest

PREPARE_SCRIPT = "/usr/local/sbin/spotd-prepare"
POWER_OFF = ("sudo", "-n", "shutdown", "-h", "now")
STATE_FILE = "/run/spotd/prepared"  # "ok", or what is wrong; absent while the preparation runs
DATA_DIR = "/var/lib/spotd"  # mount point of the local disks, where there are any
CONTAINER_PREFIX = "docker:"  # of an image id that names a container image
MAX_USER_DATA_BYTES = 16_384  # EC2's limit on user data, the smallest of the three clouds


def user_data(request: LaunchRequest, *, host_key: bool = True) -> str:
    """Return the cloud-config of a machine: its SSH user and key, a known host key, no background
    package updates, and the preparation program.

    `host_key` is False where the cloud has its own channel for host keys. Any program on the
    machine can read user data from the metadata service, so the host key is the machine's own and
    of no use elsewhere. Raises ValueError when the document is too long.
    """
    needs = ["container"] if request.image_id.startswith(CONTAINER_PREFIX) else []
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
                "path": PREPARE_SCRIPT,
                "permissions": "0755",
                "encoding": "gz+b64",
                "content": _packed_script(),
            }
        ],
        "runcmd": [[PREPARE_SCRIPT, request.ssh_user, DATA_DIR, STATE_FILE, *needs]],
    }
    if host_key:
        config["ssh_deletekeys"] = True
        config["ssh_genkeytypes"] = ["ed25519"]
        config["ssh_keys"] = {
            "ed25519_private": request.host_private_key,
            "ed25519_public": request.host_public_key,
        }
    # JSON is valid YAML, and gives the same bytes for the same request.
    text = "#cloud-config\n" + json.dumps(config, sort_keys=True, indent=1) + "\n"
    if len(text.encode()) > MAX_USER_DATA_BYTES:
        raise ValueError(
            f"user data of {len(text.encode())} bytes; {MAX_USER_DATA_BYTES} are allowed"
        )
    return text


# Timers that could hold dpkg's lock while a job's setup installs packages.
_TIMERS = ("apt-daily", "apt-daily-upgrade", "unattended-upgrades", "fwupd-refresh", "motd-news")


@cache
def _packed_script() -> str:
    script = files("providers").joinpath("prepare.sh").read_bytes()
    return base64.b64encode(gzip.compress(script, mtime=0)).decode()
