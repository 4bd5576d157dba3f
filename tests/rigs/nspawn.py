"""A machine that systemd boots: this one's own files below a throw-away layer, in a container.

Needs root and systemd-nspawn; without them it is a failure, never a skip. Mounts live in a mount
namespace of the container's own, and its cgroups in a group of its own, so that nothing is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.rigs.processes import below

CHECKOUT = Path(__file__).resolve().parents[2]
BOOT_S = 60.0
TARGET = "rig.target"
# Of this machine's own services none may start, whatever is installed.
_TARGET = """\
[Unit]
Requires=basic.target dbus.service
After=basic.target dbus.service
AllowIsolate=yes
"""
# Inside a mount namespace of its own: the layer lies in memory and is gone with the last process.
_BOOT = """
set -eu
for group in $CGROUPS; do echo $$ > "$group/cgroup.procs"; done
mount -t tmpfs -o mode=0755 layer "$1"
mkdir "$1/upper" "$1/work" "$1/root"
cp -a "$2/." "$1/upper/"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
shift 2
exec systemd-nspawn "$@"
"""


class Container:
    """A booted machine. `run` is a root shell on it."""

    def __init__(self, leader: int, process: subprocess.Popen[bytes]) -> None:
        self._leader = leader
        self.process = process

    def run(
        self, *command: str, user: str = "", check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as root or as `user` with all groups of that user."""
        enter = ["nsenter", "-t", str(self._leader), "-m", "-p", "-u", "-i", "-n", "-C"]
        if user:
            enter += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        environ = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [*enter, *command], capture_output=True, text=True, timeout=timeout_s,
            check=False, env=environ, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def write(self, path: str, text: str, mode: str = "0644") -> None:
        """A file of root."""
        script = 'umask 077; mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"; chmod "$3" "$1"'
        self.run("sh", "-c", script, "sh", path, text, mode)
        # Folders above it are everybody's, as a package makes them.
        self.run("chmod", "0755", str(Path(path).parent))

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout


def require() -> None:
    """Raises RuntimeError when this machine cannot boot one."""
    if os.geteuid() != 0:
        raise RuntimeError("systemd in a container needs root: run this test as root")
    for program, package in (("systemd-nspawn", "systemd-container"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            raise RuntimeError(f"{program} is missing: apt-get install {package}")


@contextmanager
def booted(files: Path) -> Iterator[Container]:
    """A machine with `files` over its root, and spotd's own code and Python below /opt.

    Third-party packages and the interpreter are those we run with; a user's home may hide them, so
    they are bound to places that everybody can read.
    """
    require()
    _lay_out(files)
    folder = Path(tempfile.mkdtemp(prefix="spotd-nspawn-"))
    name = f"spotd-rig-{os.getpid()}"
    groups = _make_groups(name)
    said = (folder / "said").open("wb")
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private",
         "sh", "-c", _BOOT, "sh", str(folder), str(files), *_nspawn(folder, name)],
        env=os.environ | {"CGROUPS": " ".join(map(str, groups))},
        stdin=subprocess.DEVNULL, stdout=said, stderr=said,
    )  # fmt: skip
    said.close()
    try:
        container = Container(_leader(process, folder / "said"), process)
        _await_boot(container)
        yield container
    finally:
        _end(process)
        for group in groups:
            _remove_group(group)
        shutil.rmtree(folder)


def _nspawn(folder: Path, name: str) -> list[str]:
    return [
        "--quiet", "-D", str(folder / "root"), "-b", "--register=no", "--keep-unit",
        "--private-network", "--console=pipe", "--link-journal=no", "-M", name,
        f"--bind-ro={sys.base_prefix}:/opt/python",
        f"--bind-ro={sysconfig.get_path('purelib')}:/opt/packages",
        f"--bind-ro={CHECKOUT}:/opt/source",
        "--", f"systemd.unit={TARGET}", "systemd.firstboot=off",
    ]  # fmt: skip


def _lay_out(files: Path) -> None:
    """What every such machine needs: the target, and /opt/spotd as an environment of its own."""
    units = files / "etc/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    (units / TARGET).write_text(_TARGET)
    for unit in ("systemd-networkd-wait-online", "networking", "systemd-resolved", "apparmor"):
        (units / f"{unit}.service").symlink_to("/dev/null")
    for name in ("python", "packages", "source"):
        (files / "opt" / name).mkdir(parents=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    programs = files / "opt/spotd/bin"
    site = files / "opt/spotd/lib" / version / "site-packages"
    programs.mkdir(parents=True)
    site.mkdir(parents=True)
    (programs / "python").symlink_to(f"/opt/python/bin/{version}")
    (files / "opt/spotd/pyvenv.cfg").write_text("home = /opt/python/bin\n")
    # Of /opt/packages no *.pth file is read, so that an editable install there leads nowhere.
    (site / "spotd.pth").write_text("/opt/source\n/opt/packages\n")
    for name, entry in (("spotd", "spotd.__main__:entry"), ("spotctl", "spotd.cli:main")):
        module, _, function = entry.partition(":")
        words = f"from {module} import {function}; sys.exit({function}())"
        program = programs / name
        # An interpreter may look for its library in a home that the unit hides.
        program.write_text(
            "#!/bin/sh\nLD_LIBRARY_PATH=/opt/python/lib exec /opt/spotd/bin/python -c "
            f'"import sys; sys.argv[0] = \'{name}\'; {words}" "$@"\n'
        )
        program.chmod(0o755)
    for path in files.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def _make_groups(name: str) -> list[Path]:
    """An own group in systemd's hierarchy, or in the only one: two containers share none."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "name=systemd":
            tops = [Path("/sys/fs/cgroup/systemd")]
        elif controllers == "":
            tops = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
        else:
            continue
        top = next((top for top in tops if (top / "cgroup.procs").exists()), None)
        if top is not None:
            found.append(top / path.lstrip("/") / name)
    for group in found:
        group.mkdir()
    return found


def _remove_group(group: Path) -> None:
    """The kernel empties a group a moment after its last process has ended."""
    end_s = time.monotonic() + 10
    for path in [*sorted(group.rglob("*/"), key=lambda p: -len(p.parts)), group]:
        while path.is_dir() and time.monotonic() < end_s:
            with suppress(OSError):
                path.rmdir()
                break
            time.sleep(0.02)


def _leader(process: subprocess.Popen[bytes], said: Path) -> int:
    """The container's own pid 1, by our number."""
    end_s = time.monotonic() + BOOT_S
    while time.monotonic() < end_s and process.poll() is None:
        for pid in below(process.pid):
            with suppress(OSError):
                if f"NSpid:\t{pid}\t1\n" in Path(f"/proc/{pid}/status").read_text():
                    return pid
        time.sleep(0.02)
    raise AssertionError(f"no machine came up: {said.read_text()[-2000:]}")


def _await_boot(container: Container) -> None:
    end_s = time.monotonic() + BOOT_S
    while True:
        done = container.run("systemctl", "is-active", TARGET, check=False)
        if done.stdout.strip() == "active":
            return
        assert time.monotonic() < end_s, f"{TARGET}: {done.stdout}{done.stderr}"
        assert container.process.poll() is None, "the machine went down"
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Power cut: of a throw-away machine nothing has to be saved."""
    for pid in below(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait(timeout=30)
