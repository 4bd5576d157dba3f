"""The team's dashboard in the configuration: what it takes, and what would not be safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotd.config.dashboard import DashboardSection
from tests.spotd.config.test_load import LOCAL, load, refused

OIDC = """
[dashboard.oidc]
issuer = "https://id.example.org"
client_id = "spotd"
viewers = ["ada@example.org"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("PEM")
    return tmp_path / "config.toml"


def dashboard(file: Path, lines: str) -> str:
    text = lines.replace("TLS", 'tls_certificate = "DIR/cert.pem"\ntls_key = "DIR/key.pem"')
    return f"{LOCAL}[dashboard]\n{text}\n".replace("DIR", str(file.parent))


@pytest.mark.parametrize(
    "lines",
    [
        'listen = "0.0.0.0:8443"\nurl = "https://spotd.example.org:8443"\nTLS',
        'listen = "[::]:8443"\nurl = "https://spotd.example.org"\nTLS',
        'listen = "0.0.0.0:8080"\nurl = "https://s.example.org"\ntrusted_proxies = ["10.0.0.5"]',
        'listen = "127.0.0.1:8080"\nurl = "https://s.example.org"\ntrusted_proxies = ["127.0.0.1"]',
        'listen = "127.0.0.1:8080"\nurl = "http://localhost:8080"',
        f'listen = "127.0.0.1:8080"\nurl = "http://127.0.0.1:8080"\ntokens = false\n{OIDC}',
        "",
        'url = "https://spotd.example.org"',
    ],
)
def test_what_is_safe_is_taken(file: Path, lines: str) -> None:
    load(file, dashboard(file, lines))


HTTPS = 'url = "https://spotd.example.org"'
OPEN = f'listen = "0.0.0.0:8443"\n{HTTPS}'
HOME = 'listen = "127.0.0.1:8443"\nurl = "http://127.0.0.1:8443"'


@pytest.mark.parametrize(
    ("lines", "key", "said"),
    [
        (OPEN, "listen", "can be reached from other machines, without TLS and no proxy"),
        (f'listen = "[::]:8443"\n{HTTPS}', "listen", "can be reached from other machines"),
        (f"{OPEN}\nTLS\ntokens = false", "tokens", "allows no login"),
        (f"{HOME}\ntokens = false", "tokens", "without a login the dashboard is not served"),
        ('listen = "0.0.0.0:8443"\nTLS', "url", "is missing"),
        ('listen = "0.0.0.0:1"\nurl = "http://s.example.org"\nTLS', "url", "not encrypted"),
        (f'listen = "127.0.0.1:1"\n{HTTPS}', "url", "nothing here encrypts"),
        ('listen = "127.0.0.1:1"\nurl = "http://s.example.org"', "url", "not of this machine"),
        ('url = "spotd.example.org"', "url", "no address of a web page"),
        ('url = "https://example.org/spotd"', "url", "more than a host"),
        (f'{OPEN}\ntls_certificate = "DIR/cert.pem"', "tls_key", "is missing"),
        (f'{OPEN}\ntls_key = "DIR/key.pem"', "tls_certificate", "is missing"),
        (
            f'{OPEN}\ntls_certificate = "DIR/none.pem"\ntls_key = "DIR/key.pem"',
            "tls_certificate",
            "cannot read",
        ),
        (f'{OPEN}\nTLS\ntrusted_proxies = ["0.0.0.0/0"]', "trusted_proxies", "means everybody"),
        (f'{OPEN}\nTLS\ntrusted_proxies = ["proxy"]', "trusted_proxies", "no address or network"),
        ('listen = "8443"', "listen", "is not an address and port"),
        (f"{HOME}\n{OIDC.replace('https', 'http')}", "oidc.issuer", "is not encrypted"),
        (f"{HOME}\n{OIDC.partition('viewers')[0]}", "oidc.viewers", "lets nobody in"),
        (f'{HOME}\n{OIDC}users = {{ ada = "root" }}', "oidc.users", "nobody can log in as"),
        (
            f'{HOME}\n{OIDC}client_secret_file = "DIR/none"',
            "oidc.client_secret_file",
            "cannot read",
        ),
    ],
)
def test_what_is_not_safe_is_refused_by_one_error(
    file: Path, lines: str, key: str, said: str
) -> None:
    [problem] = refused(file, dashboard(file, lines))
    assert problem.startswith(f"dashboard.{key}"), problem
    assert said in problem


def test_the_default_port_is_no_part_of_the_url() -> None:
    """Browsers leave it out of `Origin`, so every form would be refused."""
    for url, plain in (
        ("https://S.example.org:443", "https://s.example.org"),
        ("http://localhost:80/", "http://localhost"),
        ("https://s.example.org:8443", "https://s.example.org:8443"),
    ):
        assert DashboardSection(url=url).url == plain
