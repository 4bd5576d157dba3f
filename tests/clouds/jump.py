"""A cloud whose machines have no address of the internet: they come up in a network that this
computer has no way to, and only a jump host has a foot in it.

    with netns.network() as network, behind_a_jump_host(network, folder) as private:
        with serving(folder, machines=private.machines) as aws: ...   # any stand-in
        box.settings += f"[providers.aws]\\n...{private.settings(folder)}"

What machines need of the outside (the bucket of the checkpoints, on `network.gateway`) they reach
at the same address as everybody else, after `private.let_reach(bucket)`: what clouds call a private
endpoint. They reach nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from spotd.demo.bucket import Bucket
from tests.clouds.machines import Machines, machines_on
from tests.fixtures.jump import Jump, endpoint, jump_host
from tests.fixtures.netns import Network


@dataclass(frozen=True)
class Private:
    """Machines for a stand-in, and the jump host before them (`jump.server` can be hurt)."""

    machines: Machines
    jump: Jump
    _network: Network
    _stack: ExitStack

    def section(self, folder: Path) -> dict[str, str]:
        """For the section of the provider; the key for the jump host goes into `folder`."""
        return self.jump.section(folder)

    def settings(self, folder: Path) -> str:
        """The same as lines."""
        return "".join(f'{key} = "{value}"\n' for key, value in self.section(folder).items())

    def let_reach(self, bucket: Bucket) -> None:
        """Its machines have a private endpoint for this bucket, which is on the other network."""
        port = urlsplit(bucket.endpoint).port
        assert port is not None
        self._stack.enter_context(endpoint(self.jump, self._network, port))


@contextmanager
def behind_a_jump_host(
    network: Network, folder: Path, *, readable: Sequence[Path] = (), disk: str = "512m"
) -> Iterator[Private]:
    """For the length of the block; nothing is left behind. `readable` and `disk` are those of
    `Machines`."""
    with ExitStack() as stack:
        jump = stack.enter_context(jump_host(network, folder / "jump"))
        more = {"readable": readable, "disk": disk}
        machines = stack.enter_context(machines_on(jump.private, folder / "machines", **more))
        yield Private(machines, jump, network, stack)
