"""Costs of saving checkpoints in `spotctl plan`."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.cli.explain import _print_plan


def row(egress: float | None, requests: float | None = None) -> dict[str, Any]:
    return {
        "provider": "aws", "region": "us-east-2", "zone": "us-east-2a", "local": False,
        "instance_type": "p5", "accelerator": "", "accelerator_count": 0, "capacity_type": "spot",
        "price_usd_per_h": 20.0, "list_usd_per_h": 0.0, "excluded": "", "silent": "",
        "checkpoint_usd_per_h": {"egress": egress, "requests": requests},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gb", "egress", "cells"),
    [
        (420.0, [37.8, 0.0, None], ["$37.80", "$0.00", "-"]),
        (420.0, [0.0, 0.0], None),  # wherever it runs, it costs nothing
        (None, [None, 0.0], None),  # nothing is known, and the column would say nothing
    ],
)
def test_save_costs_are_a_column_where_they_differ(
    gb: float | None,
    egress: list[float | None],
    cells: list[str] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [row(offer) for offer in egress]
    _print_plan({"offers": rows, "num_nodes": 1, "checkpoint_gb": gb})
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert ("SAVES $/H" in lines[0]) is (cells is not None)
    assert ("saves of 420 GB each" in shown.err) is (cells is not None)
    if cells is not None:
        assert [line.split()[-1] for line in lines[1:]] == cells


def test_storage_and_request_costs_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [row(37.8, 0.4), row(0.0, 0.4), row(None, 0.4)]
    storage = {"store": "s3://b", "keep": 3, "usd_per_month": 28.98, "usd_per_h": 0.0397}
    about = {"class": "S3 Standard", "region": "us-east-1", "dated": "2026-08-31"}
    plan = {"offers": rows, "num_nodes": 1, "checkpoint_gb": 420.0, "storage": storage | about}
    _print_plan(plan)
    shown = capsys.readouterr()
    cells = [line.split()[-1] for line in shown.out.splitlines()[1:]]
    assert cells == ["$38.20", "$0.4000", "-"]
    assert "and for requests to the store" in shown.err
    assert (
        "storage: 3 checkpoints of 420 GB in s3://b cost $28.98 a month, $0.0397/h (list price of "
        "S3 Standard in us-east-1, 2026-08-31; without what soft delete or versions keep)"
    ) in shown.err
