"""A fleet to run a daemon against: three clouds and their machines, simulated in one process.

    python bench/fleet.py ssh           every machine is a real SSH server on a port of its own
    python bench/fleet.py pipe PATH     all are reached through one unix socket, without SSH

Prints one JSON line {"url": ...} when it is ready, and ends with its stdin. What the daemon tells
a machine is what it tells real ones: the same commands, with the same data on stdin.
"""

from __future__ import annotations

import io
import json
import re
import socket
import struct
import sys
import threading
from typing import IO

from fleet_agents import Agents, Machine, Write
from fleet_cloud import Clouds, Door

from providers.local.blocking_http import bind
from providers.local.reaper import Reaper
from providers.local.sessions import Session
from providers.local.sshd import Login, SshServer
from spotd.wire import parse_command

_FOLLOW = re.compile(r" follow --job \S+ --generation \d+ --after (\d+)")


def obey(agents: Agents, machine: Machine, command: str, stdin: IO[bytes], write: Write) -> bool:
    """Run one command as the machine would; False when it goes on speaking for ever."""
    follow = _FOLLOW.search(command)
    if follow is not None:
        stdin.readline()  # up to where each log is known; there are none here
        agents.follow(machine, int(follow[1]), write)
        return False
    if " send " in command:
        write(agents.command(machine, parse_command(stdin.readline())).to_line())
        return True
    # The loader: a header, and the bundle with the agent's code.
    header = json.loads(stdin.read(struct.unpack(">I", stdin.read(4))[0]))
    stdin.read(header["size"])
    if "config" in header:
        agents.boot(machine, header["config"])
    write(b'{"started": true, "pid": 1}\n')
    return True


class SshMachine(SshServer):
    """The local cloud's SSH server, with a simulation in place of the shell."""

    def __init__(self, agents: Agents, machine: Machine) -> None:
        bound = bind("127.0.0.1")
        self.port = int(bound.getsockname()[1])
        user_key, host_key = machine.keys
        login = Login(str(machine.row["ssh_user"]), user_key, host_key)
        super().__init__(bound, login, {}, Reaper(), lambda: None)
        self._agents = agents
        self._machine = machine

    def run(self, session: Session) -> None:
        """As a shell would run it, on a thread of its own."""
        threading.Thread(target=self._obey, args=(session,), daemon=True).start()

    def _obey(self, session: Session) -> None:
        channel, command = session.channel, session.argv[-1]
        stdin = channel.makefile("rb")
        if obey(self._agents, self._machine, command, stdin, channel.sendall):
            channel.send_exit_status(0)
            channel.close()


class PipeDoor:
    """One unix socket for all machines: a line that names machine and command, then its stdin."""

    def __init__(self, agents: Agents, path: str) -> None:
        self._agents = agents
        self._machines: list[Machine] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(512)
        threading.Thread(target=self._accept, daemon=True).start()

    def open_port(self, machine: Machine) -> int:
        """Ports are numbers that stand for machines."""
        self._machines.append(machine)
        return len(self._machines)

    def _accept(self) -> None:
        while True:
            line, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line.makefile("rb") as said:
            asked = json.loads(said.readline())
            stdin = io.BytesIO(said.read(asked["stdin_bytes"]))
        machine = self._machines[asked["port"] - 1]
        if obey(self._agents, machine, asked["command"], stdin, line.sendall):
            line.close()


def main() -> None:
    agents = Agents()
    if sys.argv[1] == "pipe":
        open_port = PipeDoor(agents, sys.argv[2]).open_port
    else:

        def open_port(machine: Machine) -> int:
            server = SshMachine(agents, machine)
            server.start()
            return server.port

    door = Door(Clouds(agents, open_port))
    agents.start()
    door.start()
    print(json.dumps({"url": door.url}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
