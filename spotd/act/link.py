"""Control a node over SSH: ship the agent, upload packages, send commands.

Every remote command is a constant; everything that varies travels on stdin.
"""

from __future__ import annotations

import json
import shlex
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from providers.credential_leases import LeasedCredentials
from providers.stores.base import ObjectStore
from spotd import wire
from spotd.act.bundle import Bundle
from spotd.act.image_builder import UncleanDiskError
from spotd.act.node_link import LinkError
from spotd.act.ssh import CHUNK, CONNECT_S, Address, Connection, Dial, Result, SshError, connect
from spotd.base.log import redactor
from spotd.domain.node import Node
from spotd.security.secrets import JobKeys, host_key
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
HOME = "${SPOTD_HOME:-$HOME/.spotd}"
_AS_ROOT = "sudo -n "
_CLEANED = b'{"cleaned":'  # what `spot-node clean` says of what it did, and not before
_CLEAN_TRIES, _AGENT_ENDS_S = 8, 1.0


def node_command(bundle: Bundle, words: str, how: str = "") -> str:
    """Return the command `spot-node WORDS` on a node, with the prefix `how`; its exit status is
    NO_BUNDLE if the bundle has to be sent first."""
    path = f'"{HOME}/bundles/{bundle.digest}.pyz"'
    return f"test -f {path} || exit {NO_BUNDLE}; exec {how}python3 {path} {words}"


def address_of(node: Node, keys: JobKeys) -> Address:
    """Return a node's address and host key, as reported by its cloud or given at launch."""
    public = node.address.host_public_key or host_key(keys, node.token).public
    return Address(node.address.host, node.address.port, node.address.ssh_user, public)


def node_words(node: Node) -> str:
    """Return the words that name the agent on the machine."""
    return f"--job {node.job_id} --generation {node.generation}"


class SshLink:
    """Implements `act.node_link.NodeLink` over SSH, one connection per call.

    No connection takes longer than CONNECT_S. `way(provider)` connects to machines that cannot be
    reached directly.
    """

    def __init__(
        self,
        bundle: Bundle,
        way: Callable[[str], Dial | None] = lambda _provider: None,
    ) -> None:
        self.bundle = bundle
        self._way = way

    def boot(self, node: Node, keys: JobKeys, config: AgentConfig, deadline_s: float) -> None:
        """Ship the bundle and start the agent; harmless when it runs already. Raises LinkError."""
        with self._connected(node, keys, deadline_s) as connection:
            result = self._load(connection, {"config": config.to_data()}, deadline_s)
            _check(result, "the agent did not start")

    def put_package(
        self,
        node: Node,
        keys: JobKeys,
        digest: str,
        source: ObjectStore,
        deadline_s: float,
        *,
        unless: str = "",
    ) -> None:
        """Have the archive `packages/<digest>` on the node, unless that can do without it: `unless`
        are options of `has` in trainer/node.py. Raises LinkError, StoreError."""
        words = f"has --digest {digest} {unless}".rstrip()
        with self._connected(node, keys, deadline_s) as connection:
            reply = self._tell(connection, words, [], deadline_s)
            if _check(reply, "the agent did not answer").get("has") is True:
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

    def lend(
        self, node: Node, keys: JobKeys, lent: LeasedCredentials, deadline_s: float, store: str = ""
    ) -> str:
        """Have the machine keep credentials of the job's store, or of another `store` by its URL,
        in place of those before; the file that they are in. Raises LinkError."""
        asked = {"kind": lent.kind, "text": lent.text, "expires_at_us": str(lent.expires_at_us)}
        asked |= {"store": store} if store else {}
        answer = self._ask(node, keys, f"lend {node_words(node)}", asked, deadline_s)
        file = answer.get("file")
        if not isinstance(file, str) or not file.startswith("/"):
            raise LinkError("the machine does not say where it keeps the store's credentials")
        return file

    def clean(self, node: Node, keys: JobKeys, prepared_file: str, deadline_s: float) -> None:
        """See `image_builder.Cleaner.clean`.

        The agent needs a moment to end, and none may be working.
        """
        words = f'clean --home "{HOME}" --prepared-file {shlex.quote(prepared_file)}'
        stop = Command(wire.STOP, node.generation, {"reason": "its disk becomes an image"})
        with self._connected(node, keys, deadline_s) as connection:
            self._tell(connection, f"send {node_words(node)}", [stop.to_line()], deadline_s)
            for left in reversed(range(_CLEAN_TRIES)):
                result = self._tell(connection, words, [], deadline_s, _AS_ROOT)
                if _CLEANED not in result.stdout and left:
                    time.sleep(_AGENT_ENDS_S)
                    continue
                break
        if _CLEANED in result.stdout and result.status:
            raise UncleanDiskError(
                f"what may not be in an image stays on the disk: {_said(result)}"
            )
        _check(result, "its disk was not cleaned")

    def _ask(
        self, node: Node, keys: JobKeys, words: str, asked: Mapping[str, str], deadline_s: float
    ) -> dict[str, object]:
        with self._connected(node, keys, deadline_s) as connection:
            line = json.dumps(asked).encode() + b"\n"
            result = self._tell(connection, words, [line], deadline_s)
            return _check(result, f"{words.split(maxsplit=1)[0]} failed")

    def connect(
        self, node: Node, keys: JobKeys, deadline_s: float = threading.TIMEOUT_MAX
    ) -> Connection:
        """A connection to the node, for calls within `deadline_s`. Raises SshError."""
        address, dial = address_of(node, keys), self._way(node.offer.provider)
        return connect(address, keys.user.private, CONNECT_S, deadline_s=deadline_s, dial=dial)

    def ship(self, connection: Connection, deadline_s: float = SHIP_S) -> None:
        """Store this version's bundle on the node, beside others. Raises SshError, LinkError."""
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
        self,
        connection: Connection,
        words: str,
        stdin: list[bytes],
        deadline_s: float,
        how: str = "",
    ) -> Result:
        command = node_command(self.bundle, words, how)
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
