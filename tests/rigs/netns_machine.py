"""A machine of namespaces, which the local cloud starts as providers/local/site.py says.

    python -m tests.rigs.netns_machine GROUND CONTROL_FD < CONFIGURATION

GROUND is what `netns.Network` wrote. This process is the machine's hypervisor: it has the machine's
network (a cable to the bridge, and 169.254.169.254 on loopback, where the local cloud's own
metadata service listens) and its mounts, and below it a process tree of its own begins with an init
that starts OpenSSH. The disk is a layer in memory over this computer's own files, of a size that
can be filled. Everything of it ends with its processes, but for the cgroup.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from providers.local import tree
from providers.local.dialects import document_for
from providers.local.documents import Facts, NoticeDocument
from providers.local.link import ControlLink
from providers.local.metadata import MetadataServer
from providers.local.power import POWER_OFF
from providers.local.quiet_http import bind
from providers.local.site import SSH_PORT

METADATA = "169.254.169.254"
HOME = "/home/spotd"
SSHD_CONFIG = "/etc/ssh/machine_config"
HOST_KEY = "/etc/ssh/machine_key"
SSHD_LOG = "/var/log/machine-sshd"
START_S = 30.0
LayOut = Callable[[Mapping[str, Any], Mapping[str, Any]], None]  # ground, configuration
Documents = Callable[[Mapping[str, Any], ControlLink], NoticeDocument]
_NEW_NET, _NEW_NS, _NEW_UTS = 0x40000000, 0x00020000, 0x04000000

# The layer of the disk is laid out before it is put over the computer's own files.
_DISK = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o "mode=0755,size=$2" disk "$1"
mkdir "$1/upper" "$1/work" "$1/root"
"""
# Runs as the first process of the machine; what is mounted here is mounted nowhere else.
_INIT = """
set -eu
root=$1/root; shift
mount -t overlay overlay -o "lowerdir=/,upperdir=${root%root}upper,workdir=${root%root}work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t tmpfs -o mode=0755 run "$root/run"
mkdir "$root/run/sshd" "$root/run/machine"
for path; do mkdir -p "$root$path"; mount --bind "$path" "$root$path"; done
exec chroot "$root" /bin/sh -c "$INIT"
"""
# It waits for whatever is left to it, and ends when somebody on the machine switches it off.
_WAIT = f"""
trap 'exit 0' PWR
/usr/sbin/sshd -f {SSHD_CONFIG} -E {SSHD_LOG}
while :; do sleep 1000 & wait $!; done
"""
_SSHD = """\
ListenAddress {host}
Port {port}
HostKey {host_key}
PidFile /run/sshd/pid
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100:30:200
SetEnv {environment}
"""


def main(argv: list[str]) -> int:
    """Be a machine of the local cloud's."""
    return be_machine(argv, _lay_out, _WAIT)


def plain_documents(config: Mapping[str, Any], control: ControlLink) -> NoticeDocument:
    """The local cloud's own."""
    acknowledged = lambda name: control.tell("acknowledged", notice_id=name)  # noqa: E731
    return document_for(Facts.from_data(config["facts"]), acknowledged)


def be_machine(
    argv: list[str], lay_out: LayOut, init: str, documents: Documents = plain_documents
) -> int:
    """Be the machine until the control link ends. `lay_out` puts the image on its disk, `init` is
    the script that is its first process, `documents` what its metadata service tells."""
    ground = json.loads(Path(argv[0]).read_text())
    control = ControlLink(socket.socket(fileno=int(argv[1])))
    config = json.load(sys.stdin)
    tree.become_root("spotd-netns-vm")
    _join(Path(ground["group"]) / config["id"])
    host_net = os.open("/proc/self/ns/net", os.O_RDONLY)
    _unshare(_NEW_NET | _NEW_NS | _NEW_UTS)
    socket.sethostname(config["id"])
    _plug_in(ground, config["host"], host_net)
    _make_disk(ground, config)
    lay_out(ground, config)
    metadata = MetadataServer(bind(METADATA, 80), documents(config, control), control.tell)
    run = (ground, config, init, control, metadata)
    threading.Thread(target=_run, args=run, daemon=True).start()
    while order := control.receive():
        metadata.obey(order)
    tree.stop_tree(os.getpid(), with_root=False)
    tree.kill_below(os.getpid())
    return 0


def _join(group: Path) -> None:
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _unshare(kinds: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(kinds) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"namespaces of its own: {os.strerror(number)}")


def _plug_in(ground: Mapping[str, Any], host: str, host_net: int) -> None:
    """A cable to the bridge, and the address of the metadata service."""
    port, parent = port_of(ground["bridge"], host), os.getppid()
    prefix, gateway = ground["prefix"], ground["gateway"]
    _ip(
        f"link add eth0 type veth peer name {port} netns {parent}",
        f"addr add {host}/{prefix} dev eth0",
        "link set eth0 up",
        "link set lo up",
        f"addr add {METADATA}/32 dev lo",
        f"route add default via {gateway}",
    )
    outside = ["nsenter", f"--net=/proc/self/fd/{host_net}"]
    _ip(f"link set {port} master {ground['bridge']} up", before=outside, fds=(host_net,))


def port_of(bridge: str, host: str) -> str:
    """The name of a machine's end of the cable at the bridge."""
    _, _, high, low = host.split(".")
    return f"{bridge}-{int(high) * 256 + int(low):x}"


def _ip(*commands: str, before: list[str] | None = None, fds: tuple[int, ...] = ()) -> None:
    batch = "\n".join(commands)
    command = [*(before or []), "ip", "-batch", "-"]
    done = subprocess.run(
        command, input=batch, capture_output=True, text=True, check=False, pass_fds=fds
    )
    if done.returncode:
        raise RuntimeError(f"{batch}: {done.stderr}")


def _make_disk(ground: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    subprocess.run(["sh", "-c", _DISK, "sh", str(config["home"]), ground["disk"]], check=True)


def _lay_out(_ground: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """What the machine's own image has: one user, the keys of its launch, sshd's configuration."""
    login, host, name = config["login"], config["host"], config["id"]
    environment = {
        "PATH": f"{config['path']}:/usr/sbin:/opt/machine",
        "LANG": "C.UTF-8",
        "XDG_RUNTIME_DIR": "/run/machine",
        "SPOTD_LOCAL_INSTANCE": name,
    }
    setting = " ".join(f"{key}={value}" for key, value in environment.items())
    sshd = _SSHD.format(host=host, port=SSH_PORT, host_key=HOST_KEY, environment=setting)
    user = login["user"]
    accounts = "".join(
        line
        for line in Path("/etc/passwd").read_text().splitlines(keepends=True)
        if not line.startswith(f"{user}:")
    )
    files = {
        # Root by another name: the Python that tests run with may lie in root's home.
        "/etc/passwd": (f"{accounts}{user}:*:0:0::{HOME}:/bin/bash\n", 0o644),
        "/etc/hosts": (f"127.0.0.1 localhost\n{host} {name}\n", 0o644),
        "/etc/resolv.conf": ("options timeout:1 attempts:1\n", 0o644),  # nobody to ask
        SSHD_CONFIG: (sshd, 0o644),
        HOST_KEY: (login["host_private_key"], 0o600),
        f"{HOME}/.ssh/authorized_keys": (login["public_key"] + "\n", 0o600),
        f"/opt/machine/{POWER_OFF}": ("#!/bin/sh\nkill -PWR 1\n", 0o755),
    }
    write_image(Path(config["home"]), files)


def write_image(disk: Path, files: Mapping[str, tuple[str, int]]) -> None:
    """Files of the machine's disk, over this computer's own: path -> (text, mode)."""
    for path, (text, mode) in files.items():
        target = disk / "upper" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode)
        target.write_text(text)
        target.chmod(mode)


def _run(
    ground: Mapping[str, Any],
    config: Mapping[str, Any],
    init: str,
    control: ControlLink,
    metadata: MetadataServer,
) -> None:
    """Boot, and see it end."""
    time.sleep(float(config["boot_delay_s"]))
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", _INIT, "sh"]
    process = subprocess.Popen(
        [*command, config["home"], *ground["shared"]],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"INIT": init},
    )
    metadata.start()
    end_s = time.monotonic() + START_S
    while not _listens(config["host"]) and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)
    control.tell("booted")
    if process.wait() == 0:
        control.tell("powered_off")
    os._exit(0)


def _listens(host: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, SSH_PORT)) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
