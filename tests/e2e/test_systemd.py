"""The unit under a real systemd, in a container of this machine: one boot for all tests.

Each test leaves spotd running. What the unit says by itself, tests/spotd/test_systemd.py looks at.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator

import pytest

from spotd.base.errors import ExitCode
from spotd.daemon.daemon import WATCHDOG_EVERY_S
from spotd.daemon.loop import LONGEST_WAIT_S
from tests.fixtures.nspawn import CHECKOUT, Container, booted
from tests.fixtures.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.xdist_group("nspawn")]

UNIT = "spotd.service"
SOCKET = "/run/spotd/spotd.sock"
WEBHOOK = "https://hooks.slack.com/services/T0/B0/canary-in-a-credential"
USERS = {"alice": "spotd,spotd-admin", "viola": "spotd", "mallory": "", "otto": "spotd-admin"}
CONFIG = """\
[providers.here]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "aws"
token_file = "/etc/spotd/token"

[alerts.routes.team]
kind = "slack"
url_credential = "slack"
"""
# As `systemctl edit spotd` would write it. A watchdog of a minute is too long for a test; an idle
# daemon is silent for half of this.
WATCHDOG_S = 2 * (WATCHDOG_EVERY_S + LONGEST_WAIT_S)
DROP_IN = f"""\
[Service]
WatchdogSec={WATCHDOG_S}
LoadCredential=slack:/etc/spotd/slack
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A control box with spotd installed as the head of the unit tells."""
    files = tmp_path_factory.mktemp("nspawn") / "files"
    unit = files / "etc/systemd/system" / UNIT
    unit.parent.mkdir(parents=True)
    unit.write_text((CHECKOUT / "systemd" / UNIT).read_text())
    with booted(files) as machine:
        install(machine)
        yield machine


def install(machine: Container) -> None:
    machine.run("useradd", "--system", "--user-group", "--no-create-home", "spotd")
    machine.run("groupadd", "--system", "spotd-admin")
    for name, groups in USERS.items():
        machine.run("useradd", "--user-group", "--no-create-home", "-G", groups, name)
    machine.write("/etc/spotd/config.toml", CONFIG)
    machine.write("/etc/spotd/token", "token")
    machine.write("/etc/spotd/key", secrets.token_hex(32), "0600")
    machine.write("/etc/spotd/slack", WEBHOOK, "0600")
    machine.write(f"/etc/systemd/system/{UNIT}.d/test.conf", DROP_IN)
    machine.run("systemctl", "daemon-reload")


@pytest.fixture
def spotd(box: Container) -> Container:
    """The box with spotd up: `systemctl start` of what runs already does nothing."""
    box.run("systemctl", "start", UNIT)
    return box


def main_pid(box: Container) -> str:
    return box.show(UNIT, "MainPID")


def started_again(box: Container, before: str) -> Callable[[], bool]:
    """Whether another process than `before` is up and has said that it is ready."""

    def look() -> bool:
        return box.show(UNIT, "ActiveState") == "active" and main_pid(box) not in ("0", before)

    return look


def ctl(box: Container, user: str, *words: str) -> tuple[int, str]:
    """Exit code and output of spotctl as `user`."""
    done = box.run("/opt/spotd/bin/spotctl", *words, user=user, check=False)
    return done.returncode, done.stdout + done.stderr


def good(box: Container, user: str, *words: str) -> str:
    """The output of a command that succeeds; else what the daemon has to say of it."""
    code, said = ctl(box, user, *words)
    assert code == 0, said + box.journal(UNIT)[-4000:]
    return said


def test_it_is_ready_when_its_start_is_over(box: Container) -> None:
    done = box.run("systemctl", "start", UNIT, check=False)
    assert done.returncode == 0, box.journal(UNIT)
    code, said = ctl(box, "alice", "ps")
    assert code == 0, said
    assert box.show(UNIT, "StatusErrno") == "0"
    assert box.show(UNIT, "NRestarts") == "0"


def test_its_socket_is_for_its_group_alone(spotd: Container) -> None:
    mode = "%a %U:%G"
    assert spotd.run("stat", "-c", mode, SOCKET).stdout.split() == ["660", "spotd:spotd"]
    folders = spotd.run("stat", "-c", mode, "/run/spotd", "/var/lib/private/spotd").stdout
    assert folders.splitlines() == ["750 spotd:spotd", "700 spotd:spotd"]
    for stranger in ("mallory", "otto"):
        code, said = ctl(spotd, stranger, "ps")
        assert code == ExitCode.AUTH, said
        assert "usermod -aG spotd" in said


def test_who_looks_and_who_changes_things_are_two_groups(spotd: Container) -> None:
    """As the kernel names them through the socket, and on record."""
    spotd.write("/opt/job.yaml", "name: nightly\nresources: {cpus: 1+}\nrun: 'true'\n")
    run = ("run", "/opt/job.yaml", "--detach")
    code, said = ctl(spotd, "viola", *run)
    assert code == ExitCode.AUTH, said
    assert "viola may read but not change anything" in said
    good(spotd, "alice", *run)
    assert "nightly" in ctl(spotd, "viola", "ps")[1]
    good(spotd, "alice", "cancel", "nightly")
    code, said = ctl(spotd, "viola", "audit", "-o", "json")
    items = [(item["user"], item["action"], item["outcome"]) for item in json.loads(said)["items"]]
    assert items == [
        ("viola", "run", "refused"),
        ("alice", "run", "done"),
        ("alice", "cancel", "done"),
    ]
    # A group that is left counts at once, without a new login.
    spotd.run("gpasswd", "-d", "alice", "spotd-admin")
    assert ctl(spotd, "alice", *run)[0] == ExitCode.AUTH
    spotd.run("gpasswd", "-a", "alice", "spotd-admin")


def test_a_disabled_user_is_out_at_once(spotd: Container) -> None:
    """By the uid that the kernel names, whatever groups it has; and root alone may do it here."""
    good(spotd, "alice", "ps")
    assert ctl(spotd, "viola", "user", "disable", "alice")[0] == ExitCode.AUTH
    good(spotd, "root", "user", "disable", "alice")
    code, said = ctl(spotd, "alice", "ps")
    assert code == ExitCode.AUTH
    assert "alice is disabled" in said
    good(spotd, "viola", "ps")
    good(spotd, "root", "user", "enable", "alice")
    good(spotd, "alice", "ps")


def test_its_secrets_come_as_credentials(spotd: Container) -> None:
    """The files belong to root, spotd cannot open them, and no other key was made."""
    pid = main_pid(spotd)
    for name in ("key", "slack"):
        done = spotd.run("cat", f"/etc/spotd/{name}", user="spotd", check=False)
        assert "Permission denied" in done.stderr
    held = spotd.run("ls", f"/proc/{pid}/root/run/credentials/{UNIT}").stdout.split()
    assert held == ["slack", "spotd-key"]
    assert "spotd-key" not in spotd.run("ls", "/var/lib/private/spotd").stdout
    environ = spotd.run("cat", f"/proc/{pid}/environ", f"/proc/{pid}/cmdline").stdout
    assert "canary" not in environ + spotd.journal(UNIT)


def test_its_master_key_is_changed_under_it(spotd: Container) -> None:
    """As docs/security.md tells: the next key is a credential too, and then becomes the key."""
    spotd.write("/opt/token", "a secret")
    keep = ("sh", "-c", "/opt/spotd/bin/spotctl secret set A < /opt/token")
    spotd.run(*keep, user="alice")
    spotd.write("/etc/spotd/key-next", secrets.token_hex(32), "0600")
    extra = "[Service]\nLoadCredential=spotd-key-next:/etc/spotd/key-next\n"
    spotd.write(f"/etc/systemd/system/{UNIT}.d/next.conf", extra)
    spotd.run("systemctl", "daemon-reload")
    spotd.run("systemctl", "restart", UNIT)
    good(spotd, "alice", "secret", "rotate")
    # It goes on with either name of it, and the old key does not open the database any more.
    spotd.run("systemctl", "restart", UNIT)
    spotd.run("cp", "/etc/spotd/key", "/etc/spotd/key-old")
    spotd.run("mv", "/etc/spotd/key-next", "/etc/spotd/key")
    spotd.run("rm", f"/etc/systemd/system/{UNIT}.d/next.conf")
    spotd.run("systemctl", "daemon-reload")
    spotd.run("systemctl", "restart", UNIT)
    assert good(spotd, "alice", "secret", "ls").count("alice") == 1


def test_it_runs_locked_up(spotd: Container) -> None:
    """The kernel's own words about the process, not the unit's."""
    words = spotd.run("cat", f"/proc/{main_pid(spotd)}/status").stdout.splitlines()
    status = dict(line.split(":\t", 1) for line in words)
    assert {status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "0" not in status["Uid"].split()


def test_a_hung_one_is_killed_and_started_again(spotd: Container) -> None:
    pid, restarts = main_pid(spotd), int(spotd.show(UNIT, "NRestarts"))
    spotd.run("kill", "-STOP", pid)
    wait_until("the watchdog bites", started_again(spotd, pid))
    assert int(spotd.show(UNIT, "NRestarts")) == restarts + 1
    assert "Watchdog timeout" in spotd.journal(UNIT)
    good(spotd, "alice", "ps")


def test_a_crashed_one_is_started_again(spotd: Container) -> None:
    pid, restarts = main_pid(spotd), int(spotd.show(UNIT, "NRestarts"))
    spotd.run("kill", "-KILL", pid)
    wait_until("it is up again", started_again(spotd, pid))
    assert int(spotd.show(UNIT, "NRestarts")) == restarts + 1
    good(spotd, "alice", "ps")


def status(box: Container) -> str:
    """What spotd says of itself in `systemctl status`."""
    return box.show(UNIT, "StatusText")


def reloaded(box: Container, config: str, words: str) -> None:
    """`systemctl reload` with another configuration, of which spotd says that."""
    pid = main_pid(box)
    box.write("/etc/spotd/config.toml", config)
    box.run("systemctl", "reload", UNIT)
    wait_until(words, lambda: words in status(box))
    wait_until("the reload to be over", lambda: box.show(UNIT, "ActiveState") == "active")
    assert main_pid(box) == pid


def test_its_configuration_is_read_anew(spotd: Container) -> None:
    """And a wrong one changes nothing, which whoever looks is told."""
    good(spotd, "viola", "ps")
    stricter = CONFIG + '[access]\nviewers = "spotd-admin"\n'
    reloaded(spotd, stricter, "was read again: access.viewers")
    assert ctl(spotd, "viola", "ps")[0] == ExitCode.AUTH
    good(spotd, "alice", "ps")
    refused = "the configuration was not applied"
    reloaded(spotd, CONFIG + "[limits]\nmax_nodes = 0\n", f"{refused}, the one before stays in")
    assert "limits.max_nodes" in status(spotd)
    assert refused in spotd.journal(UNIT)
    assert ctl(spotd, "viola", "ps")[0] == ExitCode.AUTH, "the one before stays in force"
    elsewhere = f'state_dir = "/tmp/x"\n{CONFIG}'
    reloaded(spotd, elsewhere, "state_dir: cannot change while spotd runs")
    reloaded(spotd, CONFIG, "was read again: access.viewers")
    good(spotd, "viola", "ps")
    assert "canary" not in spotd.journal(UNIT)


def test_it_stops_by_itself_when_it_is_told(spotd: Container) -> None:
    bitten = spotd.journal(UNIT).count("Watchdog timeout")
    spotd.run("systemctl", "stop", UNIT)
    assert spotd.journal(UNIT).count("Watchdog timeout") == bitten, "of the one that hung alone"
    assert spotd.show(UNIT, "Result") == "success"
    assert spotd.show(UNIT, "ExecMainStatus") == "0"
    assert "stopped" in spotd.journal(UNIT)
    assert spotd.run("ls", "/run/spotd", check=False).returncode != 0
    assert ctl(spotd, "alice", "ps")[0] == ExitCode.UNREACHABLE
    spotd.run("systemctl", "start", UNIT)
    good(spotd, "alice", "ps")
