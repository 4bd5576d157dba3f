"""prepare.sh as a fresh machine runs it, with real disks (loop devices), file systems and mounts,
and with programs in place of the hardware that this computer lacks. Needs root."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fixtures.surroundings import path_without
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.root

SCRIPT = Path(__file__).parents[2] / "providers" / "prepare.sh"
USER = "nobody"
MIB = 1 << 20
GPU, SOUND, OTHERS = ("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")
# What AWS, GCP and Azure call their local disks.
LOCAL = "Amazon EC2 NVMe Instance Storage AWS1A2B"
# Its mounts and its PCI bus are nobody else's; what is left behind is told before they go.
_RUN = """
set -eu
mount -t tmpfs bus /sys/bus
mount -t tmpfs opt /opt
mkdir -p /sys/bus/pci
cp -r "$1/pci" /sys/bus/pci/devices
[ ! -e /dev/console ] || mount --bind /dev/null /dev/console
shift
"$@"
[ ! -d "$DATA" ] || stat -c %U "$DATA"
findmnt -no FSTYPE,SOURCE,OPTIONS --mountpoint "$DATA" || true
"""
_PROGRAMS = {
    "sleep": "exit 0",
    "timedatectl": "echo yes",
    "chronyc": "exit 1",
    "dmesg": "echo '[    0.1] Linux'",
    "systemctl": "exit 1",  # there is no such unit
    "lsblk": "exit 0",
}


@dataclass
class Computer:
    """`programs` come before its own; `path` has further programs."""

    folder: Path
    programs: dict[str, str] = field(default_factory=lambda: dict(_PROGRAMS))
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    owner: str = ""  # of the folder for data
    needs: tuple[str, ...] = ()  # what else it is told
    mounted: str = ""  # file system, device and options of what is mounted there

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def state(self) -> Path:
        return self.folder / "run" / "prepared"

    def devices(self, *kinds: tuple[str, str]) -> None:
        """Set its PCI devices: vendor and class."""
        for number, (vendor, kind) in enumerate(kinds):
            location = self.folder / "pci" / f"0000:0{number}:00.0"
            location.mkdir(parents=True)
            (location / "vendor").write_text(f"{vendor}\n")
            (location / "class").write_text(f"{kind}\n")

    def gpus(self, *answers: str) -> None:
        """Set the successive outputs of nvidia-smi; the last one repeats."""
        count = self.folder / "asked"
        cases = "".join(f"{n}) printf '{text}';;\n" for n, text in enumerate(answers[:-1]))
        self.programs["nvidia-smi"] = f"""
[ "$1" = -pm ] && exit 0
n=$(cat {count} 2>/dev/null || echo 0); echo $((n + 1)) > {count}
case $n in {cases} *) printf '{answers[-1]}';; esac"""

    def disks(self, *devices: str, model: str = LOCAL) -> None:
        """Set the output of lsblk."""
        rows = "".join(f"{device} disk {model}\\n" for device in devices)
        self.programs["lsblk"] = f"printf '/dev/vda disk Amazon Elastic Block Store vol1\\n{rows}'"

    def prepare(self) -> str:
        """Run prepare.sh and return its output."""
        (self.folder / "pci").mkdir(exist_ok=True)
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        for name, text in self.programs.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _RUN, "sh",
             str(self.folder), "bash", str(SCRIPT), USER, str(self.data), str(self.state),
             *self.needs],
            env={"PATH": f"{programs}:{self.path}", "DATA": str(self.data)},
            capture_output=True, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        self.owner, _, self.mounted = done.stdout.strip().partition("\n")
        return self.state.read_text()


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    if os.geteuid() != 0:
        raise RuntimeError("preparing a machine needs root: run this test as root")
    return Computer(tmp_path)


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Create loop devices, which are removed afterwards."""
    with ExitStack() as stack:
        yield lambda mib=64: stack.enter_context(_loop(tmp_path, mib))


@contextmanager
def _loop(folder: Path, mib: float) -> Iterator[str]:
    path = folder / f"disk{len([*folder.glob('disk*')])}"
    with path.open("wb") as file:
        file.truncate(int(mib * MIB))
    command = ["losetup", "--find", "--show", str(path)]
    device = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def content(device: str) -> bytes:
    return Path(device).read_bytes()


def test_a_plain_machine_is_fit(computer: Computer) -> None:
    assert computer.prepare() == "ok\n"
    assert (computer.owner, computer.mounted) == (USER, "")
    assert stat.S_IMODE(computer.state.stat().st_mode) & 0o444 == 0o444, "everybody may read it"


def test_it_runs_once(computer: Computer) -> None:
    assert computer.prepare() == "ok\n"
    computer.programs["timedatectl"] = "exit 1"
    assert computer.prepare() == "ok\n"


# --- the clock


def test_a_clock_that_nobody_sets_is_told(computer: Computer) -> None:
    computer.programs["timedatectl"] = "echo no"
    assert computer.prepare() == "the clock is not set: no time server answers\n"


@pytest.mark.parametrize(
    ("status", "fit"), [("Normal", True), ("Not synchronised", False), ("Insert second", False)]
)
def test_chrony_may_set_it(computer: Computer, status: str, fit: bool) -> None:
    computer.programs["timedatectl"] = "echo no"
    computer.programs["chronyc"] = f"echo 'Leap status     : {status}'"
    assert (computer.prepare() == "ok\n") is fit


# --- GPUs


ONE, TWO = "GPU-1\\n", "GPU-1\\nGPU-2\\n"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((TWO,), "ok"),
        (("", "no devices\\n", ONE, TWO), "ok"),
        ((ONE,), "nvidia-smi shows 1 of 2 GPUs"),
        (("NVIDIA-SMI has failed\\n",), "nvidia-smi shows 0 of 2 GPUs"),
    ],
)
def test_every_gpu_has_to_answer(computer: Computer, answers: tuple[str, ...], said: str) -> None:
    computer.devices(GPU, SOUND, OTHERS, ("0x10de", "0x030000"))
    computer.gpus(*answers)
    assert computer.prepare() == f"{said}\n"


def test_without_a_driver_none_does(computer: Computer, tmp_path: Path) -> None:
    computer.devices(GPU)
    computer.path = path_without(tmp_path / "path", ["nvidia-smi"])
    assert computer.prepare() == "nvidia-smi shows 0 of 1 GPUs\n"


def test_others_cards_are_not_asked_for(computer: Computer) -> None:
    computer.devices(SOUND, OTHERS)
    assert computer.prepare() == "ok\n"


@pytest.mark.parametrize(
    ("number", "fit"),
    [(48, False), (64, False), (74, False), (79, False), (94, False), (95, False), (119, False)]
    + [(120, False), (13, True), (31, True), (63, True), (4, True), (790, True)],
)
def test_an_error_that_the_driver_has_told_of_already(
    computer: Computer, number: int, fit: bool
) -> None:
    computer.devices(GPU)
    computer.gpus(ONE)
    line = f"[   81.2] NVRM: Xid (PCI:0000:c0:00): {number}, pid=1, GPU has fallen off the bus."
    computer.programs["dmesg"] = f"echo '{line}'"
    wrong = f"a GPU reports Xid (PCI:0000:c0:00): {number}\n"
    assert computer.prepare() == ("ok\n" if fit else wrong)


@pytest.mark.parametrize(
    ("enabled", "starts", "said"),
    [(True, True, "ok"), (True, False, "the fabric manager does not run"), (False, False, "ok")],
)
def test_a_fabric_manager_that_is_wanted_has_to_run(
    computer: Computer, enabled: bool, starts: bool, said: str
) -> None:
    computer.devices(GPU)
    computer.gpus(ONE)
    computer.programs["systemctl"] = f"""
case $1 in is-enabled) exit {int(not enabled)};; start) exit {int(not starts)};; esac"""
    assert computer.prepare() == f"{said}\n"


# --- disks


@pytest.mark.parametrize(
    "model",
    [LOCAL, "nvme_card0 nvme_card0", "nvme_card-pd", "Microsoft NVMe Direct Disk v2 0123"],
)
def test_a_local_disk_is_mounted(
    computer: Computer, attach: Callable[..., str], model: str
) -> None:
    device = attach()
    computer.disks(device, model=model)
    assert computer.prepare() == "ok\n"
    kind, source, options = computer.mounted.split()
    assert (kind, source) == ("ext4", device)
    assert "noatime" in options.split(",")
    assert computer.owner == USER


THEIRS = """
case "$*" in
"is-enabled -q dlami-nvme") exit 0;;
"start dlami-nvme") {start};;
*) exit 1;;
esac"""


def test_disks_that_the_image_puts_together_itself_are_waited_for_and_used(
    computer: Computer, attach: Callable[..., str]
) -> None:
    """As AWS's GPU images do it."""
    device = attach()
    computer.disks(device)
    start = "mkdir -p /opt/dlami/nvme && mount -t tmpfs theirs /opt/dlami/nvme"
    computer.programs["systemctl"] = THEIRS.format(start=start)
    assert computer.prepare() == "ok\n"
    assert computer.mounted.split()[:2] == ["tmpfs", "theirs"]
    assert computer.owner == USER
    assert not any(content(device))


def test_where_the_image_fails_to_they_are_ours(
    computer: Computer, attach: Callable[..., str]
) -> None:
    device = attach()
    computer.disks(device)
    computer.programs["systemctl"] = THEIRS.format(start="exit 1")
    assert computer.prepare() == "ok\n"
    assert computer.mounted.split()[:2] == ["ext4", device]


@pytest.mark.parametrize("what", ["file system", "partitions", "swap"])
def test_a_disk_with_something_on_it_is_left_alone(
    computer: Computer, attach: Callable[..., str], what: str
) -> None:
    device = attach()
    if what == "file system":
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
    elif what == "partitions":
        subprocess.run(["sfdisk", "-q", device], input="1M,16M,L\n", text=True, check=True)
    else:
        subprocess.run(["mkswap", device], check=True, capture_output=True)
    before = content(device)
    computer.disks(device)
    assert computer.prepare() == "ok\n"
    assert computer.mounted == ""
    assert content(device) == before


def test_disks_that_are_no_part_of_the_machine_are_left_alone(
    computer: Computer, attach: Callable[..., str]
) -> None:
    device = attach()
    computer.disks(device, model="Amazon Elastic Block Store vol0123")
    assert computer.prepare() == "ok\n"
    assert computer.mounted == ""
    assert not any(content(device))


def test_a_disk_that_takes_no_file_system_is_told(
    computer: Computer, attach: Callable[..., str]
) -> None:
    device = attach(mib=1 / 16)
    computer.disks(device)
    assert computer.prepare() == f"no file system on {device}\n"


def has_md() -> bool:
    """Whether this kernel supports RAID."""
    return Path("/proc/mdstat").exists()


# In place of mdadm where the kernel has no RAID: the array is a device that was made before.
_ARRAY = """
echo "$@" > {said}
mkdir -p /dev/md && ln -sfn {array} /dev/md/spotd"""


def test_several_disks_become_one(computer: Computer, attach: Callable[..., str]) -> None:
    devices = [attach(), attach()]
    computer.disks(*devices)
    output = computer.folder / "said"
    if not has_md():
        computer.programs["mdadm"] = _ARRAY.format(said=output, array=attach(mib=128))
    try:
        assert computer.prepare() == "ok\n"
        assert computer.mounted.split()[0] == "ext4"
        if not has_md():
            message = (
                f"--create /dev/md/spotd --run --quiet --level=0 --raid-devices=2 {devices[0]}"
            )
            assert output.read_text() == f"{message} {devices[1]}\n"
    finally:
        if has_md():
            subprocess.run(["mdadm", "--quiet", "--stop", "/dev/md/spotd"], check=True)
        else:
            Path("/dev/md/spotd").unlink()
            Path("/dev/md").rmdir()


def test_a_raid_that_fails_is_told(computer: Computer, attach: Callable[..., str]) -> None:
    devices = [attach(), attach()]
    computer.disks(*devices)
    computer.programs["mdadm"] = "exit 1"
    assert computer.prepare() == f"RAID of {' '.join(devices)} failed\n"


def test_an_image_without_mdadm_is_told(computer: Computer, attach: Callable[..., str]) -> None:
    computer.disks(attach(), attach())
    computer.path = "/usr/bin:/bin"
    if shutil.which("mdadm", path=computer.path):
        pytest.fail("mdadm is expected in /usr/sbin")
    wipefs = shutil.which("wipefs", path="/usr/sbin:/sbin")
    computer.programs["wipefs"] = f'exec {wipefs} "$@"'
    assert computer.prepare() == "mdadm is missing\n"


@pytest.mark.parametrize(
    ("engines", "installs", "said", "asked"),
    [
        (("podman", "docker"), "podman", "ok", ""),
        (("docker",), "podman", "ok", ""),
        ((), "podman", "ok", "update install"),
        ((), "nothing", "podman cannot be installed", "update install"),
    ],
)
def test_a_machine_for_a_container_has_an_engine(
    computer: Computer, engines: tuple[str, ...], installs: str, said: str, asked: str
) -> None:
    """Of two commands of apt-get, the last words are the update and the package."""
    programs = computer.folder / "programs"
    log = computer.folder / "apt"
    log.touch()
    computer.path = _without(computer.folder / "bin", "podman", "docker", "apt-get")
    for name in engines:
        computer.programs[name] = "exit 0"
    computer.programs["apt-get"] = f"""
case " $* " in
*" update "*) echo update >>{log};;
*" install podman "*) echo install >>{log}; printf '#!/bin/sh' >{programs}/{installs}
    chmod 755 {programs}/{installs};;
esac"""
    assert computer.prepare() == "ok\n", "no job in a container"
    assert log.read_text() == ""
    computer.state.unlink()
    computer.needs = ("container",)
    assert computer.prepare() == f"{said}\n"
    assert log.read_text().split() == asked.split()


def _without(folder: Path, *names: str) -> str:
    """A folder with every program of this computer except these."""
    folder.mkdir()
    for program in [*Path("/usr/sbin").iterdir(), *Path("/usr/bin").iterdir()]:
        if program.name not in names and not (folder / program.name).is_symlink():
            (folder / program.name).symlink_to(program)
    return str(folder)


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        raise RuntimeError("shellcheck is missing: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
