"""Mounting buckets from a machine of another cloud by identity federation, with the real rclone,
real servers and short-lived tokens."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from spotd import wire
from spotd.wire import MountMode
from tests.fixtures import azurite as azurite_rig
from tests.fixtures import gcs as gcs_rig
from tests.fixtures import lending
from tests.fixtures.identities import (
    ACCOUNT,
    AUDIENCE,
    Believers,
    Issuer,
    believing,
    entra_options,
    google_options,
)
from tests.fixtures.metadata import serve_script
from tests.fixtures.processes import command_line
from tests.fixtures.tunnel import leading_to
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from tests.trainer.mounts.test_mounting import BLOB, SMALL, filled, node, rclone_pid
from trainer.agent.process.processes import descendants

__all__ = ["node"]

LASTS_S = 6
MOUNT = MountMode.MOUNT
SUM = hashlib.sha256(BLOB).hexdigest()
KINDS = [("gs", "aws"), ("gs", "azure"), ("az", "aws"), ("az", "gcp")]


@dataclass
class Elsewhere:
    """A bucket, a node on another cloud, and the identity providers that trust the node."""

    url: str
    options: dict[str, str]
    trust: Believers
    node: Node
    server: Any

    def mount(self, mode: MountMode = MOUNT) -> wire.Bucket:
        return wire.Bucket("~/data", self.url, self.options, mode=mode)

    def last_end_s(self) -> float:
        """The time when all tokens issued so far have expired."""
        return max(end for end, _ in self.trust.made.values())


@pytest.fixture
def trust() -> Iterator[Believers]:
    with believing() as believers:
        yield believers


@pytest.fixture
def elsewhere(
    request: pytest.FixtureRequest, trust: Believers, node: Node, tmp_path: Path
) -> Iterator[Elsewhere]:
    scheme, cloud = request.param
    make = {"gs": google, "az": azure}[scheme]
    with make(trust, node, tmp_path, cloud) as result:
        yield result


@contextmanager
def google(trust: Believers, node: Node, _: Path, cloud: str) -> Iterator[Elsewhere]:
    with gcs_rig.serving() as bucket_server:
        filled(bucket_server)
        bucket_server.guard = trust.guard
        options = {**bucket_server.plain, **google_options(trust, cloud)}
        yield Elsewhere(bucket_server.url, options, trust, node, bucket_server)


@contextmanager
def azure(trust: Believers, node: Node, folder: Path, cloud: str) -> Iterator[Elsewhere]:
    """Uses the account's own host name over TLS, as rclone sends tokens nowhere else."""
    with azurite_rig.serving(folder) as bucket_server:
        where = urlsplit(bucket_server.endpoint)
        with leading_to(str(where.hostname), where.port or 0) as tunnel, certified(folder):
            filled(bucket_server)
            ca = str(folder / "ca.pem")
            node.environ |= {"HTTPS_PROXY": tunnel.url, "SSL_CERT_FILE": ca}
            node.environ |= {"NO_PROXY": "169.254.169.254,metadata.internal"}  # as on many images
            line = {"account": azurite_rig.ACCOUNT, "allow_http": "true"}
            options = {**line, **entra_options(trust, cloud)}
            yield Elsewhere(bucket_server.url, options, trust, node, tunnel)
            assert set(tunnel.asked) <= {f"{azurite_rig.HOST}:443"}


@contextmanager
def certified(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        yield


READS = """
[ "$(sha256sum < ~/data/x/blob.bin)" = "SUM  -" ] || exit 1
touch up
while [ ! -e over ]; do sleep 0.05; done
[ "$(sha256sum < ~/data/x/blob.bin)" = "SUM  -" ] || exit 2
""".replace("SUM", SUM)


@pytest.mark.parametrize("elsewhere", KINDS, indirect=True)
def test_a_mount_is_read_on_after_its_tokens_have_ended(elsewhere: Elsewhere) -> None:
    """Credentials are renewed in time, and appear in no argument, log or file of the machine."""
    trust, node = elsewhere.trust, elsewhere.node
    trust.lasts_s = LASTS_S
    node.run()
    node.start(run=READS, buckets=(elsewhere.mount(),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    first, trust.used = set(trust.made), []
    arguments = [command_line(pid) for pid in tree(rclone_pid(node))]
    assert any(b"rclone" in line and b"--read-only" in line for line in arguments)
    wait_until(
        "its tokens to end", lambda: time.time() > max(trust.made[token][0] for token in first)
    )
    (node.paths.workdir / "over").touch()
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log("mount-0")
    assert set(trust.made) > first
    assert trust.denied == []
    assert not first & {*trust.used}
    assert {trust.made[token][1].rpartition(".")[2] for token in trust.used} <= {"read_only"}
    assert trust.used or elsewhere.url.startswith("az:")
    stored = [path.read_bytes() for path in files(node.home)]
    assert any(wire.EXITED.encode() in text for text in stored), "it looks where things are"
    for token in trust.made:
        assert not [text for text in (*arguments, *stored) if token.encode() in text]
    wait_until("what opens it to be gone", lambda: not [*node.paths.memory.glob("mount-0.opt*")])


def test_a_mount_of_s3s_too(node: Node, tmp_path: Path) -> None:
    """The same for AWS sessions, which rclone gets from our credential_process."""
    issuer = Issuer()
    with lending.serving(tmp_path) as server, serve_script(issuer.reply) as (metadata, _):
        filled(server.bucket)
        server.rules.distrust = issuer.distrust
        allowed = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
        server.rules.role_policy = {"Statement": [allowed]}
        server.rules.scale = LASTS_S / 3600
        line = {"region": "us-east-1", "endpoint": server.bucket.endpoint, "allow_http": "true"}
        who = {"identity": "gcp", "role": lending.ROLE, "audience": AUDIENCE}
        where = {"metadata": metadata, "sts": server.bucket.endpoint}
        node.run()
        bucket = wire.Bucket("~/data", server.bucket.url, {**line, **who, **where}, mode=MOUNT)
        node.start(run=READS, buckets=(bucket,))
        wait_until("the program to be up", (node.paths.workdir / "up").exists)
        first, up_s = {*server.rules.used}, time.monotonic()
        wait_until("its sessions to end", lambda: time.monotonic() > up_s + LASTS_S)
        (node.paths.workdir / "over").touch()
        assert node.wait_for(wire.EXITED).data["code"] == 0, node.log("mount-0")
    assert server.rules.used > first
    assert server.rules.denied == []


def tree(pid: int) -> list[int]:
    return [pid, *(one.pid for one in descendants(pid))]


def files(folder: Path) -> Iterator[Path]:
    """The node's files, without mounts and the program's own files."""
    for root, names, file_names in os.walk(folder):
        if Path(root) == folder:
            names.remove("data")
        yield from (Path(root) / name for name in file_names)


GOES_ON = """
cat ~/data/x/blob.bin > /dev/null || exit 1
touch up
while cat ~/data/x/blob.bin > /dev/null; do sleep 0.2; done
touch failed
until cat ~/data/x/blob.bin > /dev/null; do sleep 0.2; done
"""


@pytest.mark.parametrize("elsewhere", [KINDS[0], KINDS[2]], indirect=True)
def test_while_nobody_makes_tokens_that_is_told_and_then_it_is_read_on(
    elsewhere: Elsewhere,
) -> None:
    trust, node = elsewhere.trust, elsewhere.node
    trust.lasts_s = LASTS_S
    node.run()
    node.start(run=GOES_ON, buckets=(elsewhere.mount(),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    trust.down = 503
    wait_until("it to fail", (node.paths.workdir / "failed").exists)
    assert time.time() > elsewhere.last_end_s() - 1, "and not before the last token ended"
    trust.down = 0
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log("mount-0")
    told = node.entries(wire.WARNING)[-1].data
    assert told["verdict"] == "mount_failing"
    assert "503" in node.log("mount-0")
    assert not node.entries(wire.UNWELL)


@pytest.mark.parametrize("elsewhere", [KINDS[1], KINDS[3]], indirect=True)
@pytest.mark.parametrize("victim", ["door", "rclone"])
def test_whichever_of_the_two_dies_takes_the_other_along_and_both_are_made_anew(
    elsewhere: Elsewhere, victim: str
) -> None:
    node = elsewhere.node
    node.run()
    wait = "while [ ! -e over ]; do sleep 0.05; done"
    read = "until cat ~/data/small 2> /dev/null; do sleep 0.05; done"
    node.start(run=f"touch up; {wait}; {read}", buckets=(elsewhere.mount(),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    door, rclone = tree(rclone_pid(node))
    os.kill(door if victim == "door" else rclone, signal.SIGKILL)
    assert node.wait_for(wire.WARNING).data["verdict"] == "mount_lost"
    wait_until("both to be gone", lambda: not any(map(is_there, (door, rclone))))
    (node.paths.workdir / "over").touch()
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log("mount-0")
    assert node.log().encode() == SMALL


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def refuse_machine(elsewhere: Elsewhere) -> None:
    elsewhere.trust.trusts = "arn:aws:sts::123456789012:assumed-role/another/i-1"
    elsewhere.trust.issuer.subject = "another machine"


def refuse_account(elsewhere: Elsewhere) -> None:
    elsewhere.server.guard = lambda *_: "403 AccessDenied"


@pytest.mark.parametrize(
    ("elsewhere", "refuse", "said"),
    [
        (KINDS[0], refuse_machine, ("invalid_grant", "federate] must trust", "init --trust")),
        (KINDS[3], refuse_machine, ("AADSTS700213", "federate] must trust", "init --trust")),
        (KINDS[0], refuse_account, (f"acts as {ACCOUNT}: grant it roles/storage.objectViewer",)),
    ],
    indirect=["elsewhere"],
)
@pytest.mark.parametrize("mode", [MountMode.COPY, MountMode.MOUNT])
def test_who_has_no_right_is_told_that_and_what_to_try(
    elsewhere: Elsewhere,
    refuse: Callable[[Elsewhere], None],
    said: tuple[str, ...],
    mode: MountMode,
) -> None:
    refuse(elsewhere)
    elsewhere.node.run()
    elsewhere.node.start(run="true", buckets=(elsewhere.mount(mode),))
    ended = elsewhere.node.wait_for(wire.SETUP).data
    assert ended["code"] != 0
    assert ended["tail"].count("file_mounts.~/data: ") == 1
    assert not [word for word in (elsewhere.url, *said) if word not in ended["tail"]], ended["tail"]
    assert len(ended["tail"].splitlines()) == 1
