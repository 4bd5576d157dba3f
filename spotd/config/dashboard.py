"""The team's dashboard: its address, TLS or proxy, and who may log in; see docs/dashboard.md."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from providers.section import Section
from spotd.api_routes.person import is_person
from spotd.base.addresses import split_listen
from spotd.base.secret_refs import read_secret
from spotd.base.validation import Path as Keys

_EXAMPLE = "0.0.0.0:8443"
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_SECURE = "set dashboard.tls_certificate and dashboard.tls_key, or dashboard.trusted_proxies"


def _checked_listen(listen: str) -> str:
    if listen:
        split_listen(listen, example=_EXAMPLE)
    return listen


def _checked_url(url: str) -> str:
    if not url:
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a web page; write 'https://spotd.example.org'")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{url!r} has more than a host; give the dashboard a host of its own")
    netloc = parts.netloc.lower()
    # Browsers leave the default port out of `Origin`.
    return f"{parts.scheme}://{netloc.removesuffix(_DEFAULT_PORTS[parts.scheme])}"


def is_private(url: str) -> bool:
    """Return whether nobody on the way can read or change a request: https, or this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    local = parts.hostname in _LOCAL_HOSTS
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and local))


def _checked_issuer(issuer: str) -> str:
    if not is_private(issuer):
        raise ValueError(f"{issuer!r} is not encrypted; write its https:// address")
    return issuer


def _checked_proxy(proxy: str) -> str:
    try:
        network = ipaddress.ip_network(proxy)
    except ValueError:
        raise ValueError(
            f"{proxy!r} is no address or network; write '10.0.0.5' or '10.0.0.0/24'"
        ) from None
    if network.prefixlen == 0:
        raise ValueError(
            f"{proxy!r} means everybody, and anybody could then claim any address; name the proxy"
        )
    return proxy


class OidcSection(Section):
    """An OpenID Connect provider, and the roles that its users have on the dashboard.

    The value of a claim, such as an email address or a group, gives the role. Users without a role
    cannot sign in.
    """

    issuer: Annotated[str, AfterValidator(_checked_issuer)] = Field(
        description="As in the provider's metadata, such as https://accounts.google.com"
    )
    client_id: str = Field(min_length=1)
    client_secret_file: Path | None = None
    client_secret_env: str | None = None
    client_secret_credential: str | None = None
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    name_claim: str = Field(
        default="email",
        min_length=1,
        description="Claim with the name that the audit keeps; one that people cannot change",
    )
    role_claim: str = Field(
        default="email", min_length=1, description="Claim that viewers and admins are found by"
    )
    admins: tuple[str, ...] = Field(default=(), description="Values of role_claim")
    viewers: tuple[str, ...] = Field(default=(), description="Values of role_claim")
    trust_email: bool = Field(
        default=False,
        description="Accept an email without email_verified, where people cannot change theirs",
    )
    users: dict[str, str] = Field(
        default={},
        description="Value of name_claim to user of this box, whose groups count",
    )

    def read_client_secret(self, environ: Mapping[str, str]) -> str:
        """Read the secret; "" for a public client. Raises ValueError ("what; fix")."""
        return read_secret("client_secret", self.model_dump(), environ)


class DashboardSection(Section):
    """A dashboard for a team, with a login; `spotctl dashboard` needs none of this."""

    listen: Annotated[str, AfterValidator(_checked_listen)] = Field(
        default="", description=f"Address and port, as {_EXAMPLE}; empty: no port is opened"
    )
    url: Annotated[str, AfterValidator(_checked_url)] = Field(
        default="", description="Address that browsers open, as https://spotd.example.org"
    )
    tls_certificate: Path | None = Field(
        default=None, description="Certificate and its chain, PEM; read again at a reload"
    )
    tls_key: Path | None = None
    trusted_proxies: tuple[Annotated[str, AfterValidator(_checked_proxy)], ...] = Field(
        default=(), description="Addresses whose X-Forwarded-For and -Proto are believed"
    )
    tokens: bool = Field(default=True, description="Log in with tokens of `spotctl user token`")
    session_h: float = Field(default=12.0, gt=0, le=720, description="Hours until a new login")
    oidc: OidcSection | None = None


def check_dashboard(
    section: DashboardSection, environ: Mapping[str, str]
) -> Iterator[tuple[Keys, str, str]]:
    """Yield the problems of the section."""
    if not section.listen:
        return
    if not section.tokens and section.oidc is None:
        text = "allows no login, and without a login the dashboard is not served"
        yield ("dashboard", "tokens"), text, "set it to true, or add [dashboard.oidc]"
    if not section.url:
        text = (
            "is missing: requests from pages of others could not be distinguished from the "
            "team's own"
        )
        yield ("dashboard", "url"), text, "write the address that browsers open"
        return
    yield from _check_transport(section)
    if section.oidc is not None:
        yield from _check_oidc(section.oidc, environ)


def _check_transport(section: DashboardSection) -> Iterator[tuple[Keys, str, str]]:
    """Yield what would let tokens and sessions pass over the network in the clear."""
    for key, given, other in (
        ("tls_key", section.tls_key, section.tls_certificate),
        ("tls_certificate", section.tls_certificate, section.tls_key),
    ):
        if given is None and other is not None:
            yield ("dashboard", key), "is missing", "TLS needs a certificate and its key"
        if given is not None:
            yield from _check_file(key, given)
    address = ipaddress.ip_address(split_listen(section.listen, example=_EXAMPLE)[0])
    secure = section.tls_certificate or section.tls_key or section.trusted_proxies
    if not address.is_loopback and not secure:
        text = f"{section.listen} can be reached from other machines, without TLS and no proxy"
        yield ("dashboard", "listen"), text, f"{_SECURE}, or listen on 127.0.0.1"
        return
    https = section.url.startswith("https:")
    if https and not secure:
        text = f"{section.url} is encrypted, and nothing here encrypts"
        yield ("dashboard", "url"), text, _SECURE
    elif not https and secure:
        text = f"{section.url} is not encrypted: tokens could be read on the way"
        yield ("dashboard", "url"), text, "write its https:// address"
    elif not https and urlsplit(section.url).hostname not in _LOCAL_HOSTS:
        text = f"{section.url} is not encrypted, and not of this machine"
        yield ("dashboard", "url"), text, f"write https://, and {_SECURE}"


def _check_file(key: str, path: Path) -> Iterator[tuple[Keys, str, str]]:
    try:
        path.read_bytes()
    except OSError as error:
        text = f"cannot read {path}: {error.strerror}"
        yield ("dashboard", key), text, "let the user that runs spotd read it"


def _check_oidc(
    section: OidcSection, environ: Mapping[str, str]
) -> Iterator[tuple[Keys, str, str]]:
    if not (section.admins or section.viewers or section.users):
        text = "lets nobody in"
        fix = "name people in viewers or admins, by their email (or by role_claim = 'groups')"
        yield ("dashboard", "oidc", "viewers"), text, fix
    for name, account in section.users.items():
        if not is_person(account):
            text = f"{name} would be {account}, which nobody can log in as"
            fix = "name another user of this box, whose groups count"
            yield ("dashboard", "oidc", "users"), text, fix
    try:
        section.read_client_secret(environ)
    except ValueError as error:
        text, _, fix = str(error).partition("; ")
        yield ("dashboard", "oidc", "client_secret_file"), text, fix
