"""What the daemon tells a node, over SSH: ship the agent, put packages, send commands.

Every remote command is a constant; whatever varies travels on stdin.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

from providers.stores.base import ObjectStore
from spotd.act.bundle import Bundle
from spotd.act.effects import LinkError
from spotd.act.ssh import CHUNK, Address, Connection, Result, SshError, connect
from spotd.model import Node
from spotd.vault import JobKeys, host_key
from spotd.wire import AgentConfig, Command, Reply, WireError, parse_reply

BOOT_S = 40.0
SEND_S = 15.0
PUT_S = 840.0

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
done = subprocess.run(
    [sys.executable, path, "run"], input=json.dumps(header["config"]).encode() + b"\\n"
)
sys.exit(done.returncode)
"""
LOADER_COMMAND = f"exec python3 -c '{_LOADER}'"


def node_command(bundle: Bundle, words: str) -> str:
    """`spot-node WORDS` on a node that was booted with `bundle`."""
    home = '"${SPOTD_HOME:-$HOME/.spotd}"'
    return f"exec python3 {home}/bundles/{bundle.digest}.pyz {words}"


def address_of(node: Node, keys: JobKeys) -> Address:
    """Where a node is, with the host key that it was given at launch."""
    return Address(node.host, node.port, node.ssh_user, host_key(keys, node.token).public)


def node_words(node: Node) -> str:
    """Which agent on the machine is meant."""
    return f"--job {node.job_id} --generation {node.generation}"


class SshLink:
    """Keeps `act.effects.NodeLink` over SSH, one connection a call."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def boot(self, node: Node, keys: JobKeys, config: AgentConfig) -> None:
        """Ship the bundle and start the agent; harmless when it runs already. Raises LinkError."""
        header = {"digest": self.bundle.digest, "size": len(self.bundle.data)}
        head = json.dumps(header | {"config": config.to_data()}).encode()
        stdin = [struct.pack(">I", len(head)) + head, self.bundle.data]
        result = self._run(node, keys, LOADER_COMMAND, stdin, BOOT_S)
        if result.status == 127:
            raise LinkError("the machine has no python3; choose an image with Python 3.10 or newer")
        _check(result, "the agent did not start")

    def put_package(self, node: Node, keys: JobKeys, digest: str, source: ObjectStore) -> None:
        """Have the archive `packages/<digest>` on the node. Raises LinkError, StoreError."""
        words = f"has --digest {digest}"
        result = self._run(node, keys, node_command(self.bundle, words), [], SEND_S)
        if _check(result, "the agent did not answer").get("has") is True:
            return
        command = node_command(self.bundle, f"put --digest {digest}")
        result = self._run(node, keys, command, _pieces(source, digest), PUT_S)
        _check(result, "the package did not arrive")

    def send(self, node: Node, keys: JobKeys, command: Command) -> Reply:
        """Send one command; the agent's reply. Raises LinkError."""
        words = f"send {node_words(node)}"
        line = command.to_line()
        result = self._run(node, keys, node_command(self.bundle, words), [line], SEND_S)
        try:
            return parse_reply(result.stdout)
        except WireError:
            raise LinkError(f"no reply to {command.name}: {_said(result)}") from None

    def _run(
        self,
        node: Node,
        keys: JobKeys,
        command: str,
        stdin: Iterator[bytes] | list[bytes],
        limit_s: float,
    ) -> Result:
        try:
            connection = self.connect(node, keys)
            try:
                return connection.run(command, stdin, limit_s)
            finally:
                connection.close()
        except SshError as error:
            raise LinkError(f"{type(error).__name__}: {error}") from None

    def connect(self, node: Node, keys: JobKeys) -> Connection:
        """A connection to the node. Raises SshError."""
        return connect(address_of(node, keys), keys.user.private)


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
    except ValueError:
        raise LinkError(f"{what}: {_said(result)}") from None
    return answer if isinstance(answer, dict) else {}


def _said(result: Result) -> str:
    text = (result.stderr or result.stdout).decode(errors="replace").strip()
    return f"exit {result.status}: {text[-400:]}" if text else f"exit {result.status}"
