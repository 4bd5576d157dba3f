"""Users with keys of their own on a machine: let in, and put out at once when they are dismissed.

On the real OpenSSH server, and on that of a local cloud's machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from spotd.act.bundle import build_bundle
from spotd.act.link import SshLink
from spotd.act.node_link import LinkError
from spotd.act.ssh import Connection, SshAuthRefusedError, connect
from spotd.act.ssh_access import SIDE_BY_SIDE, SshAccess
from spotd.base.clock import SystemClock
from spotd.domain.fast_replace import changed
from spotd.domain.node import Node
from spotd.security.secrets import JobKeys, KeyPair, make_key_pair
from tests.fixtures import openssh, sshd
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.spotd.store.build import new_node

Login = Callable[[openssh.Machine, KeyPair], Connection]
LINK = SshLink(build_bundle())


def pair(seed: int) -> KeyPair:
    return make_key_pair(lambda count: bytes([seed]) * count)


ALICE, BOB = pair(7), pair(8)
KEYS = JobKeys.create(bytes)


@pytest.fixture(params=["openssh", "local"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[openssh.Machine]:
    """A machine that the daemon can log in to."""
    if request.param == "openssh":
        with openssh.machine(tmp_path) as machine:
            yield machine
    else:
        with sshd.machine(tmp_path / "home") as local:
            yield local  # type: ignore[misc]


@pytest.fixture
def login() -> Iterator[Login]:
    """Logs in; ends every login with the test."""
    made: list[Connection] = []

    def log_in(machine: openssh.Machine, key: KeyPair) -> Connection:
        made.append(connect(machine.address, key.private, LIMIT_S))
        return made[-1]

    yield log_in
    for connection in made:
        connection.close()
        connection.transport.join(LIMIT_S)


def node_of(machine: openssh.Machine) -> Node:
    address = machine.address
    where = {"host": address.host, "port": address.port, "ssh_user": address.user}
    return changed(new_node(token=sshd.TOKEN), **where)


def admit(machine: openssh.Machine, user: str, key: KeyPair) -> None:
    LINK.admit(node_of(machine), machine.keys, user, key.public, LIMIT_S)


def dismiss(machine: openssh.Machine, user: str) -> None:
    LINK.dismiss(node_of(machine), machine.keys, user, LIMIT_S)


def lines(machine: openssh.Machine) -> list[str]:
    return (machine.home / ".ssh" / "authorized_keys").read_text().splitlines()


@pytest.mark.root
def test_who_is_dismissed_is_out_at_once_and_stays_out(
    there: openssh.Machine, login: Login
) -> None:
    with pytest.raises(SshAuthRefusedError):
        login(there, ALICE)
    admit(there, "alice", ALICE)
    admit(there, "bob", BOB)
    busy = login(there, ALICE)
    assert busy.run("echo $HOME").status == 0
    busy.open_channel("cat", LIMIT_S)  # ends with its channel
    idle = login(there, ALICE)  # could open a shell at any time
    dismiss(there, "alice")
    wait_until("both connections to end", lambda: not busy.open and not idle.open, LIMIT_S)
    with pytest.raises(SshAuthRefusedError):
        login(there, ALICE)
    # Others, and the daemon itself, get in as before.
    login(there, BOB)
    dismiss(there, "alice")
    admit(there, "alice", ALICE)
    login(there, ALICE)


@pytest.mark.root
def test_what_a_dismissed_user_runs_on_a_real_machine_ends(tmp_path: Path, login: Login) -> None:
    with openssh.machine(tmp_path) as machine:
        admit(machine, "alice", ALICE)
        alice = login(machine, ALICE)
        alice.open_channel("sleep 4321", LIMIT_S)
        wait_until("it to run", lambda: "sleep 4321" in machine.commands(), LIMIT_S)
        dismiss(machine, "alice")
        wait_until("it to end", lambda: "sleep 4321" not in machine.commands(), LIMIT_S)
        assert any("[listener]" in words for words in machine.commands())


@pytest.mark.root
def test_a_login_forwards_nothing(tmp_path: Path, login: Login) -> None:
    with openssh.machine(tmp_path) as machine:
        admit(machine, "alice", ALICE)
        alice = login(machine, ALICE)
        where = ("127.0.0.1", machine.port)
        with pytest.raises(paramiko.ChannelException):
            alice.transport.open_channel("direct-tcpip", where, where, timeout=LIMIT_S)


def test_keys_of_a_user_do_not_pile_up(tmp_path: Path) -> None:
    with sshd.machine(tmp_path / "home") as machine:
        admit(machine, "bob", BOB)  # type: ignore[arg-type]
        for seed in range(20, 30):
            admit(machine, "alice", pair(seed))  # type: ignore[arg-type]
        found = lines(machine)  # type: ignore[arg-type]
        assert len(found) == 9
        assert pair(29).public in found[-1]
        assert sum(line.endswith(" spotd-user:alice") for line in found) == 8


class Crowd:
    """Machines that answer, or not, once all that may be asked at once are asked; and their store,
    in which each lets two in."""

    def __init__(self, count: int) -> None:
        self.machines = [replace(new_node(), id=f"n{at}") for at in range(count)]
        self.nodes = self.users = self  # the repositories that are asked
        self.asked = threading.Barrier(count)
        self.dismissed: set[tuple[str, str]] = set()

    def admitted_though_disabled(self) -> list[tuple[str, str]]:
        return [(node.id, user) for node in self.machines for user in ("alice", "bob")]

    def find(self, ids: Sequence[str]) -> list[Node]:
        return [node for node in self.machines if node.id in ids]

    def record_dismissed(self, node_id: str, user: str, _at_us: int) -> None:
        self.dismissed.add((node_id, user))

    def dismiss(self, node: Node, _keys: object, user: str, _deadline_s: float) -> None:
        if user == "alice":
            self.asked.wait(LIMIT_S)
        if node.id == "n3":
            raise LinkError("no route")


def test_dead_machines_keep_nobody_from_the_others() -> None:
    crowd = Crowd(SIDE_BY_SIDE)
    visitors = SshAccess(crowd, lambda _job: KEYS, SystemClock())  # type: ignore[arg-type]
    found = visitors.end_access_of_disabled_users(crowd)  # type: ignore[arg-type]
    assert found == {node.id: "" for node in crowd.machines} | {"n3": "no route"}
    assert crowd.dismissed == {pair for pair in crowd.admitted_though_disabled() if pair[0] != "n3"}


@pytest.mark.parametrize(
    ("user", "key"),
    [
        ("alice\nssh-ed25519 AAAA x", ALICE.public),
        ("alice bob", ALICE.public),
        ("", ALICE.public),
        ("alice", f"{ALICE.public}\n{BOB.public}"),
        ("alice", f'command="x" {ALICE.public}'),
        ("alice", "ssh-rsa AAAA"),
    ],
)
def test_nothing_else_gets_into_the_file(tmp_path: Path, user: str, key: str) -> None:
    with sshd.machine(tmp_path / "home") as machine:
        with pytest.raises(LinkError, match="admit failed"):
            LINK.admit(node_of(machine), machine.keys, user, key, LIMIT_S)  # type: ignore[arg-type]
        assert not (machine.home / ".ssh" / "authorized_keys").exists()
