"""What nobody has run on a real cloud is said to be so, until a report of a proof is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = {"aws": "AWS", "gcp": "GCP", "azure": "Azure"}


def proven(cloud: str) -> bool:
    reports = ROOT.glob(f"live-reports/{cloud}-*.json")
    return any(json.loads(path.read_text())["ok"] for path in reports)


@pytest.mark.parametrize("cloud", NAMES)
def test_a_cloud_without_a_report_was_never_run_live(cloud: str) -> None:
    page = (ROOT / "docs/clouds" / f"{cloud}.md").read_text()
    [listed] = re.findall(r"- \*\*Never run live\*\*:.*?(?=\n- |\n\n)", readme(), re.DOTALL)
    told = "never run live" in page.lower() and NAMES[cloud] in listed
    assert told is not proven(cloud)


def readme() -> str:
    return (ROOT / "README.md").read_text()
