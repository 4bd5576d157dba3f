r"""A cloud whose machines have no public address: they are in a network that this computer cannot
reach except through a jump host.

    with netns.network() as network, behind_a_jump_host(network, folder) as private:
        with serving(folder, machines=private.machines) as aws:  # any stand-in
            box.settings += f"[providers.aws]\n...{private.settings(folder)}"

After `private.let_reach(bucket)`, the machines reach that bucket (on `network.gateway`) at the same
address as everybody else, as by a private endpoint. They reach nothing else outside.
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
    """Machines for a stand-in, and their jump host (`jump.server`, which tests may break)."""

    machines: Machines
    jump: Jump
    _network: Network
    _stack: ExitStack

    def section(self, folder: Path) -> dict[str, str]:
        """Return settings for the provider's section; writes the jump host's key into `folder`."""
        return self.jump.section(folder)

    def settings(self, folder: Path) -> str:
        """Return the same settings as lines."""
        return "".join(f'{key} = "{value}"\n' for key, value in self.section(folder).items())

    def let_reach(self, bucket: Bucket) -> None:
        """Give the machines a private endpoint for a bucket on the other network."""
        port = urlsplit(bucket.endpoint).port
        assert port is not None
        self._stack.enter_context(endpoint(self.jump, self._network, port))


@contextmanager
def behind_a_jump_host(
    network: Network, folder: Path, *, readable: Sequence[Path] = (), disk: str = "512m"
) -> Iterator[Private]:
    """Run the network for the duration of the block. `readable` and `disk` are those of
    `Machines`."""
    with ExitStack() as stack:
        jump = stack.enter_context(jump_host(network, folder / "jump"))
        more = {"readable": readable, "disk": disk}
        machines = stack.enter_context(machines_on(jump.private, folder / "machines", **more))
        yield Private(machines, jump, network, stack)
