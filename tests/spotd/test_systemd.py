"""The unit: systemd finds nothing wrong with it, and it agrees with the program it starts.

There is no unit for the node: the agent travels over SSH with each generation and is started there
detached, so that a machine needs nothing installed.
"""

from __future__ import annotations

import configparser
import re
import secrets
import subprocess
from pathlib import Path

import pytest

import spotd
from spotd.config.file import AccessSection
from spotd.daemon import daemon, loop
from spotd.security.secrets import KEY_NAME, load_key
from tests.fixtures.waiting import LIMIT_S

UNIT = Path(spotd.__file__).parent.parent / "systemd" / "spotd.service"


def service(section: str = "Service") -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser[section]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit as an installation has it: its program exists."""
    program = tmp_path / "spotd"
    program.symlink_to("/bin/true")
    copy = tmp_path / "spotd.service"
    words = UNIT.read_text().replace("/opt/spotd/bin/spotd", str(program))
    assert words != UNIT.read_text()
    copy.write_text(words)
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_verify_says_nothing(installed: Path) -> None:
    done = analyze("verify", "--man=no", str(installed))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verify_would_say_something(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("Type=notify", "Type=notfiy"))
    assert "notfiy" in analyze("verify", "--man=no", str(installed)).stderr


def test_it_is_locked_up_well(installed: Path) -> None:
    """An exposure of 1.2 at most: what is left is the network and the names of users."""
    done = analyze("security", "--offline=true", "--threshold=12", "--no-pager", str(installed))
    assert done.returncode == 0, done.stdout[-500:]
    weaker = installed.read_text().replace("DynamicUser=yes", "")
    installed.write_text(weaker.replace("CapabilityBoundingSet=", ""))
    done = analyze("security", "--offline=true", "--threshold=12", "--no-pager", str(installed))
    assert done.returncode != 0, "the threshold is one"


def test_the_users_of_spotctl_have_names() -> None:
    """In a user namespace SO_PEERCRED has 65534 for everybody: no record of who asked for what."""
    assert service().get("PrivateUsers", "no") == "no"
    assert service()["RuntimeDirectoryMode"] == "0750", "for the members of the group alone"


def test_its_head_makes_the_group_that_people_join() -> None:
    head = UNIT.read_text().split("[Unit]")[0]
    [useradd] = re.findall(r"^#\s+(useradd .*)$", head, re.MULTILINE)
    words = useradd.split()
    assert words[-1] == service()["User"] == service()["Group"]
    assert "--user-group" in words, "else DynamicUser refuses a user without a group of its name"
    assert f"groupadd --system {AccessSection().admins}" in head
    assert head.index("useradd") < head.index("usermod -aG spotd ") < head.index("enable --now")


def test_it_agrees_with_the_program() -> None:
    unit = service()
    assert unit["ExecStart"].split()[1:] == ["run", "--config", "/etc/spotd/config.toml"]
    assert unit["Type"] == "notify"
    longest_silence_s = daemon.WATCHDOG_EVERY_S + loop.LONGEST_WAIT_S
    assert int(unit["WatchdogSec"]) > 5 * longest_silence_s, "an idle daemon is not a hung one"
    # The loop, the duties and the calls in flight are each waited for; the API has five seconds.
    assert int(unit["TimeoutStopSec"]) > 3 * daemon.STOP_TIMEOUT_S + 10
    assert unit["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert unit["LoadCredential"].split(":")[0] == KEY_NAME


def test_it_waits_for_the_time_to_be_right() -> None:
    """A clock that is set ahead while spotd runs is doubted, one that was wrong before is not."""
    lines = UNIT.read_text().splitlines()
    for key in ("After", "Wants"):
        [value] = [line for line in lines if line.startswith(f"{key}=")]
        assert "time-sync.target" in value.split("=")[1].split()


def test_it_is_started_again_however_often_it_ends() -> None:
    """A database that is away ends every start at once: after a limit nobody would try again."""
    assert service()["Restart"] == "always"
    assert service("Unit")["StartLimitIntervalSec"] == "0"


def test_the_key_that_its_head_tells_to_make_is_one(tmp_path: Path) -> None:
    assert "openssl rand -hex 32" in UNIT.read_text()
    (tmp_path / KEY_NAME).write_text(secrets.token_hex(32) + "\n")  # what that prints
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert len(load_key(tmp_path / "state", environ, secrets.token_bytes)) == 32
