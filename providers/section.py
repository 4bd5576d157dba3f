"""Base classes of the configuration's tables: what every table has, and what the tables of clouds
and of their object stores have in common."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from providers.http_request import is_loopback


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def formed(pattern: str, like: str) -> AfterValidator:
    """Return a validator for text that matches `pattern`; its error shows the example `like`."""
    form = re.compile(pattern)

    def check(value: str) -> str:
        if not form.fullmatch(value):
            raise ValueError(f"{value[:100]!r} is not possible; write it like {like}")
        return value

    return AfterValidator(check)


def parse_marginal(value: Any) -> int:
    """Parse the extra USD per hour of using a reservation, into micro-USD. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10_000:
        raise ValueError(
            f"{value!r} is not a price; write USD per hour, or 0 if it is already paid"
        )
    return round(value * 1_000_000)


Marginal = Annotated[int, BeforeValidator(parse_marginal)]
RESERVED = "USD/h beyond what you pay for it anyway, often 0. spotd never buys one"
Network = Literal["public", "private", "jump"]
JUMP_KEYS = ("jump", "jump_host_key", "jump_key_file", "jump_key_env", "jump_key_credential")


def parse_host_key(value: str) -> str:
    """A public key in OpenSSH's one-line form, without its comment. Raises ValueError."""
    kind, data = (*value.split(), "", "")[:2]
    try:
        blob = base64.b64decode(data, validate=True)
    except ValueError:
        blob = b""
    name = kind.encode()
    if not name or blob[: 4 + len(name)] != len(name).to_bytes(4, "big") + name:
        raise ValueError(
            f"{value[:60]!r} is not a public key; copy the line of the jump host's own "
            "/etc/ssh/ssh_host_ed25519_key.pub"
        )
    return f"{kind} {data}"


def parse_endpoint(value: str) -> str:
    """The address of an API; "" is the vendor's own. Raises ValueError for one that our
    credentials would be sent to in the clear."""
    parts = urlsplit(value)
    safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts))
    if value and (not safe or not parts.hostname or parts.path.strip("/")):
        raise ValueError(f"{value!r} is not an address of an API; write https://HOST")
    return value.rstrip("/")


class ProviderSection(Section):
    """A table [providers.NAME]. `identity_keys` are those that make two tables the same account,
    whatever their names."""

    identity_keys: ClassVar[frozenset[str]] = frozenset()
    if TYPE_CHECKING:
        kind: str

    def identity(self) -> Mapping[str, object]:
        """Return what makes two providers the same cloud account."""
        return self.model_dump(include={"kind", *self.identity_keys})


class NetworkedProvider(ProviderSection):
    """How the machines of a cloud are reached."""

    network: Network = Field(
        default="public",
        description="Reach machines by their public address, a private one, or a jump host",
    )
    jump: str | None = Field(default=None, description='Jump host: "user@host" or "user@host:port"')
    jump_host_key: Annotated[str, AfterValidator(parse_host_key)] | None = Field(
        default=None, description="Public host key of the jump host; no other is accepted"
    )
    jump_key_file: Path | None = Field(default=None, description="Private key for the jump host")
    jump_key_env: str | None = None
    jump_key_credential: str | None = None
    if TYPE_CHECKING:
        regions: list[str]

    def policy_account(
        self, lends: Sequence[LendSettings], federates: Sequence[FederateSection]
    ) -> Mapping[str, str]:
        """Return what the cloud's policy documents need to know of the account, "" for unset.

        `lends` and `federates` are those tables of all stores.
        """
        del lends, federates
        return {}

    @classmethod
    def two_accounts_fix(cls, cloud: str, key: str) -> str:
        """Return how to get documents although two tables differ in `key`."""
        del key
        return (
            f"`spotctl init {cloud} --deployment ID`, once for each, with its own account and "
            "regions (`spotctl init --help`)"
        )


class LendSettings(Section):
    """The part of [stores.NAME.lend] that one kind of store needs."""

    if TYPE_CHECKING:
        kind: str

    def issuer_settings(self, options: Mapping[str, str]) -> Mapping[str, str]:
        """Return the issuer's settings that the store's `options` have."""
        del options
        return {}


class FederateSection(Section):
    """A table [stores.NAME.federate]."""

    if TYPE_CHECKING:
        kind: str
        clouds: list[str]

    def find_problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (key, text, fix) of what the keys forbid together."""
        yield from ()

    def token_audience(self, cloud: str) -> str:
        """Return the audience of the tokens that machines of `cloud` request for the store; "" if
        they request none."""
        del cloud
        return ""
