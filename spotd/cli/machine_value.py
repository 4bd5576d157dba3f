"""`spotctl price machines`: TFLOPS for a dollar of four machines, beside a guide's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.catalogs.machines import Machine, machine_lists
from providers.dollars import format_usd
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_message, print_table
from spotd.sizing.cards import find

_COLUMNS = (
    Column("TYPE", rank=0),
    Column("GPUS", rank=0),
    *(Column(t, right=True) for t in ("GB", "TFLOPS", "$/H", "A DOLLAR", "RANK")),
    *(Column(t, right=True, rank=2) for t in ("SAID: GB", "TFLOPS", "$/H", "A DOLLAR", "RANK")),
    Column("", wrap=True),
)


def machines(output: Output = output_option()) -> None:
    """List TFLOPS per dollar of four machines, beside the figures of a guide.

    TFLOPS are dense BF16 of all GPUs according to their vendor, A DOLLAR is TFLOPS per on-demand
    dollar and hour, and RANK orders by it, best first. It is not the speed of training: see
    `spotctl rightsize`. Prices are dated lists; see `spotctl offers` for current ones.

    \b
    Example:
      spotctl price machines
      spotctl price machines -o json
    """
    lists = machine_lists()
    claimed, known = lists["said"], lists["known"]
    known_rows = [
        _row(machine, find(machine.accelerator).bf16_tflops * machine.gpus)
        for machine in known.machines
    ]
    claimed_rows = [_row(machine, machine.tflops or 0.0) for machine in claimed.machines]
    items = [
        {**row, "said": claim, "notes": _notes(row, claim)}
        for row, claim in zip(_ranked(known_rows), _ranked(claimed_rows), strict=True)
    ]
    sources = {
        name: {"dated": listed.dated, "source": listed.source} for name, listed in lists.items()
    }
    data = {"apiVersion": "spotd/v1", "kind": "Machines", "sources": sources, "items": items}
    emit(data, output, lambda: _print(data), "instance_type")


def _row(machine: Machine, tflops: float) -> dict[str, Any]:
    return {
        "instance_type": machine.name,
        "accelerator": machine.accelerator,
        "accelerator_count": machine.gpus,
        "memory_gb": machine.memory_gb,
        "tflops": round(tflops, 1),
        "usd_per_h": machine.usd_per_h,
        "tflops_per_usd": round(tflops / machine.usd_per_h, 2),
    }


def _ranked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with their rank by TFLOPS for a dollar."""
    order = sorted((row["tflops_per_usd"] for row in rows), reverse=True)
    return [{**row, "rank": order.index(row["tflops_per_usd"]) + 1} for row in rows]


def _notes(row: Mapping[str, Any], claim: Mapping[str, Any]) -> list[str]:
    """Return where the guide's figures differ."""
    notes = []
    if claim["accelerator"] != row["accelerator"]:
        notes.append(f"{row['accelerator']}, not {claim['accelerator']}")
    if claim["tflops"] != row["tflops"]:
        notes.append("TFLOPS of one GPU, with sparsity")
    if claim["usd_per_h"] != row["usd_per_h"]:
        notes.append("another price")
    return notes


def _print(data: Mapping[str, Any]) -> None:
    print_table(_COLUMNS, [_cells(row) for row in data["items"]])
    for name, source in data["sources"].items():
        print_message(f"{name}: {source['source']}, {source['dated']}")


def _cells(row: Mapping[str, Any]) -> list[Cell | str]:
    gpus = f"{row['accelerator']}:{row['accelerator_count']}"
    notes = "; ".join(row["notes"])
    return [
        row["instance_type"],
        gpus,
        *_figures(row),
        *_figures(row["said"]),
        Cell(notes, "yellow"),
    ]


def _figures(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['memory_gb']:,.0f}",
        f"{row['tflops']:,.0f}",
        format_usd(row["usd_per_h"]),
        f"{row['tflops_per_usd']:,.1f}",
        str(row["rank"]),
    ]
