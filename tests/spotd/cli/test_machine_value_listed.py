"""`spotctl price machines`: a guide's table, reproduced from its own inputs and corrected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from providers.catalogs.machines import PriceFileError, read_machines
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
GOOD = '[said]\ndated = 2026-01-01\nsource = "x"\nmachines = [["a", "A10G", 1, 24, 70, 1.2]]\n'
KNOWN = GOOD.replace("said", "known").replace("70, ", "")


def list_machines(spotctl: Spotctl, capsys: Captured) -> list[dict[str, Any]]:
    assert spotctl(None, "price", "machines", "-o", "json") == 0
    data: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["items"]
    return data


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


@pytest.mark.req("RSZ-03")
def test_known_and_claimed_figures(spotctl: Spotctl, capsys: Captured) -> None:
    """TFLOPS are dense and of all GPUs, by the same cards as right-sizing."""
    rows = list_machines(spotctl, capsys)
    assert column(rows, "instance_type") == [
        "g5.xlarge",
        "g5.12xlarge",
        "p4d.24xlarge",
        "p5.48xlarge",
    ]
    assert column(rows, "tflops") == [70, 280, 2496, 7916]
    assert column(rows, "usd_per_h") == [1.006, 5.672, 21.96, 55.04]
    assert column(rows, "memory_gb") == [24, 96, 320, 640]
    claimed = column(rows, "said")
    assert column(claimed, "tflops") == [70, 280, 624, 1979]
    assert column(claimed, "usd_per_h") == [1.212, 4.088, 32.77, 98.32]
    assert column(claimed, "memory_gb") == [24, 96, 320, 1128]
    assert column(rows, "notes")[-1] == [
        "H100, not H200",
        "TFLOPS of one GPU, with sparsity",
        "another price",
    ]


@pytest.mark.req("RSZ-04")
def test_tflops_per_dollar_reverse_the_ranking(spotctl: Spotctl, capsys: Captured) -> None:
    rows = list_machines(spotctl, capsys)
    claimed = column(rows, "said")
    assert [round(x, 1) for x in column(claimed, "tflops_per_usd")] == [57.8, 68.5, 19.0, 20.1]
    assert [round(x, 1) for x in column(rows, "tflops_per_usd")] == [69.6, 49.4, 113.7, 143.8]
    assert column(claimed, "rank") == [2, 1, 4, 3]
    assert column(rows, "rank") == [3, 4, 2, 1]


def test_table_shows_both(
    spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert spotctl(None, "price", "machines") == 0
    shown = capsys.readouterr()
    [line] = [line for line in shown.out.splitlines() if line.startswith("p5.48xlarge")]
    assert line.split()[1:6] == ["H100:8", "640", "7,916", "$55.04", "143.8"]
    assert "skypilot-catalog v9" in shown.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD, "tables are said and known"),
        (GOOD + KNOWN.replace('"a"', '"b"'), "not the types of said"),
        (GOOD + KNOWN.replace("1, 24", "0, 24"), "is not a valid machine"),
        (GOOD + KNOWN.replace("1.2]", "1.2, 5]"), "is not a valid machine"),
        (GOOD + KNOWN.replace("machines", "rows"), "unknown key"),
        (GOOD + KNOWN.replace("2026-01-01", '"x"'), "is not a date"),
        ("[", "not TOML"),
    ],
)
def test_invalid_price_file_is_refused(text: str, message: str) -> None:
    assert read_machines(GOOD + KNOWN)["said"].machines[0].tflops == 70
    with pytest.raises(PriceFileError, match=message):
        read_machines(text)
