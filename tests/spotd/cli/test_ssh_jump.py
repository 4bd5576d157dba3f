"""`spotctl ssh` to a machine behind a jump host, with the OpenSSH client itself. Needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spotd.cli.ssh import ssh_arguments
from spotd.demo.box import wait_for
from tests.fixtures import jump as rig
from tests.fixtures import netns, sshd
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.root

JOB = sshd.keys()
STRANGER = sshd.keys(9)
Access = dict[str, Any]


@contextmanager
def agent(key: str, socket: Path) -> Iterator[None]:
    """The user's own, which has their key for the jump host."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_for("the agent", socket.exists, LIMIT_S)
        there = {"SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", "-"], input=key.encode(), env=there, check=True)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Access, Path]]:
    """What the daemon answers, and the user's agent."""
    folder = tmp_path_factory.mktemp("jump")
    with (
        netns.network() as network,
        rig.jump_host(network, folder / "jump") as jump,
        rig.private_server(jump, folder / "node", JOB) as node,
        agent(jump.server.keys.user.private, folder / "agent"),
    ):
        known = {"host_public_key": jump.host.address.host_public_key}
        access = {
            "host": str(jump.private.network[2]),
            "port": 22,
            "user": "root",
            "private_key": JOB.user.private,
            "host_public_key": node.host_key.public,
            "jump": {"host": jump.cable.host, "port": 22, **known},
        }
        yield access, folder / "agent"


def run(access: Access, socket: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ssh_arguments(access, folder, ""), "echo here"],
        env={"SSH_AUTH_SOCK": str(socket), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_user_goes_through_it_with_keys_of_their_own(
    place: tuple[Access, Path], tmp_path: Path
) -> None:
    access, socket = place
    done = run(access, socket, tmp_path)
    assert (done.stdout, done.returncode) == ("here\n", 0), done.stderr


@pytest.mark.parametrize("whose", ["the machine's", "the jump host's"])
def test_both_have_to_prove_themselves(
    place: tuple[Access, Path], tmp_path: Path, whose: str
) -> None:
    access, socket = place
    wrong = {"host_public_key": STRANGER.user.public}
    if whose == "the machine's":
        access = access | wrong
    else:
        access = access | {"jump": access["jump"] | wrong}
    done = run(access, socket, tmp_path)
    assert done.returncode == 255
    assert done.stdout == ""
    assert "Host key verification failed" in done.stderr


def test_from_afar_the_way_goes_by_the_box(place: tuple[Access, Path], tmp_path: Path) -> None:
    words = ssh_arguments(place[0], tmp_path, "me@box")
    [proxy] = [word for word in words if word.startswith("ProxyCommand=")]
    assert " -J me@box " in proxy
    assert not [word for word in words if word.startswith("ProxyJump=")]
