"""One machine: a process group of its own with a disk, an SSH server and a metadata service.

The process is the machine's "kernel": root of its process tree, parent of every session, owner of
its sockets. It obeys the control link to the cloud, whose end is its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from providers.local import process_tree
from providers.local.dialects import document_for
from providers.local.documents import MachineFacts
from providers.local.link import ControlLink
from providers.local.metadata import MetadataServer
from providers.local.power import PoweredOff, Switch
from providers.local.reaper import Reaper
from providers.local.sshd import Login, SshServer


def run(config: Mapping[str, object], control_fd: int, ssh_fd: int, metadata_fd: int) -> int:
    """Be the machine until the control link ends; then kill everything in it."""
    process_tree.become_root("spotd-local-vm")
    # Paths on the machine's disk become short and relative to it, as its own root would be.
    home = Path(str(config["home"]))
    os.chdir(home)
    control = ControlLink(socket.socket(fileno=control_fd))
    switch = Switch(home)
    facts = MachineFacts.from_data(_mapping(config["facts"]))
    document = document_for(
        facts, lambda notice_id: control.tell("acknowledged", notice_id=notice_id)
    )
    metadata = MetadataServer(socket.socket(fileno=metadata_fd), document, control.tell)
    ssh = SshServer(
        socket.socket(fileno=ssh_fd),
        Login.from_data(_mapping(config["login"])),
        _environment(config, metadata.url, switch.folder),
        Reaper(),
        on_exec=lambda: control.tell("exec"),
    )
    boot = threading.Thread(target=_boot, args=(config, control, metadata, ssh), daemon=True)
    boot.start()
    try:
        while order := control.receive(switch):
            metadata.obey(order)
    except PoweredOff:
        control.tell("powered_off")
    process_tree.stop_tree(os.getpid(), with_root=False)
    process_tree.kill_below(os.getpid())
    return 0


def _boot(
    config: Mapping[str, object], control: ControlLink, metadata: MetadataServer, ssh: SshServer
) -> None:
    """Until the boot delay has passed both ports refuse, as a machine that is starting does."""
    time.sleep(float(str(config["boot_delay_s"])))
    metadata.start()
    ssh.start()
    control.tell("booted")


def _environment(config: Mapping[str, object], metadata_url: str, switch: Path) -> dict[str, str]:
    user = str(_mapping(config["login"])["user"])
    return {
        "HOME": str(config["home"]),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([str(config["path"]), str(switch)]),
        "XDG_RUNTIME_DIR": str(config["runtime"]),
        "SPOTD_METADATA_BASE": metadata_url,
        "SPOTD_LOCAL_INSTANCE": str(config["id"]),
    }


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {value!r}")
    return value
