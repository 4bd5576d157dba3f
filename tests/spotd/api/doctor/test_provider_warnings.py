"""The doctor counts what clouds answered and no spotd knows yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from providers.error_codes import CodeTable
from spotd.api.doctor.health import doctor
from spotd.api.request.request import ApiRequest
from spotd.base.log import redactor
from tests.spotd.api.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig()
    yield found
    found.close()


def test_the_doctor_counts_unfamiliar_codes(rig: Rig) -> None:
    redactor.register("hunter3-hunter3")
    codes = CodeTable("EC2", ())
    for _ in range(3):
        codes.error("New", "not with hunter3-hunter3")
    codes.error("Newer", "x")
    found = {remark.key: ("aws", remark) for remark in codes.warnings()}
    context = rig.context()
    clouds = replace(context.clouds, provider_warnings=lambda: found)
    checks = doctor(ApiRequest(replace(context, clouds=clouds)))["checks"]
    new, newer = [check for check in checks if check["name"] == "answers of aws"]
    assert new["text"].startswith("3 times: ")
    assert "New: not with" in new["text"]
    assert "hunter3" not in new["text"]
    assert newer["text"].startswith("once: ")
    assert not [c for c in doctor(ApiRequest(rig.context()))["checks"] if "answers of" in c["name"]]
