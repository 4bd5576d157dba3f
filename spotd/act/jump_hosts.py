"""The jump hosts of the providers that have one; providers behind the same host share it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from spotd.act.jump_host import JumpConnection, JumpError, JumpHost, try_out
from spotd.act.ssh import Address, Dial
from spotd.base.clock import Clock

TELL_S = 15.0  # a jump host that is back sooner is worth nobody's sleep


class JumpHosts:
    """Jump hosts by provider. Thread-safe; `change` replaces the set at once."""

    def __init__(self, hosts: Mapping[str, JumpHost], clock: Clock) -> None:
        self._clock = clock
        self._jumps: dict[str, JumpConnection] = {}
        self.change(hosts)

    def change(self, hosts: Mapping[str, JumpHost]) -> None:
        """Use new jump hosts. Machines behind unchanged ones notice nothing."""
        known = {jump.host: jump for jump in self._jumps.values()}
        made = {
            host: known.get(host) or JumpConnection(host, self._clock)
            for host in set(hosts.values())
        }
        self._jumps = {name: made[host] for name, host in hosts.items()}
        for host, jump in known.items():
            if host not in made:
                jump.close()

    def start(self) -> None:
        """Begin to keep them: a jump host that does not work should be known before a machine is
        rented."""
        for jump in self._jumps.values():
            jump.start()

    def close(self) -> None:
        for jump in self._jumps.values():
            jump.close()

    def dial(self, provider: str) -> Dial | None:
        """Return the function that connects to a provider's machines; None if they are reached
        directly."""
        jump = self._jumps.get(provider)
        return None if jump is None else jump.dial

    def address(self, provider: str) -> Address | None:
        """Return the address of the jump host in front of a provider's machines."""
        jump = self._jumps.get(provider)
        return None if jump is None else jump.host.address

    def reached_since(self) -> dict[str, int]:
        """Since when machines can be reached, of each provider behind a jump host, microseconds;
        now, while they cannot."""
        return {name: jump.since_us() for name, jump in self._jumps.items()}

    def why(self) -> dict[str, str]:
        """Return, by provider, why its machines cannot be reached, once that has lasted, or ""."""
        reasons = {}
        for name, jump in self._jumps.items():
            why = jump.why(TELL_S)
            text = f"jump host {jump.host} of provider {name} cannot be reached: {why}"
            reasons[name] = text if why else ""
        return reasons

    def unreached(self) -> dict[str, str]:
        """Return the entries of `why` that have a reason."""
        return {name: why for name, why in self.why().items() if why}

    def try_out(self) -> dict[str, tuple[bool, str]]:
        """Test each jump host over a separate connection; return whether it works, and why."""
        hosts = {name: jump.host for name, jump in self._jumps.items()}
        if not hosts:
            return {}
        with ThreadPoolExecutor(len(hosts)) as lanes:
            return dict(zip(hosts, lanes.map(_tried, hosts.values()), strict=True))


def _tried(host: JumpHost) -> tuple[bool, str]:
    try:
        return True, try_out(host)
    except JumpError as error:
        return False, f"{host}: {error}"
