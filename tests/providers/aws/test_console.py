"""The serial console of a machine, as EC2 stores it."""

from __future__ import annotations

import pytest

from providers.base import AuthError, SerialConsole
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented


def machine(rented: Rented) -> str:
    rented.cloud().launch(rented.request("silent"))
    [result] = rented.cloud().list()
    output = "[    9.1] Kernel panic - not syncing: VFS\n"
    rented.aws.ec2.consoles.said[result.instance_id.partition("/")[2]] = output
    rented.forget()
    return result.instance_id


@pytest.mark.parametrize("live", [True, False])
def test_its_end_is_told(rented: Rented, monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    """The live output, or for types without it the output that EC2 stored last."""
    monkeypatch.setattr(rented.aws.ec2.consoles, "live", live)
    resource_id, cloud = machine(rented), rented.cloud()
    assert isinstance(cloud, SerialConsole)
    assert "Kernel panic" in cloud.read_serial_console(resource_id)
    assert rented.actions() == ["GetConsoleOutput"] * (1 if live else 2)


@pytest.mark.parametrize("ident", ["", "nobody", "us-east-1/i-0123456789abcdef0"])
def test_nobodys_console_is_silent(rented: Rented, ident: str) -> None:
    assert rented.cloud().read_serial_console(ident) == ""


def test_a_refusal_is_an_error(rented: Rented) -> None:
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("GetConsoleOutput",)))
    with pytest.raises(AuthError):
        rented.cloud().read_serial_console("us-east-1/i-0123456789abcdef0")
