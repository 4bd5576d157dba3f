"""The serial console of a machine, which Azure stores in a blob."""

from __future__ import annotations

import pytest

from providers.base import AuthError, SerialConsole
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import provider, request


def test_what_it_wrote_is_told(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("silent"))
    azure.arm.machine("silent").console = "Kernel panic - not syncing\n"
    assert isinstance(cloud, SerialConsole)
    assert cloud.read_serial_console("silent") == "Kernel panic - not syncing\n"
    blob = azure.arm.calls[-1]
    assert blob.path.startswith("/console/")
    assert "Authorization" not in blob.headers


@pytest.mark.parametrize("ident", ["nobody", "a"])
def test_nobodys_console_is_silent(azure: StandIn, ident: str) -> None:
    assert provider(azure).read_serial_console(ident) == ""


def test_a_refusal_is_an_error(azure: StandIn) -> None:
    azure.arm.faults.arm(Fault("unauthorized", ("POST retrieveBootDiagnosticsData",)))
    with pytest.raises(AuthError):
        provider(azure).read_serial_console("nobody")
