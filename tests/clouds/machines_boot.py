"""Boot a machine of a cloud stand-in by its user data alone.

    python -m tests.clouds.machines_boot GROUND CONTROL_FD < CONFIGURATION

Its image is this computer's own files below a fresh disk, without anybody's account or host key.
Debian's cloud-init applies the user data in the order of a real boot: files, accounts and host
keys, then OpenSSH starts, then `runcmd`. The source of the user data depends on the cloud: for GCP
and Azure see guest.py, for AWS it is on the disk (NoCloud). systemd does not run; what a
preparation asks it (whether the clock is set), a program in the image answers.
tests/fixtures/netns_machine implements the machine.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from providers.local.documents import NoticeDocument
from providers.local.link import ControlLink
from tests.clouds.azure import guest as azure
from tests.clouds.gcp import guest as gcp
from tests.fixtures.netns_machine import (
    SSHD_CONFIG,
    SSHD_LOG,
    be_machine,
    plain_documents,
    write_image,
)

SEED = "/var/lib/cloud/seed/nocloud"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
BOOT_LOG = "/var/log/cloud-init-output.log"
ACCOUNTS = "/etc/machine-accounts"  # "USER PUBLIC-KEY" a line: those that the cloud makes itself

BOOT = "/etc/machine-boot"  # the stages of cloud-init before anybody can log in

_INIT = f"""
trap 'exit 0' PWR
. {BOOT}
while read -r user key; do
    id "$user" >/dev/null || useradd -m -s /bin/bash "$user"
    echo "$user ALL=(ALL) NOPASSWD:ALL" > "/etc/sudoers.d/90-machine-$user"
    mkdir -p "/home/$user/.ssh"
    echo "$key" >> "/home/$user/.ssh/authorized_keys"
    chown -R "$user:" "/home/$user/.ssh"
done < {ACCOUNTS}
/usr/sbin/sshd -f {SSHD_CONFIG} -E {SSHD_LOG}
{{ cloud-init modules --mode config; cloud-init modules --mode final; }} &
while :; do sleep 1000 & wait $!; done
"""
# This computer may have booted by cloud-init itself, and has keys and a configuration of its own.
INIT = f"""
find /var/lib/cloud -mindepth 1 -maxdepth 1 ! -name seed -exec rm -rf {{}} +
rm -rf /etc/cloud/cloud.cfg.d /etc/cloud/cloud-init.disabled /etc/ssh/ssh_host_*
exec >{BOOT_LOG} 2>&1
{_INIT}
"""
CLOCK = "/usr/local/bin/timedatectl"
PROGRAMS = {
    "/usr/local/sbin/shutdown": "kill -PWR 1",
    CLOCK: "echo yes",
    "/usr/local/bin/systemd-detect-virt": "exit 1",  # a machine, and no container on one
}
# The modules of Ubuntu's images that have to do with what we ask for, in their order.
_CLOUD_CFG = """\
network: {config: disabled}
preserve_hostname: true
ssh_genkeytypes: [ed25519]
cloud_init_modules: [bootcmd, write-files, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [package-update-upgrade-install, scripts-user]
"""
_NO_CLOUD = "datasource_list: [NoCloud]\nusers: []\n"
_PLAIN = "system_info: {distro: debian}\n"
_SSHD = f"""\
ListenAddress {{host}}
HostKey {HOST_KEY}
PidFile /run/sshd/pid
AuthorizedKeysFile .ssh/authorized_keys
UsePAM yes
UseDNS no
PrintMotd no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100:30:200
"""


def lay_out(ground: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Create the image, and the files that the cloud adds to each machine."""
    name, host = config["facts"]["name"], config["host"]
    disk = Path(config["home"])
    programs = PROGRAMS | config["programs"]
    write_image(
        disk,
        {
            "/etc/hosts": (f"127.0.0.1 localhost\n{host} {name}\n", 0o644),
            "/etc/resolv.conf": ("options timeout:1 attempts:1\n", 0o644),  # nobody to ask
            SSHD_CONFIG: (_SSHD.format(host=host), 0o644),
            **{path: (f"#!/bin/sh\n{text}\n", 0o755) for path, text in programs.items()},
            **_platform(ground, config),
        },
    )
    _open_ways(disk / "upper", map(Path, config["readable"]))


def _platform(ground: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Set up the source of cloud-init's user data and the creation of accounts outside it; on
    Azure, cloud-init itself creates them."""
    accounts = "".join(f"{user} {key}\n" for user, key in config["accounts"].items())
    match config["facts"]["personality"]:
        case "gcp":
            boot, text, more = gcp.BOOT, gcp.CONFIG + _PLAIN, gcp.files(ground, config)
        case "azure":
            boot, accounts = azure.boot(ground, config), ""
            text = f"{azure.CONFIG}system_info: {azure.system_info()}\n"
            more = azure.files(ground, config)
        case _:
            boot, text = "cloud-init init --local\ncloud-init init", _NO_CLOUD + _PLAIN
            more = {
                f"{SEED}/user-data": (config["user_data"], 0o600),
                f"{SEED}/meta-data": (json.dumps({"instance-id": config["id"]}), 0o644),
            }
    return {
        "/etc/cloud/cloud.cfg": (_CLOUD_CFG + text, 0o644),
        BOOT: (f"{boot}\n", 0o644),
        ACCOUNTS: (accounts, 0o600),
        **more,
    }


def documents(config: Mapping[str, Any], control: ControlLink) -> NoticeDocument:
    """Return the documents of the metadata service, with the user data where the cloud publishes it
    there."""
    match config["facts"]["personality"]:
        case "gcp":
            return gcp.Documents(config, control)
        case "azure":
            return azure.Documents(config, control)
    return plain_documents(config, control)


def _open_ways(upper: Path, paths: Iterable[Path]) -> None:
    """Let everybody on the machine reach `paths`: the Python of the tests may be in root's home, or
    in a folder of pytest's."""
    for way in sorted({parent for path in paths for parent in path.absolute().parents}):
        target = upper / way.relative_to("/")
        target.mkdir(exist_ok=True)
        target.chmod(stat.S_IMODE(way.stat().st_mode) | 0o055)


if __name__ == "__main__":
    sys.exit(be_machine(sys.argv[1:], lay_out, INIT, documents))
