"""What the daemon tells a node, over SSH: ship the agent, put packages, send commands.

Every remote command is a constant; whatever varies travels on stdin.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from providers.stores.base import ObjectStore
from spotd.act.bundle import Bundle
from spotd.act.effects import LinkError
from spotd.act.ssh import CHUNK, CONNECT_S, Address, Connection, Result, SshError, connect
from spotd.log import redactor
from spotd.model import Node
from spotd.vault import JobKeys, host_key
from spotd.wire import AgentConfig, Command, Reply, WireError, parse_reply

SHIP_S = 40.0  # for our version of the agent's code on a connection without a deadline

# Reads a length-prefixed header and the bundle from stdin, keeps the bundle under its digest, and
# becomes `spot-node`. It is the only program that is sent as text, and it never varies.
_LOADER = """
import hashlib, json, os, struct, subprocess, sys
if sys.version_info < (3, 10):
    sys.exit("the agent needs Python 3.10 or newer, this is " + sys.version.split()[0])
stream = sys.stdin.buffer
header = json.loads(stream.read(struct.unpack(">I", stream.read(4))[0]))
home = os.path.expanduser(os.environ.get("SPOTD_HOME", "~/.spotd"))
folder = os.path.join(home, "bundles")
path = os.path.join(folder, header["digest"] + ".pyz")
data = stream.read(header["size"])
if not os.path.exists(path):
    if hashlib.sha256(data).hexdigest() != header["digest"]:
        sys.exit("the bundle arrived damaged")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    part = path + "." + str(os.getpid())
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
if "config" not in header:
    sys.exit(0)
done = subprocess.run(
    [sys.executable, path, "run"], input=json.dumps(header["config"]).encode() + b"\\n"
)
sys.exit(done.returncode)
"""
LOADER_COMMAND = f"exec python3 -c '{_LOADER}'"
# The machine was booted by another version of spotd and has only that one's bundle.
NO_BUNDLE = 72
_NO_PYTHON = 127


def node_command(bundle: Bundle, words: str) -> str:
    """`spot-node WORDS` on a node; exit status NO_BUNDLE when the bundle is to be shipped first."""
    path = f'"${{SPOTD_HOME:-$HOME/.spotd}}/bundles/{bundle.digest}.pyz"'
    return f"test -f {path} || exit {NO_BUNDLE}; exec python3 {path} {words}"


def address_of(node: Node, keys: JobKeys) -> Address:
    """Where a node is, with the host key that its cloud told, or that it was given at launch."""
    public = node.host_public_key or host_key(keys, node.token).public
    return Address(node.host, node.port, node.ssh_user, public)


def node_words(node: Node) -> str:
    """Which agent on the machine is meant."""
    return f"--job {node.job_id} --generation {node.generation}"


class SshLink:
    """Keeps `act.effects.NodeLink` over SSH, one connection a call, which ends it in time. None
    takes longer than `connect_s` to be made."""

    def __init__(self, bundle: Bundle, connect_s: float = CONNECT_S) -> None:
        self.bundle = bundle
        self.connect_s = connect_s

    def boot(self, node: Node, keys: JobKeys, config: AgentConfig, deadline_s: float) -> None:
        """Ship the bundle and start the agent; harmless when it runs already. Raises LinkError."""
        with self._connected(node, keys, deadline_s) as connection:
            result = self._load(connection, {"config": config.to_data()}, deadline_s)
            _check(result, "the agent did not start")

    def put_package(
        self, node: Node, keys: JobKeys, digest: str, source: ObjectStore, deadline_s: float
    ) -> None:
        """Have the archive `packages/<digest>` on the node. Raises LinkError, StoreError."""
        with self._connected(node, keys, deadline_s) as connection:
            found = self._tell(connection, f"has --digest {digest}", [], deadline_s)
            if _check(found, "the agent did not answer").get("has") is True:
                return
            command = node_command(self.bundle, f"put --digest {digest}")
            result = connection.run(command, _pieces(source, digest), deadline_s)
            _check(result, "the package did not arrive")

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply:
        """Send one command; the agent's reply. Raises LinkError."""
        words = f"send {node_words(node)}"
        with self._connected(node, keys, deadline_s) as connection:
            result = self._tell(connection, words, [command.to_line()], deadline_s)
        try:
            return parse_reply(result.stdout)
        except WireError:
            raise LinkError(f"no reply to {command.name}: {_said(result)}") from None

    def admit(
        self, node: Node, keys: JobKeys, user: str, public_key: str, deadline_s: float
    ) -> None:
        """Let a user log in to the machine with that key. Raises LinkError."""
        asked = {"user": user, "public_key": public_key}
        self._ask(node, keys, "admit", asked, deadline_s)

    def dismiss(self, node: Node, keys: JobKeys, user: str, deadline_s: float) -> None:
        """Take a user's keys away and end the logins that there are. Raises LinkError."""
        self._ask(node, keys, "dismiss", {"user": user}, deadline_s)

    def _ask(
        self, node: Node, keys: JobKeys, word: str, asked: Mapping[str, str], deadline_s: float
    ) -> None:
        with self._connected(node, keys, deadline_s) as connection:
            line = json.dumps(asked).encode() + b"\n"
            _check(self._tell(connection, word, [line], deadline_s), f"{word} failed")

    def connect(
        self, node: Node, keys: JobKeys, deadline_s: float = threading.TIMEOUT_MAX
    ) -> Connection:
        """A connection to the node, for calls within `deadline_s`. Raises SshError."""
        address = address_of(node, keys)
        return connect(address, keys.user.private, self.connect_s, deadline_s=deadline_s)

    def ship(self, connection: Connection, deadline_s: float = SHIP_S) -> None:
        """Have this version's bundle on the node, beside others. Raises SshError, LinkError."""
        result = self._load(connection, {}, deadline_s)
        if result.status != 0:
            raise LinkError(f"the agent's code did not arrive: {_said(result)}")

    @contextmanager
    def _connected(self, node: Node, keys: JobKeys, deadline_s: float) -> Iterator[Connection]:
        """A connection for calls that together take no longer than `deadline_s`."""
        try:
            connection = self.connect(node, keys, deadline_s)
            try:
                yield connection
            finally:
                connection.close()
        except SshError as error:
            raise LinkError(f"{type(error).__name__}: {error}") from None

    def _tell(
        self, connection: Connection, words: str, stdin: list[bytes], deadline_s: float
    ) -> Result:
        command = node_command(self.bundle, words)
        result = connection.run(command, stdin, deadline_s)
        if result.status == NO_BUNDLE:
            self.ship(connection, deadline_s)
            result = connection.run(command, stdin, deadline_s)
        return result

    def _load(
        self, connection: Connection, more: Mapping[str, object], deadline_s: float
    ) -> Result:
        header = {"digest": self.bundle.digest, "size": len(self.bundle.data)}
        head = json.dumps({**header, **more}).encode()
        stdin = [struct.pack(">I", len(head)) + head, self.bundle.data]
        result = connection.run(LOADER_COMMAND, stdin, deadline_s)
        if result.status == _NO_PYTHON:
            raise LinkError("the machine has no python3; choose an image with Python 3.10 or newer")
        return result


def _pieces(source: ObjectStore, digest: str) -> Iterator[bytes]:
    """A stored package, a piece at a time: it may be larger than our memory should hold."""
    start = 0
    while True:
        piece = source.get_range(f"packages/{digest}", start, 8 * CHUNK)
        if not piece:
            return
        yield piece
        start += len(piece)


def _check(result: Result, what: str) -> dict[str, object]:
    if result.status != 0:
        raise LinkError(f"{what}: {_said(result)}")
    try:
        answer = json.loads(result.stdout)
    except (ValueError, RecursionError):
        raise LinkError(f"{what}: {_said(result)}") from None
    return answer if isinstance(answer, dict) else {}


def _said(result: Result) -> str:
    text = (result.stderr or result.stdout).decode(errors="replace").strip()
    text = redactor.clean(text)[-400:]  # what a cut leaves of a secret looks like none
    return f"exit {result.status}: {text}" if text else f"exit {result.status}"
