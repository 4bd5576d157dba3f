"""A local cloud for tests: keys, launch requests, and SSH with the host key pinned."""

from __future__ import annotations

import base64
import dataclasses
import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from providers.base import (
    CapacityType,
    Instance,
    InstanceState,
    LaunchRequest,
    OfferRequest,
    Provider,
)
from tests.rigs.waiting import until

T = TypeVar("T")


@dataclass(frozen=True)
class KeyPair:
    """An Ed25519 key pair in OpenSSH's formats."""

    private: str
    public: str

    @classmethod
    def from_seed(cls, seed: int) -> KeyPair:
        """The same pair for the same number."""
        key = Ed25519PrivateKey.from_private_bytes(seed.to_bytes(32, "big"))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return cls(private.decode(), public.decode())

    def load(self) -> paramiko.Ed25519Key:
        """For paramiko."""
        return paramiko.Ed25519Key.from_private_key(io.StringIO(self.private))


@cache
def user_key() -> KeyPair:
    """The key of the job that logs in."""
    return KeyPair.from_seed(1)


@cache
def host_key() -> KeyPair:
    """The machines' own key."""
    return KeyPair.from_seed(2)


def launch_request(provider: Provider, token: str, **changes: object) -> LaunchRequest:
    """A request for the provider's first spot offer, `changes` applied."""
    offers = provider.offers(OfferRequest(capacity_types=(CapacityType.SPOT,)))
    request = LaunchRequest(
        token=token,
        name=f"node-{token}",
        region=offers[0].region,
        zone=offers[0].zone,
        instance_type=offers[0].instance_type,
        capacity_type=CapacityType.SPOT,
        tags={"job": "j1", "generation": "1"},
        ssh_user="spotd",
        ssh_public_key=user_key().public,
        host_private_key=host_key().private,
        host_public_key=host_key().public,
    )
    return dataclasses.replace(request, **changes)  # type: ignore[arg-type]


def launch_running(provider: Provider, token: str, **changes: object) -> Instance:
    """Launch and wait until the cloud lists the machine as running."""
    provider.launch(launch_request(provider, token, **changes))
    return wait_state(provider, token, InstanceState.RUNNING)


def find(provider: Provider, token: str) -> Instance | None:
    """The machine of that token, as listed."""
    return next((i for i in provider.list() if i.token == token), None)


def wait_state(
    provider: Provider, token: str, *states: InstanceState, timeout_s: float = 20.0
) -> Instance:
    """The machine once it is in one of these states."""

    def look() -> Instance | None:
        instance = find(provider, token)
        return instance if instance and instance.state in states else None

    return until(look, limit_s=timeout_s)


@contextmanager
def connected(
    instance: Instance,
    *,
    user: str = "spotd",
    key: KeyPair | None = None,
    pinned: KeyPair | None = None,
) -> Iterator[paramiko.Transport]:
    """An SSH connection whose host key must be the pinned one: else what the cloud tells of it, or
    the one that requests here ask for."""
    sock = socket.create_connection((instance.host, instance.port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = paramiko.Transport(sock)
    try:
        expected = pinned.load() if pinned else _expected(instance)
        transport.connect(username=user, pkey=(key or user_key()).load(), hostkey=expected)
        yield transport
    finally:
        transport.close()
        sock.close()


def _expected(instance: Instance) -> paramiko.Ed25519Key:
    if not instance.host_public_key:
        return host_key().load()
    return paramiko.Ed25519Key(data=base64.b64decode(instance.host_public_key.split()[1]))


@dataclass(frozen=True)
class Ran:
    """What a command said."""

    out: str
    err: str
    code: int


def run_on(transport: paramiko.Transport, command: str, stdin: str = "") -> Ran:
    """Run a command to its end."""
    channel = transport.open_session(timeout=10)
    channel.settimeout(30)
    channel.exec_command(command)
    channel.sendall(stdin.encode())
    channel.shutdown_write()
    with channel.makefile("rb") as out, channel.makefile_stderr("rb") as err:
        said = out.read().decode(), err.read().decode()
    return Ran(*said, channel.recv_exit_status())


def run(instance: Instance, command: str, stdin: str = "") -> Ran:
    """Connect, run a command to its end, disconnect."""
    with connected(instance) as transport:
        return run_on(transport, command, stdin)
