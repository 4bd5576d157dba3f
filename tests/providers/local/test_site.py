"""Machines run by an external program: command-line options and the number of addresses."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from providers.local import server
from providers.local.site import MachineSite, SiteError, parse_site

PROGRAM = Path("/bin/sh")


def test_neither_is_the_default() -> None:
    assert parse_site(None, "") is None


@pytest.mark.parametrize(
    ("program", "network", "wrong"),
    [
        (PROGRAM, "", "give both --machine and --network"),
        (None, "198.18.0.0/24", "give both --machine and --network"),
        (Path("/nowhere/at/all"), "198.18.0.0/24", "--machine /nowhere/at/all: there is no such"),
        (PROGRAM, "198.18.0.1/24", "--network 198.18.0.1/24"),
        (PROGRAM, "here", "--network here"),
    ],
)
def test_mistakes_are_named_and_nothing_is_made(
    program: Path | None,
    network: str,
    wrong: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [*(["--machine", str(program)] if program else []), "--network", network]
    assert server.main(["--dir", str(tmp_path / "cloud"), *options]) == 2
    assert wrong in capsys.readouterr().err
    assert not (tmp_path / "cloud").exists()


def test_addresses_follow_the_gateways_and_have_an_end() -> None:
    site = MachineSite(PROGRAM, IPv4Network("198.18.0.0/29"))
    assert [site.host(number) for number in range(1, 6)] == [f"198.18.0.{n}" for n in range(2, 7)]
    with pytest.raises(SiteError, match="has no address left"):
        site.host(6)
