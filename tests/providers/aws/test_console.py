"""What a machine wrote to its console, as EC2 has it."""

from __future__ import annotations

import pytest

from providers.base import AuthError
from providers.serial_console import Console
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented


def machine(rented: Rented) -> str:
    rented.cloud().launch(rented.request("silent"))
    [found] = rented.cloud().list()
    said = "[    9.1] Kernel panic - not syncing: VFS\n"
    rented.aws.ec2.consoles.said[found.instance_id.partition("/")[2]] = said
    rented.forget()
    return found.instance_id


@pytest.mark.parametrize("live", [True, False])
def test_its_end_is_told(rented: Rented, monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    """As it is now, or of types that cannot do that as EC2 wrote it down last."""
    monkeypatch.setattr(rented.aws.ec2.consoles, "live", live)
    ident, cloud = machine(rented), rented.cloud()
    assert isinstance(cloud, Console)
    assert "Kernel panic" in cloud.console(ident)
    assert rented.actions() == ["GetConsoleOutput"] * (1 if live else 2)


@pytest.mark.parametrize("ident", ["", "nobody", "us-east-1/i-0123456789abcdef0"])
def test_nobodys_console_is_silent(rented: Rented, ident: str) -> None:
    assert rented.cloud().console(ident) == ""


def test_a_refusal_is_an_error(rented: Rented) -> None:
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("GetConsoleOutput",)))
    with pytest.raises(AuthError):
        rented.cloud().console("us-east-1/i-0123456789abcdef0")
