"""The process of one simulated machine, with a disk, an SSH server and a metadata service.

It acts as the machine's kernel: root of the process tree, parent of every session, owner of the
sockets. It follows the orders on the control link and ends when that link closes.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from providers.local import process_tree
from providers.local.documents import MachineFacts
from providers.local.link import ControlLink
from providers.local.metadata import MetadataServer, document_for
from providers.local.power import PoweredOff, PowerSwitch
from providers.local.reaper import Reaper
from providers.local.sshd import Login, SshServer


def run(config: Mapping[str, object], control_fd: int, ssh_fd: int, metadata_fd: int) -> int:
    """Run the machine until the control link closes, then kill all its processes."""
    process_tree.become_root("spotd-local-vm")
    # Relative paths refer to the machine's disk.
    home = Path(str(config["home"]))
    os.chdir(home)
    control = ControlLink(socket.socket(fileno=control_fd))
    power_switch = PowerSwitch(home)
    facts = MachineFacts.from_data(_mapping(config["facts"]))
    document = document_for(
        facts, lambda notice_id: control.report("acknowledged", notice_id=notice_id)
    )
    metadata = MetadataServer(socket.socket(fileno=metadata_fd), document, control.report)
    ssh = SshServer(
        socket.socket(fileno=ssh_fd),
        Login.from_data(_mapping(config["login"])),
        _environment(config, metadata.url, power_switch.folder),
        Reaper(),
        on_exec=lambda: control.report("exec"),
    )
    boot = threading.Thread(target=_boot, args=(config, control, metadata, ssh), daemon=True)
    boot.start()
    try:
        while order := control.receive(power_switch):
            metadata.handle_order(order)
    except PoweredOff:
        control.report("powered_off")
    process_tree.stop_tree(os.getpid(), with_root=False)
    process_tree.kill_below(os.getpid())
    return 0


def _boot(
    config: Mapping[str, object], control: ControlLink, metadata: MetadataServer, ssh: SshServer
) -> None:
    """Open both ports after the boot delay; until then they refuse connections."""
    time.sleep(float(str(config["boot_delay_s"])))
    metadata.start()
    ssh.start()
    control.report("booted")


def _environment(
    config: Mapping[str, object], metadata_url: str, power_folder: Path
) -> dict[str, str]:
    user = str(_mapping(config["login"])["user"])
    return {
        "HOME": str(config["home"]),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([str(config["path"]), str(power_folder)]),
        "XDG_RUNTIME_DIR": str(config["runtime"]),
        "SPOTD_METADATA_BASE": metadata_url,
        "SPOTD_LOCAL_INSTANCE": str(config["id"]),
    }


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {value!r}")
    return value
