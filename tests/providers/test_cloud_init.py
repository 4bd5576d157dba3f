"""User data is a cloud-config that cloud-init accepts, small enough for every cloud, and the same
for the same request."""

from __future__ import annotations

import base64
import gzip
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from providers import cloud_init
from providers.aws.cloud import AwsCloud
from providers.base import CapacityType, LaunchRequest
from tests.fixtures import nspawn
from tests.fixtures.local_cloud import host_key, user_key

SCRIPT = Path(__file__).parents[2] / "providers" / "prepare.sh"
REQUEST = LaunchRequest(
    token="t",
    name="n",
    region="r",
    zone="z",
    instance_type="p5.48xlarge",
    capacity_type=CapacityType.SPOT,
    tags={},
    ssh_user="spotd",
    ssh_public_key=f"{user_key().public}\n",
    host_private_key=host_key().private,
    host_public_key=host_key().public,
)


def config(text: str) -> Any:
    assert text.startswith("#cloud-config\n")
    return yaml.safe_load(text)


def test_it_makes_our_user_and_nobody_else() -> None:
    [user] = config(cloud_init.user_data(REQUEST))["users"]
    assert (user["name"], user["ssh_authorized_keys"]) == ("spotd", [user_key().public])
    assert user["lock_passwd"] is True


def test_the_host_key_is_told_only_where_the_cloud_has_no_channel_for_it() -> None:
    keys = config(cloud_init.user_data(REQUEST))["ssh_keys"]
    assert keys["ed25519_private"] == host_key().private
    text = cloud_init.user_data(REQUEST, host_key=False)
    assert "PRIVATE KEY" not in text
    assert "ssh_keys" not in config(text)


def test_the_preparation_travels_whole_and_leaves_its_word_where_it_is_looked_for() -> None:
    reported = config(cloud_init.user_data(REQUEST))
    [file] = reported["write_files"]
    assert gzip.decompress(base64.b64decode(file["content"])) == SCRIPT.read_bytes()
    assert (file["encoding"], file["permissions"]) == ("gz+b64", "0755")
    state = AwsCloud.prepared_file
    argv = [file["path"], "spotd", cloud_init.DATA_DIR, state]
    assert reported["runcmd"] == [argv]
    contained = replace(REQUEST, image_id="docker:nvcr.io/x:1")
    assert config(cloud_init.user_data(contained))["runcmd"] == [[*argv, "container"]]


def test_the_same_request_is_the_same_bytes_and_no_secret_is_in_it() -> None:
    again = replace(REQUEST)
    assert cloud_init.user_data(REQUEST) == cloud_init.user_data(again)
    other = replace(REQUEST, token="t2", tags={"a": "b"}, host_private_key=host_key().private)
    assert cloud_init.user_data(other) == cloud_init.user_data(REQUEST), "tags do not belong in it"


def test_it_leaves_room_and_too_much_is_refused() -> None:
    assert len(cloud_init.user_data(REQUEST).encode()) < cloud_init.MAX_USER_DATA_BYTES / 2
    with pytest.raises(ValueError, match="16384 are allowed"):
        cloud_init.user_data(replace(REQUEST, ssh_public_key="x" * cloud_init.MAX_USER_DATA_BYTES))


@pytest.mark.parametrize("host_key", [True, False])
def test_cloud_init_takes_it(host_key: bool) -> None:
    if shutil.which("cloud-init") is None:
        raise RuntimeError("cloud-init is missing: apt-get install cloud-init")
    done = subprocess.run(
        ["cloud-init", "schema", "--config-file", "/dev/stdin"],
        input=cloud_init.user_data(REQUEST, host_key=host_key),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Valid cloud-config" in done.stdout


STAGES = ("cloud-init-local", "cloud-init", "cloud-config", "cloud-final")


@pytest.mark.root
def test_a_machine_that_systemd_boots_obeys_it(tmp_path: Path) -> None:
    """cloud-init with all modules of its own configuration, as its services run it."""
    files = tmp_path / "files"
    seed, settings, programs = (
        files / name
        for name in ("var/lib/cloud/seed/nocloud", "etc/cloud/cloud.cfg.d", "usr/local/bin")
    )
    for folder in (seed, settings, programs):
        folder.mkdir(parents=True)
    (seed / "user-data").write_text(cloud_init.user_data(REQUEST))
    (seed / "meta-data").write_text("instance-id: i-1\n")
    (settings / "99.cfg").write_text("datasource_list: [NoCloud]\nnetwork: {config: disabled}\n")
    (programs / "timedatectl").write_text("#!/bin/sh\necho yes\n")  # nobody sets a container's
    (programs / "timedatectl").chmod(0o755)
    with nspawn.booted(files) as machine:
        for stage in STAGES:
            # What this computer's packages lack (locales) is none of ours.
            machine.run("systemctl", "start", stage, check=False)
        assert machine.run("cat", cloud_init.STATE_FILE).stdout == "ok\n"
        for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"):
            result = machine.run("systemctl", "is-enabled", unit, check=False).stdout
            assert result == "masked\n", unit
        key = machine.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub").stdout
        assert key.split()[:2] == host_key().public.split()[:2]
        keys = machine.run("cat", "/home/spotd/.ssh/authorized_keys").stdout
        assert keys.strip() == user_key().public
        reported = machine.run("sudo", "-n", "whoami", user="spotd").stdout
        assert reported == "root\n"
        log = machine.run("cat", "/var/log/cloud-init.log").stdout
        failed = [row for row in log.splitlines() if ": FAIL: running config-" in row]
        assert not [row for row in failed if "config-locale" not in row], failed


def test_nothing_takes_the_lock_of_the_package_manager() -> None:
    reported = config(cloud_init.user_data(REQUEST))
    masked = [word for line in reported["bootcmd"] for word in line[3:]]
    assert all(line[:3] == ["systemctl", "mask", "--now"] for line in reported["bootcmd"])
    assert {"apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"} <= {
        *masked
    }
    assert (reported["package_update"], reported["package_upgrade"]) == (False, False)
