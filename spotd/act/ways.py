"""The jump hosts of the providers that have one. Two providers behind the same share it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from spotd.act.jump import Jump, JumpError, JumpHost, try_out
from spotd.act.ssh import Address, Dial
from spotd.clock import Clock

TELL_S = 15.0  # a jump host that is back sooner is worth nobody's sleep


class Ways:
    """By provider. Thread-safe; another set takes the place of this one at once."""

    def __init__(self, hosts: Mapping[str, JumpHost], clock: Clock) -> None:
        self._clock = clock
        self._jumps: dict[str, Jump] = {}
        self.change(hosts)

    def change(self, hosts: Mapping[str, JumpHost]) -> None:
        """From now on these. Machines behind those that stay notice nothing."""
        known = {jump.host: jump for jump in self._jumps.values()}
        made = {host: known.get(host) or Jump(host, self._clock) for host in set(hosts.values())}
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
        """What makes lines to a provider's machines; None where we reach them ourselves."""
        jump = self._jumps.get(provider)
        return None if jump is None else jump.dial

    def address(self, provider: str) -> Address | None:
        """Of the jump host on the way to a provider's machines."""
        jump = self._jumps.get(provider)
        return None if jump is None else jump.host.address

    def reached_since(self) -> dict[str, int]:
        """Since when machines can be reached, of each provider behind a jump host, microseconds;
        now, while they cannot."""
        return {name: jump.since_us() for name, jump in self._jumps.items()}

    def why(self) -> dict[str, str]:
        """Of each provider behind a jump host, why its machines cannot be reached, as soon as that
        is worth a word; else ""."""
        found = {}
        for name, jump in self._jumps.items():
            why = jump.why(TELL_S)
            text = f"jump host {jump.host} of provider {name} cannot be reached: {why}"
            found[name] = text if why else ""
        return found

    def unreached(self) -> dict[str, str]:
        """Those of `why` that cannot be reached."""
        return {name: why for name, why in self.why().items() if why}

    def try_out(self) -> dict[str, tuple[bool, str]]:
        """Each tried for real, by a connection of its own: whether it is good, and what was
        found."""
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
