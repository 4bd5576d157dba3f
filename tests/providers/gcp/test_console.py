"""The output of a machine's first serial port."""

from __future__ import annotations

import pytest

from providers.base import AuthError, SerialConsole
from providers.gcp.cloud import CONSOLE_BYTES
from tests.providers.gcp.conftest import Lab, request


def test_its_end_is_told_and_no_more(lab: Lab) -> None:
    cloud = lab.cloud()
    cloud.launch(request("spotd-silent"))
    machine = lab.project.machines["us-central1-a", "spotd-silent"]
    machine.console = "early\n" * 10_000 + "Kernel panic - not syncing\n"
    assert isinstance(cloud, SerialConsole)
    output = cloud.read_serial_console("us-central1-a/spotd-silent")
    assert output.endswith("Kernel panic - not syncing\n")
    assert len(output) == CONSOLE_BYTES


@pytest.mark.parametrize("ident", ["", "nobody", "us-central1-a/nobody"])
def test_nobodys_console_is_silent(lab: Lab, ident: str) -> None:
    assert lab.cloud().read_serial_console(ident) == ""


def test_a_refusal_is_an_error(lab: Lab) -> None:
    lab.fault("unauthorized", "instances.getSerialPortOutput")
    with pytest.raises(AuthError):
        lab.cloud().read_serial_console("us-central1-a/nobody")
