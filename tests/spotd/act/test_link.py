"""What the daemon tells a node: over real SSH, to the real agent."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from providers.stores.base import NotFoundError
from providers.stores.local import LocalStore
from spotd.act.bundle import Bundle, build_bundle
from spotd.act.link import LOADER_COMMAND, SshLink, address_of, node_command
from spotd.act.node_link import LinkError
from spotd.base.log import redactor
from spotd.domain.fast_replace import changed
from spotd.security.secrets import host_key
from spotd.wire import SAVE, AgentConfig, Command
from tests.fixtures import processes, sshd
from tests.fixtures.local_cloud import KeyPair
from tests.fixtures.search import files_with
from tests.fixtures.station import Station, station
from tests.fixtures.waiting import wait_until

CONFIG = AgentConfig("d0", "j1", 1, 0, "t-1", "none")
SECRET = "canary-7f3a"
CALL_S = 30.0


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return build_bundle()


@pytest.fixture
def here(tmp_path: Path, bundle: Bundle) -> Iterator[Station]:
    with station(tmp_path, bundle) as found:
        yield found


def bundles(here: Station) -> list[Path]:
    return list((here.machine.home / ".spotd" / "bundles").iterdir())


@pytest.mark.req("RPV-14")
def test_booting_twice_is_booting_once(here: Station) -> None:
    node = here.boot()
    agents = processes.carrying("HOME", str(here.machine.home))
    here.link.boot(node, here.keys, replace(CONFIG, heartbeat_s=0.2), CALL_S)
    assert processes.carrying("HOME", str(here.machine.home)) == agents
    [stored] = bundles(here)
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == stored.stem
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700


def test_a_damaged_bundle_is_not_kept(here: Station) -> None:
    node = here.enlist()
    good = here.link.bundle
    damaged = SshLink(Bundle(good.data[:-1] + b"?", good.digest))
    with pytest.raises(LinkError, match="arrived damaged"):
        damaged.boot(node, here.keys, CONFIG, CALL_S)
    assert not (here.machine.home / ".spotd" / "bundles").exists()
    here.link.boot(node, here.keys, CONFIG, CALL_S)


def with_python(here: Station, script: str) -> None:
    """Restart the machine's SSH server with this as its only python3 (none: no python3)."""
    tools = here.machine.home / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    if script:
        (tools / "python3").write_text(script)
        (tools / "python3").chmod(0o755)
    port = here.machine.port
    here.machine.close()
    here.machine = sshd.start(here.machine.home, port, path=str(tools))


def test_a_machine_without_python(here: Station) -> None:
    with_python(here, "")
    with pytest.raises(LinkError, match=r"no python3; choose an image with Python 3\.10 or newer"):
        here.link.boot(here.enlist(), here.keys, CONFIG, CALL_S)


def test_a_machine_whose_python_is_too_old(here: Station) -> None:
    """A real interpreter that says it is 3.9."""
    old = "import sys; sys.version_info = (3, 9, 2); sys.version = '3.9.2 (x)'; exec(sys.argv[1])"
    with_python(here, f'#!/bin/sh\nexec {sys.executable} -c "{old}" "$2"\n')
    with pytest.raises(LinkError, match=r"needs Python 3\.10 or newer, this is 3\.9\.2"):
        here.link.boot(here.enlist(), here.keys, CONFIG, CALL_S)


def test_a_configuration_that_the_agent_refuses(here: Station) -> None:
    with pytest.raises(LinkError, match="the agent did not start: exit 1"):
        here.link.boot(here.enlist(), here.keys, replace(CONFIG, job_id="../x"), CALL_S)


def test_a_secret_that_the_cut_runs_through_is_hidden(here: Station) -> None:
    """What a machine says last is told; what a cut leaves of a secret would look like none."""
    redactor.register(SECRET)
    rest = "." * (400 - len(SECRET) // 2)
    with_python(here, f"#!/bin/sh\necho '{SECRET}{rest}' >&2\nexit 1\n")
    with pytest.raises(LinkError) as caught:
        here.link.boot(here.enlist(), here.keys, CONFIG, CALL_S)
    assert rest in str(caught.value)
    assert SECRET[-4:] not in str(caught.value)


def test_a_command_and_its_reply(here: Station) -> None:
    node = here.boot()
    reply = here.link.send(node, here.keys, Command(SAVE, 1), CALL_S)
    assert reply.ok or reply.error
    wrong = here.link.send(node, here.keys, Command(SAVE, 7), CALL_S)
    assert not wrong.ok
    assert wrong.error


def test_a_key_that_the_cloud_told_is_the_one_that_counts(here: Station) -> None:
    """Where the machine makes its own, ours is nobody's; and another than was told is refused."""
    node = here.enlist()
    given = host_key(here.keys, node.token).public
    assert address_of(node, here.keys).host_public_key == given
    here.link.boot(changed(node, host_public_key=given), here.keys, CONFIG, CALL_S)
    stranger = KeyPair.from_seed(99).public
    with pytest.raises(LinkError):
        SshLink(build_bundle()).boot(
            changed(node, host_public_key=stranger), here.keys, CONFIG, CALL_S
        )


def test_a_command_without_an_agent(here: Station) -> None:
    node = here.enlist()
    with pytest.raises(LinkError, match=r"no reply to save: .*`spot-node run` first"):
        here.link.send(node, here.keys, Command(SAVE, 1), CALL_S)


def arguments(here: Station) -> list[bytes]:
    """Of everything that runs on the machine."""
    pids = processes.carrying("HOME", str(here.machine.home))
    return [line for pid in pids if (line := processes.command_line(pid))]


def test_secrets_are_in_no_argument(here: Station) -> None:
    """Nor in the journal or a log; while the program that is given them runs."""
    here.boot()
    here.train("test -n $TOKEN && sleep 1000", secrets={"TOKEN": SECRET})
    wait_until("it sleeps", lambda: any(b"sleep\x00" in line for line in arguments(here)))
    assert processes.carrying("TOKEN", SECRET)
    assert not [line for line in arguments(here) if SECRET.encode() in line]
    assert files_with(SECRET.encode(), here.machine.home / ".spotd" / "j1") == []


@pytest.mark.parametrize("words", ["send --job j1 --generation 1", "has --digest 00"])
def test_commands_are_constants(bundle: Bundle, words: str) -> None:
    """The loader is one literal in single quotes; a node's command holds nothing from outside."""
    assert LOADER_COMMAND.startswith("exec python3 -c '")
    assert LOADER_COMMAND.count("'") == 2
    assert node_command(bundle, words).endswith(f'/bundles/{bundle.digest}.pyz" {words}')


def packed(folder: Path, data: bytes) -> tuple[LocalStore, str]:
    store, digest = LocalStore(folder / "packages"), hashlib.sha256(data).hexdigest()
    store.put(f"packages/{digest}", data)
    return store, digest


@pytest.mark.parametrize("size", [0, 1000, 40 << 20])
def test_a_package_arrives_whole_and_once(here: Station, tmp_path: Path, size: int) -> None:
    node = here.boot()
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    store, digest = packed(tmp_path, data)
    here.link.put_package(node, here.keys, digest, store, CALL_S)
    [arrived] = [p for p in (here.machine.home / ".spotd" / "packages").iterdir() if p.is_file()]
    assert arrived.read_bytes() == data
    store.delete(f"packages/{digest}")
    here.link.put_package(node, here.keys, digest, store, CALL_S)  # asks the store for nothing


def test_a_package_that_a_machine_can_do_without_is_not_sent(here: Station, tmp_path: Path) -> None:
    """A Python for other processors, and one for those whose wheels are for no Python of theirs."""
    node = here.boot()
    store, digest = packed(tmp_path, b"a Python")
    archive = here.machine.home / ".spotd" / "packages" / f"{digest}.tar.gz"
    for machine, arrives in (("another", False), (os.uname().machine, True)):
        unless = f"--unless-tools {'0' * 64} --machine {machine}"
        here.link.put_package(node, here.keys, digest, store, CALL_S, unless=unless)
        assert archive.exists() == arrives


def test_a_package_ends_at_the_deadline_of_its_call(here: Station, tmp_path: Path) -> None:
    """The call may be made again then, and two must not go on side by side."""
    node = here.boot()
    _, digest = packed(tmp_path, b"x")

    class Slow(LocalStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            time.sleep(0.01)
            return b"x"  # and never an end

    with pytest.raises(LinkError, match="SshDeadlineError: no answer within 3 s"):
        here.link.put_package(node, here.keys, digest, Slow(tmp_path / "packages"), 3.0)


def test_a_package_that_is_not_what_its_name_says(here: Station, tmp_path: Path) -> None:
    node = here.boot()
    store, digest = packed(tmp_path, b"good")
    store.put(f"packages/{digest}", b"evil")
    with pytest.raises(LinkError, match="the package did not arrive"):
        here.link.put_package(node, here.keys, digest, store, CALL_S)


def test_a_package_that_nobody_has(here: Station, tmp_path: Path) -> None:
    node = here.boot()
    store, _ = packed(tmp_path, b"other")
    with pytest.raises(NotFoundError):
        here.link.put_package(node, here.keys, "0" * 64, store, CALL_S)


def test_a_node_of_an_older_version_is_given_the_new_code_first(here: Station) -> None:
    node = here.boot()
    old = here.link.bundle
    data = old.data + b"\0"
    here.link.bundle = Bundle(data, hashlib.sha256(data).hexdigest())
    here.link.send(node, here.keys, Command(SAVE, 1), CALL_S)
    assert {path.stem for path in bundles(here)} == {old.digest, here.link.bundle.digest}


def test_errors_of_the_link_are_link_errors(here: Station) -> None:
    node = here.boot()
    with pytest.raises(LinkError, match="HostKeyMismatchError"):
        here.link.send(replace(node, token="another"), here.keys, Command(SAVE, 1), CALL_S)
    with pytest.raises(LinkError, match="SshAuthRefusedError"):
        here.link.send(changed(node, ssh_user="another"), here.keys, Command(SAVE, 1), CALL_S)
    wait_until("the agent has settled", lambda: here.node.startup.booted_at_us)
    pid = int((here.machine.home / ".spotd" / "j1" / "g1" / "agent.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LinkError, match=r"SshDeadlineError: no answer within 2 s"):
        here.link.send(node, here.keys, Command(SAVE, 1), 2.0)
    with pytest.raises(LinkError, match=r"SshDeadlineError: .* no time was left to connect"):
        here.link.send(node, here.keys, Command(SAVE, 1), -0.1)
    here.machine.stop()
    with pytest.raises(LinkError, match="SshUnreachableError"):
        here.link.send(node, here.keys, Command(SAVE, 1), CALL_S)
