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
    """The user's own ssh agent, with the key for the jump host."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_for("the agent", socket.exists, LIMIT_S)
        environment = {"SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", "-"], input=key.encode(), env=environment, check=True)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def access_and_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Access, Path]]:
    """The daemon's reply and the user's ssh agent."""
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
        timeout=LIMIT_S,
        check=False,
    )


def test_user_passes_the_jump_host_with_own_keys(
    access_and_agent: tuple[Access, Path], tmp_path: Path
) -> None:
    access, socket = access_and_agent
    done = run(access, socket, tmp_path)
    assert (done.stdout, done.returncode) == ("here\n", 0), done.stderr


@pytest.mark.parametrize("whose", ["the machine's", "the jump host's"])
def test_both_host_keys_are_pinned(
    access_and_agent: tuple[Access, Path], tmp_path: Path, whose: str
) -> None:
    access, socket = access_and_agent
    wrong = {"host_public_key": STRANGER.user.public}
    if whose == "the machine's":
        access = access | wrong
    else:
        access = access | {"jump": access["jump"] | wrong}
    done = run(access, socket, tmp_path)
    assert done.returncode == 255
    assert done.stdout == ""
    assert "Host key verification failed" in done.stderr


def test_remote_user_goes_through_the_box(
    access_and_agent: tuple[Access, Path], tmp_path: Path
) -> None:
    arguments = ssh_arguments(access_and_agent[0], tmp_path, "me@box")
    [proxy] = [argument for argument in arguments if argument.startswith("ProxyCommand=")]
    assert " -J me@box " in proxy
    assert not [argument for argument in arguments if argument.startswith("ProxyJump=")]
