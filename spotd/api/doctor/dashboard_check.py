"""Check the team's dashboard: its certificate, its proxy, and whether anybody can log in."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from cryptography import x509

from spotd.api.request.context import ApiContext, DashboardFacts
from spotd.api.request.request import Check
from spotd.domain.units import DAY_US, S
from spotd.store.errors import StoreError

SOON_DAYS = 14
_NAME = "dashboard"


def check_dashboard(context: ApiContext, now_us: int) -> list[Check]:
    """Return the checks of the dashboard; none where none is served."""
    facts = context.settings.dashboard()
    if facts is None:
        return []
    checks = [_check_transport(facts, now_us)]
    if not facts.issuer:
        checks += _check_tokens(context, now_us)
    return checks


def _check_transport(facts: DashboardFacts, now_us: int) -> Check:
    if facts.certificate is not None:
        return _check_certificate(facts, facts.certificate, now_us)
    text = f"{facts.url} at {facts.listen}"
    host = ipaddress.ip_address(facts.listen.rpartition(":")[0].strip("[]"))
    if host.is_loopback:
        return Check(_NAME, True, f"{text}, on this machine")
    text += ": the traffic from the proxy is not encrypted"
    advice = "run the proxy on this machine and listen on 127.0.0.1, or set tls_certificate"
    return Check(_NAME, True, text, advice, doubtful=True)


def _check_certificate(facts: DashboardFacts, path: Path, now_us: int) -> Check:
    advice = "renew it, then: systemctl reload spotd"
    try:
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
    except (OSError, ValueError) as error:
        return Check(_NAME, False, f"cannot read the certificate {path}: {error}", advice)
    ends_us = int(certificate.not_valid_after_utc.timestamp() * S)
    days = (ends_us - now_us) / DAY_US
    until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    if days <= 0:
        text = f"the certificate of {facts.url} expired on {until}"
        return Check(_NAME, False, text, advice)
    text = f"{facts.url} at {facts.listen}, with TLS until {until}"
    return Check(_NAME, True, text, advice, doubtful=days < SOON_DAYS)


def _check_tokens(context: ApiContext, now_us: int) -> list[Check]:
    """Report a dashboard that nobody can log in to."""
    try:
        tokens = context.store.logins.tokens()
    except StoreError:
        return []  # the database check reports it
    if any(token.expires_at_us > now_us for token in tokens):
        return []
    text = "nobody has a token, so nobody can log in to the dashboard"
    return [Check("dashboard login", True, text, "spotctl user token NAME", doubtful=True)]
