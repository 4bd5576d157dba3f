"""The cloud-config of a machine."""

from __future__ import annotations

import base64
import gzip
import subprocess
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
import yaml

from providers import cloudinit
from providers.base import CapacityType, LaunchRequest
from tests.rigs.local_cloud import host_key, user_key

REQUEST = LaunchRequest(
    token="t",
    name="n",
    region="r",
    zone="z",
    instance_type="p5.48xlarge",
    capacity_type=CapacityType.SPOT,
    tags={},
    ssh_user="spotd",
    ssh_public_key=user_key().public + "\n",
    host_private_key=host_key().private,
    host_public_key=host_key().public,
)


def read(text: str) -> dict[str, Any]:
    head, _, rest = text.partition("\n")
    assert head == "#cloud-config"
    return dict(yaml.safe_load(rest))


def test_the_user_logs_in_with_the_jobs_key_alone() -> None:
    config = read(cloudinit.user_data(REQUEST))
    [user] = config["users"]
    assert user["name"] == "spotd"
    assert user["ssh_authorized_keys"] == [user_key().public.strip()]
    assert user["lock_passwd"] is True
    assert (config["ssh_pwauth"], config["disable_root"]) == (False, True)


def test_the_host_key_is_the_one_that_we_know() -> None:
    config = read(cloudinit.user_data(REQUEST))
    keys = {"ed25519_private": host_key().private, "ed25519_public": host_key().public}
    assert config["ssh_keys"] == keys
    assert config["ssh_deletekeys"] is True
    assert config["ssh_genkeytypes"] == ["ed25519"]
    bare = cloudinit.user_data(REQUEST, host_key=False)
    assert not set(read(bare)) & {"ssh_keys", "ssh_deletekeys", "ssh_genkeytypes"}
    assert "PRIVATE KEY" not in bare


def test_the_preparation_is_shipped_as_it_is_and_run_once() -> None:
    config = read(cloudinit.user_data(REQUEST))
    [file] = config["write_files"]
    script = gzip.decompress(base64.b64decode(file["content"]))
    assert script == files("providers").joinpath("prepare.sh").read_bytes()
    assert (file["path"], file["permissions"]) == (cloudinit.PREPARE, "0755")
    assert config["runcmd"] == [[cloudinit.PREPARE, "spotd", cloudinit.DATA, cloudinit.STATE]]
    subprocess.run(["bash", "-n"], input=script, check=True)


def test_nothing_takes_the_lock_of_the_package_manager() -> None:
    config = read(cloudinit.user_data(REQUEST))
    masked = [word for line in config["bootcmd"] for word in line[3:]]
    assert all(line[:3] == ["systemctl", "mask", "--now"] for line in config["bootcmd"])
    assert {"apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"} <= {
        *masked
    }
    assert (config["package_update"], config["package_upgrade"]) == (False, False)


def test_the_same_request_is_the_same_bytes() -> None:
    first = cloudinit.user_data(REQUEST)
    cloudinit._packed_script.cache_clear()
    assert cloudinit.user_data(REQUEST) == first
    assert cloudinit.user_data(replace(REQUEST, host_public_key="other")) != first


def test_it_fits_what_the_strictest_cloud_takes() -> None:
    """With room for keys that are longer than ours."""
    assert len(cloudinit.user_data(REQUEST).encode()) < cloudinit.MOST_BYTES - 4096
    with pytest.raises(ValueError, match="user data of"):
        cloudinit.user_data(replace(REQUEST, ssh_public_key="ssh-rsa " + "A" * 16_384))
