"""docs/clouds/aws.md shows what goes over the wire. SPOTD_WRITE_GOLDEN=1 updates it."""

from __future__ import annotations

import difflib
import json
import os
import re

import pytest

from providers import cloud_init
from tests.providers.aws.test_launch import GOLDEN, LAUNCHES, PAGE
from tests.providers.test_cloud_init import REQUEST

BLOCK = r"(<!-- golden: {} -->\n```\w+\n)(.*?)(```\n)"
LAST_CARD = 32


def _lines(name: str) -> list[str]:
    return (GOLDEN / f"{name}.txt").read_text().splitlines()


def _differences(name: str) -> list[str]:
    """Relative to the spot request; of many equal interfaces, the first and the last."""
    result = []
    for line in difflib.ndiff(_lines("spot"), _lines(name)):
        card = re.match(r"\+ NetworkInterface\.(\d+)\.", line)
        if line[0] in "+-" and (card is None or int(card[1]) in (1, 2, LAST_CARD)):
            result.append(line)
    return result


def _cloud_config() -> list[str]:
    head, _, rest = cloud_init.user_data(REQUEST).partition("\n")
    config = json.loads(rest)
    config["users"][0]["ssh_authorized_keys"] = ["(the job's key)"]
    config["ssh_keys"] = {
        "ed25519_private": "(the machine's)",
        "ed25519_public": "(the machine's)",
    }
    config["write_files"][0]["content"] = "(providers/prepare.sh)"
    return [head, *json.dumps(config, sort_keys=True, indent=1).splitlines()]


SHOWN = {
    "spot": lambda: _lines("spot"),
    "terminate": lambda: _lines("terminate"),
    "image": lambda: _lines("image"),
    "cloud_config": _cloud_config,
    **{
        name: (lambda name=name: _differences(name))  # type: ignore[misc]
        for name in LAUNCHES
        if name != "spot"
    },
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_request_of_the_page(name: str) -> None:
    wanted = "\n".join(SHOWN[name]()) + "\n"
    text = PAGE.read_text()
    block = re.compile(BLOCK.format(name), re.DOTALL)
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        text = block.sub(lambda found: found[1] + wanted + found[3], text)
        PAGE.write_text(text)
    found = block.search(text)
    assert found is not None
    assert found[2] == wanted


def test_the_page_has_no_other_requests() -> None:
    assert set(re.findall(r"<!-- golden: (\w+) -->", PAGE.read_text())) == set(SHOWN)
