"""A job on spot machines that saves nothing is warned of what that costs."""

from __future__ import annotations

import pytest

from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, Rig

UNSAVED = JOB_FILE.replace("engine: spotd, every_steps: 100", "engine: none")


@pytest.fixture
def client(rig: Rig) -> PathClient:
    return PathClient(rig.socket)


def warnings(client: PathClient, text: str, **more: object) -> list[str]:
    body = {"yaml": text, "request_id": "r", **more}
    found = client.post("/v1/jobs", body)["warnings"]
    return [warning for warning in found if "saves no checkpoints" in warning]


def test_a_preemption_of_one_that_saves_nothing_has_its_price(client: PathClient) -> None:
    [warning] = warnings(client, UNSAVED)
    [planned] = [
        text
        for text in client.post("/v1/plan", {"yaml": UNSAVED})["warnings"]
        if "saves no checkpoints" in text
    ]
    assert warning == planned
    assert "one is expected every 4 h" in warning
    assert "mode: directory, path: FOLDER" in warning


def test_who_accepts_it_is_not_warned(client: PathClient) -> None:
    assert warnings(client, UNSAVED, no_checkpoints=True) == []


@pytest.mark.parametrize(
    "text",
    [
        JOB_FILE,
        JOB_FILE.replace("engine: spotd, every_steps: 100", "mode: directory, path: out"),
        UNSAVED.replace("H100:8", "H100:8\n  use_spot: false"),
    ],
)
def test_one_that_saves_or_has_no_spot_machine_is_not_warned(client: PathClient, text: str) -> None:
    assert warnings(client, text) == []
