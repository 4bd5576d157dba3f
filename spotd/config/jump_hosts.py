"""The jump hosts of the configuration: checked, and built for the daemon."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from providers.section import JUMP_KEYS, NetworkedProvider
from spotd.base.secret_refs import FORMS, read_secret
from spotd.base.validation import Path as Keys
from spotd.config.file import ConfigFile

if TYPE_CHECKING:
    from spotd.act.jump_host import JumpHost

_WHERE = re.compile(
    r"(?P<user>[A-Za-z_][\w.-]*)@(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9][\w.-]*))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_EXAMPLE = '"spotd@bastion.example.com" or "spotd@203.0.113.7:2222"'
_REFS = tuple(f"jump_key_{form}" for form in FORMS)


def check_jumps(file: ConfigFile, environ: Mapping[str, str]) -> Iterator[tuple[Keys, str, str]]:
    """Yield every problem as (keys, text, fix)."""
    for name, section in file.providers.items():
        if not isinstance(section, NetworkedProvider):
            continue
        if section.network == "jump":
            yield from _check_jump(name, section, environ)
            continue
        for key in JUMP_KEYS:
            if getattr(section, key) is not None:
                text = f'is only for network = "jump", and network is "{section.network}"'
                fix = 'write network = "jump", or leave it out'
                yield ("providers", name, key), text, fix


def _check_jump(
    name: str, section: NetworkedProvider, environ: Mapping[str, str]
) -> Iterator[tuple[Keys, str, str]]:
    keys: Keys = ("providers", name)
    if section.jump is None:
        text = 'is missing, and network is "jump"'
        yield (*keys, "jump"), text, f"write where it is, like {_EXAMPLE}"
    else:
        try:
            parse_jump(section.jump)
        except ValueError as error:
            yield (*keys, "jump"), str(error), f"write {_EXAMPLE}"
    if section.jump_host_key is None:
        yield (
            (*keys, "jump_host_key"),
            "is missing: without it, any server at that address would be trusted",
            "copy the line of the jump host's own /etc/ssh/ssh_host_ed25519_key.pub",
        )
    try:
        _read_key(section, environ)
    except ValueError as error:
        text, _, fix = str(error).partition("; ")
        key = next((ref for ref in _REFS if getattr(section, ref) is not None), _REFS[0])
        yield (*keys, key), text, fix


def parse_jump(text: str) -> tuple[str, str, int]:
    """User, host and port. Raises ValueError."""
    match = _WHERE.fullmatch(text)
    port = int(match["port"] or 22) if match else 0
    if not match or not 0 < port < 65536:
        raise ValueError(f"{text[:60]!r} is not a user@host or user@host:port")
    return match["user"], match["six"] or match["host"], port


def jump_hosts(file: ConfigFile, environ: Mapping[str, str]) -> dict[str, JumpHost]:
    """Return the jump hosts by provider.

    Raises ValueError ("what; fix") if a key is no longer readable.
    """
    hosts = {}
    for name, section in file.providers.items():
        if isinstance(section, NetworkedProvider) and section.network == "jump":
            hosts[name] = _jump_host(section, environ)
    return hosts


def _jump_host(section: NetworkedProvider, environ: Mapping[str, str]) -> JumpHost:
    from spotd.act.jump_host import JumpHost
    from spotd.act.ssh import Address

    user, host, port = parse_jump(section.jump or "")
    address = Address(host, port, user, section.jump_host_key or "")
    return JumpHost(address, _read_key(section, environ))


def _read_key(section: NetworkedProvider, environ: Mapping[str, str]) -> str:
    """Private key for the jump host. Raises ValueError ("what; fix")."""
    from spotd.act.jump_host import load_login_key  # costs what SSH costs: only where there is one

    refs = {ref: getattr(section, ref) for ref in _REFS}
    text = read_secret("jump_key", refs, environ)
    make = "make one with `ssh-keygen -t ed25519 -N '' -f FILE`"
    if not text:
        raise ValueError(f"is missing: the login needs a key; {make}, and name it here")
    try:
        load_login_key(text)
    except ValueError as error:
        raise ValueError(f"{error}; {make}") from None
    return text
