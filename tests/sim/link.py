"""The daemon's way to machines: commands, and the follow streams that its follower reads.

`SimLink` stands in for `spotd.act.link.SshLink`: above it runs the daemon's own code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from providers.stores.base import ObjectStore
from spotd.act.node_link import LinkError
from spotd.act.ssh import Address, Dial, SshError, SshUnreachableError
from spotd.domain.node import Node
from spotd.security.secrets import JobKeys
from spotd.wire import AgentConfig, Command, Reply, parse_command
from tests.sim.kernel import Kernel
from tests.sim.machine import SimAgent, SimMachine
from tests.sim.net import Net
from tests.sim.threads import Event

T = TypeVar("T")

CONNECT_S = 10.0
COMMAND_S = 30.0
BROKEN_S = 20.0  # what is sent and not taken for so long ends the connection: TCP_USER_TIMEOUT
_FOLLOW = re.compile(r"follow --job (\S+) --generation (\d+) --after (\d+)$")


@dataclass(frozen=True)
class Bundle:
    """The agent's code, which is the same everywhere here."""

    digest: str = "0" * 64
    data: bytes = b""


class SimChannel:
    """One follow stream: what paramiko's Channel is to the follower, and what the agent talks to.

    What is sent while the network is cut arrives when it is whole again, in order, unless that
    takes longer than TCP waits.
    """

    def __init__(self, kernel: Kernel, machine: SimMachine, agent: SimAgent, number: int) -> None:
        self._reader = kernel.task().process
        self.closed = False
        self.eof_received = False
        self.exit_status = -1
        self.on_ready: Callable[[], None] = lambda: None
        self._kernel = kernel
        self._machine = machine
        self._agent = agent
        self._number = number
        self._sent: list[bytes] = []  # and not arrived
        self._arrived = bytearray()
        self._stuck_us = 0
        self._over = False  # the agent's end is closed
        self._pumping = False

    # --- the agent's end

    def hear(self, line: bytes) -> None:
        if not self._reader.alive:
            self.close()  # its kernel says so
            return
        self._sent.append(line)
        self._pump_soon()

    def hang_up(self) -> None:
        """The agent's end is gone. Of a machine that is switched off, that is not always told."""
        if self._machine.process.alive or self._machine.random.random() < 0.5:
            self._over = True
            self._pump_soon()

    def _pump_soon(self, after_s: float = 0.02) -> None:
        if not self._pumping:
            self._pumping = True
            self._kernel.after(after_s, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.closed or not (self._sent or self._over):
            return
        if self._machine.reachable or not self._machine.process.alive:
            self._stuck_us = 0
            self._arrived += b"".join(self._sent)
            self._sent.clear()
            self.eof_received = self._over
            self.on_ready()
            return
        now_us = self._kernel.now_us
        self._stuck_us = self._stuck_us or now_us
        if now_us - self._stuck_us > BROKEN_S * 1e6:
            self._end()
        else:
            self._pump_soon(1.0)

    def _end(self) -> None:
        self.eof_received = True
        self.on_ready()

    # --- the follower's end

    @property
    def ready(self) -> bool:
        return bool(self._arrived) or self.eof_received

    def recv_ready(self) -> bool:
        return bool(self._arrived)

    def recv_stderr_ready(self) -> bool:
        return False

    def recv(self, most: int) -> bytes:
        data = bytes(self._arrived[:most])
        del self._arrived[:most]
        return data

    def fileno(self) -> int:
        return self._number

    def settimeout(self, seconds: float) -> None: ...

    def setblocking(self, flag: int) -> None: ...

    def sendall(self, data: bytes) -> None:
        """A word that a machine off the network never hears."""
        if self._machine.reachable and not self.closed:
            self._agent.hear(data)

    def close(self) -> None:
        self.closed = True
        self._agent.leave(self)


class SimConnection:
    """An SSH connection to one machine."""

    def __init__(self, link: SimLink, machine: SimMachine) -> None:
        self._link = link
        self._machine = machine

    def open_channel(self, command: str, _limit_s: float, _window: int) -> SimChannel:
        """Raises SshError."""
        found = _FOLLOW.search(command)
        assert found is not None, command
        return self._link.follow(self._machine, int(found[2]), int(found[3]))

    def hang_up(self, channel: SimChannel) -> None:
        channel.close()

    def close(self) -> None: ...


class SimLink:
    """SSH as one daemon process uses it. `machine_at(host)` finds what answers there."""

    bundle = Bundle()

    def __init__(
        self,
        kernel: Kernel,
        net: Net,
        machine_at: Callable[[str], SimMachine | None],
        way: Callable[[str], Dial | None] = lambda _provider: None,
    ) -> None:
        self._kernel = kernel
        self._net = net
        self._machine_at = machine_at
        self._way = way
        self._channels = 0

    def boot(self, node: Node, keys: JobKeys, config: AgentConfig, deadline_s: float) -> None:
        machine = self._machine(node)

        def boot() -> None:
            why_not = machine.boot(config)
            if why_not:
                raise LinkError(why_not)

        self._call(f"boot {node.id}", machine, boot, deadline_s)

    def put_package(
        self, node: Node, keys: JobKeys, digest: str, source: ObjectStore, deadline_s: float
    ) -> None: ...

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply:
        machine = self._machine(node)

        def obey() -> Reply:
            if machine.agent is None:
                return Reply(False, "no agent runs here")
            return machine.agent.obey(parse_command(command.to_line()))

        return self._call(f"{command.name} {node.id}", machine, obey, deadline_s)

    def clean(self, node: Node, keys: JobKeys, prepared_file: str, deadline_s: float) -> None:
        machine = self._machine(node)
        self._call(f"clean {node.id}", machine, machine.clean, deadline_s)

    def connect(self, node: Node, keys: JobKeys) -> SimConnection:
        """Raises SshError."""
        self._dial(node, CONNECT_S)
        machine = self._machine_at(node.address.host)
        if machine is None or not machine.reachable or machine.cleaned:
            self._kernel.sleep(CONNECT_S if machine is not None and machine.cut_off else 0.1)
            raise SshUnreachableError(f"{node.address.host} does not answer")
        self._kernel.sleep(0.2)
        return SimConnection(self, machine)

    def _dial(self, node: Node, limit_s: float) -> None:
        """Through the jump host, where there is one on the way. Raises SshError."""
        dial = self._way(node.offer.provider)
        if dial is not None:
            dial(Address(node.address.host, 22, "spotd", ""), limit_s)

    def ship(self, connection: SimConnection) -> None: ...

    def follow(self, machine: SimMachine, generation: int, after: int) -> SimChannel:
        agent = machine.agent
        up = machine.reachable and agent is not None and agent.running
        if agent is None or not up or agent.config.generation != generation:
            raise SshUnreachableError("no agent answers")
        self._channels += 1
        channel = SimChannel(self._kernel, machine, agent, self._channels)
        agent.follow(after, channel)
        return channel

    def _machine(self, node: Node) -> SimMachine:
        try:
            self._dial(node, CONNECT_S)
        except SshError as error:
            raise LinkError(str(error)) from None
        machine = self._machine_at(node.address.host)
        if machine is None:
            raise LinkError(f"{node.address.host} does not answer")
        if machine.cleaned:
            raise LinkError(f"{node.address.host} refuses the job's key")
        return machine

    def _call(self, what: str, machine: SimMachine, act: Callable[[], T], limit_s: float) -> T:
        return self._net.call(
            what,
            "ssh",
            act,
            limit_s=max(min(limit_s, COMMAND_S), 0.1),
            lost=LinkError,
            errors=LinkError,
            reachable=lambda: machine.reachable,
        )


class SimWaiting(Generic[T]):
    """`spotd.observe.selector.StreamSelector` over simulated channels."""

    def __init__(self, kernel: Kernel) -> None:
        self._event = Event(kernel)
        self._watched: dict[int, Any] = {}

    def watch(self, descriptor: int, who: Any) -> None:
        self._watched[descriptor] = who
        who.channel.on_ready = self._event.set
        if who.channel.ready:
            self._event.set()

    def forget(self, descriptor: int) -> None:
        del self._watched[descriptor]

    def wait(self, timeout_s: float) -> list[Any]:
        ready = self._ready()
        if not ready and timeout_s > 0:
            self._event.wait(timeout_s)
            ready = self._ready()
        self._event.clear()
        return ready

    def _ready(self) -> list[Any]:
        return [who for who in self._watched.values() if who.channel.ready]

    def nudge(self) -> None:
        self._event.set()

    def close(self) -> None: ...
