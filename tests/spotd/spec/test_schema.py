"""Test that the checked-in JSON Schema is current and strict."""

import json
import subprocess
import sys
from pathlib import Path

from spotd.spec.__main__ import schema

CHECKED_IN = Path(__file__).parents[3] / "schemas" / "job-v1.json"


def test_the_checked_in_schema_is_current() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "spotd.spec"], check=True, capture_output=True, text=True
    )
    assert printed.stdout == CHECKED_IN.read_text(), (
        "run: python -m spotd.spec > schemas/job-v1.json"
    )
    assert json.loads(printed.stdout) == schema()


def test_the_schema_knows_every_block_and_forbids_strangers() -> None:
    body = schema()
    assert body["required"] == ["run"]
    assert body["additionalProperties"] is False
    assert {"resources", "spotd", "file_mounts", "secrets"} <= body["properties"].keys()
    for name, block in body["$defs"].items():
        assert block["additionalProperties"] is False, name
    checkpoint = body["$defs"]["Checkpoint"]["properties"]
    assert checkpoint["engine"]["enum"] == ["spotd", "none"]
