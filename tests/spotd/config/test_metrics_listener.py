"""The door for Prometheus in the configuration: what it takes, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotd.config.metrics_listener import split_address
from tests.spotd.config.test_load import LOCAL, load, refused

TOKEN = "0123456789abcdef"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return tmp_path / "config.toml"


def metrics(file: Path, listen: str) -> str:
    return f'{LOCAL}[metrics]\nlisten = "{listen}"\ntoken_file = "{file.parent}/token"\n'


def test_a_door_on_this_machine(file: Path) -> None:
    section = load(file, metrics(file, "127.0.0.1:9464")).file.metrics
    assert section.read_token({}) == TOKEN
    assert split_address(section.listen) == ("127.0.0.1", 9464)
    assert split_address("[::1]:9464") == ("::1", 9464)


def test_without_it_there_is_none(file: Path) -> None:
    assert load(file, LOCAL).file.metrics.listen == ""


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:9464", "can be reached from other machines, and the traffic is not encrypted"),
        ("[::]:9464", "can be reached from other machines"),
        ("192.0.2.7:9464", "can be reached from other machines"),
        ("9464", "is not an address and port"),
        ("localhost:9464", "is not an address and port"),
        ("127.0.0.1:0", "has no port from 1 to 65535"),
        ("127.0.0.1:metrics", "has no port"),
        ("127.0.0.1:65536", "has no port"),
    ],
)
def test_an_address_that_is_none_of_this_machine_alone(file: Path, listen: str, said: str) -> None:
    [problem] = refused(file, metrics(file, listen))
    assert problem.startswith("metrics.listen: ")
    assert said in problem


@pytest.mark.parametrize(
    ("token", "said"), [("", "is empty"), ("short", "has less than 16 characters")]
)
def test_a_token_that_is_none(file: Path, token: str, said: str) -> None:
    (file.parent / "token").write_text(token)
    [problem] = refused(file, metrics(file, "127.0.0.1:9464"))
    assert problem.startswith("metrics.token_file: ")
    assert said in problem


def test_a_door_without_a_token(file: Path) -> None:
    [problem] = refused(file, f'{LOCAL}[metrics]\nlisten = "127.0.0.1:9464"\n')
    assert problem.startswith("metrics.token_file: is missing")
    assert "openssl rand -hex 32" in problem
