"""The address and token of the Prometheus endpoint; see docs/metrics.md."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from providers.section import Section
from spotd.base.addresses import split_listen
from spotd.base.secret_refs import read_secret
from spotd.base.validation import Path as Keys

LEAST_CHARACTERS = 16  # of a token
_EXAMPLE = "127.0.0.1:9464"
_MAKE = "(umask 077; openssl rand -hex 32 > /etc/spotd/metrics-token)"


def split_address(listen: str) -> tuple[str, int]:
    """(address, port) of "127.0.0.1:9464" or "[::1]:9464". Raises ValueError."""
    address, port = split_listen(listen, example=_EXAMPLE)
    if not ipaddress.ip_address(address).is_loopback:
        raise ValueError(
            f"{listen!r} can be reached from other machines, and the traffic is not encrypted; "
            f"write {_EXAMPLE!r} and let a proxy with TLS, or ssh -L, carry it further"
        )
    return address, port


def _checked(listen: str) -> str:
    if listen:
        split_address(listen)
    return listen


class MetricsSection(Section):
    """A TCP port for Prometheus, beside the socket: on a loopback address, protected by a token."""

    listen: Annotated[str, AfterValidator(_checked)] = Field(
        default="", description=f"Address and port, as {_EXAMPLE}; empty: no port is opened"
    )
    token_file: Path | None = None
    token_env: str | None = None
    token_credential: str | None = None

    def read_token(self, environ: Mapping[str, str]) -> str:
        """Read the token. Raises ValueError ("what; fix")."""
        return read_secret("token", self.model_dump(), environ)


def check_metrics(
    section: MetricsSection, environ: Mapping[str, str]
) -> Iterator[tuple[Keys, str, str]]:
    """Yield the problems of the section."""
    try:
        token = section.read_token(environ)
    except ValueError as error:
        text, _, fix = str(error).partition("; ")
        yield ("metrics", "token_file"), text, fix
        return
    if section.listen and len(token) < LEAST_CHARACTERS:
        text = "is missing" if not token else f"has less than {LEAST_CHARACTERS} characters"
        fix = f"every user of this machine could read what jobs cost: {_MAKE}, and name that file"
        yield ("metrics", "token_file"), text, fix
