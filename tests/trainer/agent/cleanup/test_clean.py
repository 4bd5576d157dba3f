"""Cleaning a disk before an image is made: no secret stays, and no other disk is touched.

The machine is a folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotd.act.bundle import build_bundle
from tests.fixtures.waiting import LIMIT_S
from trainer.agent.cleanup import clean as cleaning
from trainer.agent.cleanup import wipe as wiping
from trainer.agent.cleanup.clean import CleanError, CleanReport, check_rented, clean

SECRET = b"planted-3f9c1e-secret"
# Where a machine has secrets, and what is its own; each is planted with SECRET in it.
PLANTED = (
    "root/.ssh/authorized_keys",
    "root/.bash_history",
    "root/.aws/credentials",
    "home/spotd/.ssh/authorized_keys",
    "home/spotd/.ssh/id_ed25519",
    "home/spotd/.ssh/.spotd-authorized_keys",
    "home/spotd/.netrc",
    "home/spotd/.spotd/job/g1/journal.jsonl",
    "home/spotd/.spotd/job/g1/logs/r0.out",
    "home/spotd/.spotd/job/g1/workdir/deep/.env",
    "home/spotd/.spotd/packages/ab.tar.gz",
    "home/spotd/.python_history",
    "home/spotd/.cache/huggingface/token",
    "home/spotd/.docker/config.json",
    "home/spotd/.config/gcloud/credentials.db",
    "home/gone/.git-credentials",
    "srv/alice/.ssh/id_rsa",
    "etc/ssh/ssh_host_ed25519_key",
    "etc/ssh/ssh_host_rsa_key",
    "etc/machine-id",
    "var/lib/dbus/machine-id",
    "var/lib/systemd/random-seed",
    "var/lib/cloud/instances/i-1/user-data.txt",
    "var/lib/cloud/data/instance-id",
    "var/lib/waagent/ovf-env.xml",
    "var/lib/waagent/ABCD.prv",
    "var/lib/amazon/ssm/Vault/Store/RegistrationKey",
    "var/lib/dhcp/dhclient.leases",
    "var/log/cloud-init-output.log",
    "var/log/cloud-init.log",
    "var/log/auth.log",
    "var/log/journal/0123/system.journal",
    "var/log/apt/term.log",
    "var/log/syslog.2.gz",
    "tmp/setup.sh",
    "tmp/.hidden/x",
    "var/tmp/y",
    "var/crash/core",
    "var/mail/spotd",
    "var/lib/spotd/scratch/token",
)
STAYS = (
    "home/spotd/.bashrc",
    "home/spotd/.cache/pip/wheel",
    "home/spotd/.local/lib/torch.py",
    "home/spotd/.config/other",
    "opt/conda/bin/python",
    "usr/lib/x.so",
    "etc/passwd",
    "etc/ssh/sshd_config",
    "var/lib/cloud/seed/nocloud/meta-data",
    "var/lib/docker/layer",
    "root/.profile",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "disk"
    for name in PLANTED:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a=" + SECRET + b"\n")
    for name in STAYS:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"stays\n")
    (root / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/bash\nalice:x:1001:1001::/srv/alice:/bin/sh\nodd\nsync:x:4:65534::/:/\n"
    )
    return root


def scrub(root: Path) -> CleanReport:
    return clean(root, root / "home/spotd/.spotd", run=lambda _argv, _limit_s: None)


def holding(root: Path) -> list[str]:
    """Return the files that still contain the secret."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(root)) for path in files if SECRET in path.read_bytes()]


def test_none_of_the_planted_secrets_remains_and_the_rest_does(root: Path) -> None:
    assert len(holding(root)) == len(PLANTED)
    cleaned = scrub(root)
    assert cleaned.failed == []
    assert holding(root) == []
    assert [name for name in STAYS if not (root / name).is_file()] == []
    assert (root / "etc/passwd").read_text().startswith("root:")
    # What has to be there for whoever writes to it, or looks for it.
    for folder in ("tmp", "var/tmp", "var/lib/cloud", "var/lib/waagent", "var/log/journal"):
        assert (root / folder).is_dir(), folder
    assert (root / "etc/machine-id").read_bytes() == b""
    assert (root / "var/log/auth.log").read_bytes() == b""
    again = scrub(root)
    assert (again.removed, again.blanked, again.failed) == (0, 0, [])


def test_what_is_removed_is_overwritten_on_the_disk(root: Path) -> None:
    """An image contains the blocks of removed files as well."""
    held = {name: os.open(root / name, os.O_RDONLY) for name in PLANTED}
    scrub(root)
    for name, descriptor in held.items():
        assert SECRET not in os.read(descriptor, 1000), name
        os.close(descriptor)


def test_what_stays_empty_is_overwritten_as_well(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, truncate = {}, os.truncate

    def note(path: Path, size: int) -> None:
        before[str(path.relative_to(root))] = path.read_bytes()
        truncate(path, size)

    monkeypatch.setattr(os, "truncate", note)
    scrub(root)
    assert {"etc/machine-id", "var/log/auth.log"} < before.keys()
    assert {data.strip(b"\0") for data in before.values()} == {b""}


def test_of_a_large_file_the_beginning_is_overwritten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "OVERWRITTEN_BYTES", 3)
    with (root / "tmp/setup.sh").open("rb") as held:
        scrub(root)
        assert held.read(4) == bytes(3) + SECRET[1:2]
    assert not (root / "tmp/setup.sh").exists()


def test_another_name_of_a_file_keeps_what_is_in_it(root: Path) -> None:
    wheel = root / "home/spotd/.cache/pip/wheel"
    os.link(wheel, root / "home/spotd/.spotd/job/g1/workdir/wheel")
    scrub(root)
    assert wheel.read_bytes() == b"stays\n"


def test_links_are_removed_and_never_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "gcloud").mkdir(parents=True)
    for path in (elsewhere / "mine", elsewhere / "gcloud" / "mine"):
        path.write_bytes(SECRET)
    (root / "tmp" / "link").symlink_to(elsewhere)
    (root / "home/spotd/.kube").symlink_to(elsewhere)
    (root / "var/log/link.log").symlink_to(elsewhere / "mine")
    (root / "home/bob").mkdir()
    (root / "home/bob/.config").symlink_to(elsewhere)  # what is behind it is another disk's
    assert scrub(root).failed == []
    assert (elsewhere / "mine").read_bytes() == (elsewhere / "gcloud/mine").read_bytes() == SECRET
    assert not (root / "home/spotd/.kube").is_symlink()
    assert not (root / "tmp/link").is_symlink()


def test_a_home_that_is_a_link_to_another_place_of_the_disk_is_cleaned_there(root: Path) -> None:
    (root / "data/carol/.ssh").mkdir(parents=True)
    (root / "data/carol/.ssh/id_rsa").write_bytes(SECRET)
    (root / "home/carol").symlink_to(root / "data/carol")
    scrub(root)
    assert holding(root) == []


@pytest.mark.parametrize(
    "mount", ["var/lib/spotd", "tmp", "home/spotd/.spotd/job/g1/workdir", "var/log/journal"]
)
def test_what_is_mounted_is_another_disks_and_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch, mount: str
) -> None:
    monkeypatch.setattr(cleaning, "mount_points", lambda: {Path("/"), root / mount})
    expected = [name for name in holding(root) if name.startswith(f"{mount}/")]
    assert expected
    assert scrub(root).failed == []
    assert sorted(holding(root)) == sorted(expected)


def test_what_cannot_be_removed_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "id_ed25519":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    cleaned = scrub(root)
    keys = root / "home/spotd/.ssh"
    assert cleaned.failed[0] == f"{keys}/id_ed25519: Operation not permitted"
    assert cleaned.to_data()["failures"] == len(cleaned.failed) == 2  # and the folder
    assert not (root / "etc/ssh/ssh_host_rsa_key").exists(), "the rest is done all the same"


def test_nothing_is_done_while_an_agent_is_at_work(root: Path) -> None:
    lock = root / "home/spotd/.spotd/job/g1/agent.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CleanError, match=r"an agent is running in .*/job/g1: stop it first"):
            scrub(root)
    assert len(holding(root)) == len(PLANTED)


def test_who_writes_there_is_stopped_first_and_free_blocks_are_given_back_last(root: Path) -> None:
    ran: list[tuple[str, bool]] = []

    def run(argv: Sequence[str], _limit_s: float) -> None:
        ran.append((" ".join(argv[:2]), bool(holding(root))))

    clean(root, root / "home/spotd/.spotd", run=run)
    assert ran == [
        ("systemctl stop", True),
        ("journalctl --relinquish-var", True),
        ("fstrim --all", False),
    ]
    assert "walinuxagent" in cleaning.STOPPED_SERVICES


def test_it_is_for_machines_that_were_rented_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, namespace = tmp_path / "prepared", tmp_path / "pid"
    mark.write_text("ok\n")
    namespace.write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CleanError, match="run it with `sudo -n`"):
        check_rented({}, mark, namespace)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for environ, file in (({}, None), ({}, tmp_path / "no"), ({"SPOTD_LOCAL_INSTANCE": "1"}, mark)):
        with pytest.raises(CleanError, match="was not prepared by spotd"):
            check_rented(environ, file, namespace)
    with pytest.raises(CleanError, match="this is a container, not a machine"):
        check_rented({}, mark, namespace)
    monkeypatch.setattr(cleaning, "_PID_NAMESPACE", namespace.stat().st_ino)
    check_rented({}, mark, namespace)


def test_the_command_touches_nothing_here() -> None:
    """This computer was not prepared by spotd and must not be cleaned."""
    command = [sys.executable, "-m", "trainer.node", "clean", "--home", "/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("spot-node clean: ")
    assert "{" not in done.stdout


def test_the_page_lists_what_goes() -> None:
    text = (Path(__file__).parents[4] / "docs/images.md").read_text()
    named = (*cleaning.HOME_REMOVED, *cleaning.REMOVED, *cleaning.EMPTIED, cleaning.CLOUD_INIT)
    assert [name for name in (*named, *cleaning.TRUNCATED) if f"`{name}`" not in text] == []


def test_data_is_what_the_daemon_can_read() -> None:
    data = CleanReport(3, 2, [f"/x{n}: no" for n in range(30)]).to_data()
    assert json.loads(json.dumps(data))["failures"] == 30
    assert len(data["failed"]) == 20
    assert wiping.mount_points()


def test_the_program_may_lie_in_what_it_removes(root: Path) -> None:
    """The program is one file in the agent's own folder."""
    program = root / "home/spotd/.spotd/bundles/node.pyz"
    program.parent.mkdir(parents=True)
    program.write_bytes(build_bundle().data)
    script = (
        f"import sys; sys.path.insert(0, {str(program)!r})\n"
        "import trainer.node as node, trainer.agent.cleanup.clean as cleaning\n"
        "from pathlib import Path\n"
        "cleaning.check_rented = lambda *_: None\n"
        f"real, root = cleaning.clean, Path({str(root)!r})\n"
        "cleaning.clean = lambda _, home: real(root, home, lambda *_: None)\n"
        "raise SystemExit(node.main(['clean', '--home', str(root / 'home/spotd/.spotd')]))\n"
    )
    command = ["/usr/bin/python3", "-I", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cleaned"]["failures"] == 0
    assert not program.exists()
    assert holding(root) == []
