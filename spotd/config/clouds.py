"""The tables [providers.NAME] of the configuration file: each cloud's class is in its own folder,
the local cloud's is here."""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from providers.cloud_facts import load
from providers.clouds import CLOUDS
from providers.http_request import is_loopback
from providers.local.scenario import PERSONALITIES
from providers.section import NetworkedProvider, ProviderSection


def parse_local_url(value: Any) -> str:
    """The address of a local cloud. Raises ValueError for any other machine: a local provider is
    free of limits because it cannot cost money."""
    parts = urlsplit(str(value))
    host = parts.hostname or ""
    if parts.scheme != "http" or not host or not parts.port or parts.path.strip("/"):
        raise ValueError(
            f"{value!r} is not an address of a local cloud; write http://127.0.0.1:PORT"
        )
    if not is_loopback(parts):
        raise ValueError(f"{host} is not this machine; a local cloud is at http://127.0.0.1:PORT")
    return str(value).rstrip("/")


if TYPE_CHECKING:
    Personality = str
else:
    Personality = Literal[PERSONALITIES]


class LocalProvider(ProviderSection):
    """A cloud whose machines are processes on this one."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"url", "personality"})

    kind: Literal["local"]
    url: Annotated[str, BeforeValidator(parse_local_url)]
    personality: Personality
    token_file: Path | None = None
    end_token_file: Path | None = Field(default=None, description="Credentials for ending machines")


if TYPE_CHECKING:
    Provider = LocalProvider | NetworkedProvider
else:
    _SECTIONS = [load(cloud.section) for cloud in CLOUDS.values()]
    Provider = Annotated[reduce(or_, _SECTIONS, LocalProvider), Field(discriminator="kind")]
