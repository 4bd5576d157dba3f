"""`spotctl price machines`: what machines multiply for a dollar, and what a guide says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.catalogs.machines import Machine, machine_lists
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say
from spotd.sizing.cards import find

_COLUMNS = (
    Column("TYPE"),
    Column("GPUS"),
    *(Column(t, right=True) for t in ("GB", "TFLOPS", "$/H", "A DOLLAR", "RANK")),
    *(Column(t, right=True) for t in ("SAID: GB", "TFLOPS", "$/H", "A DOLLAR", "RANK")),
    Column("", cut=True),
)


def machines(output: Output = output_option()) -> None:
    """List what four machines multiply for a dollar, beside what a guide says of them.

    TFLOPS are dense BF16 of all GPUs by their vendor, A DOLLAR is by the hour on demand, and RANK
    by that, the best first. It is no speed of training: `spotctl rightsize` foretells that. Prices
    are dated lists; `spotctl offers` has those of now.

    \b
    Example:
      spotctl price machines
      spotctl price machines -o json
    """
    lists = machine_lists()
    said, known = lists["said"], lists["known"]
    left = [_row(one, find(one.accelerator).bf16_tflops * one.gpus) for one in known.machines]
    right = [_row(one, one.tflops or 0.0) for one in said.machines]
    items = [
        {**mine, "said": theirs, "notes": _notes(mine, theirs)}
        for mine, theirs in zip(_ranked(left), _ranked(right), strict=True)
    ]
    sources = {name: {"dated": o.dated, "source": o.source} for name, o in lists.items()}
    data = {"apiVersion": "spotd/v1", "kind": "Machines", "sources": sources, "items": items}
    emit(data, output, lambda: _print(data), "instance_type")


def _row(one: Machine, tflops: float) -> dict[str, Any]:
    return {
        "instance_type": one.name,
        "accelerator": one.accelerator,
        "accelerator_count": one.gpus,
        "memory_gb": one.memory_gb,
        "tflops": round(tflops, 1),
        "usd_per_h": one.usd_per_h,
        "tflops_per_usd": round(tflops / one.usd_per_h, 2),
    }


def _ranked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """With its place among them."""
    order = sorted((row["tflops_per_usd"] for row in rows), reverse=True)
    return [{**row, "rank": order.index(row["tflops_per_usd"]) + 1} for row in rows]


def _notes(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What the guide has otherwise."""
    found = []
    if theirs["accelerator"] != mine["accelerator"]:
        found.append(f"{mine['accelerator']}, not {theirs['accelerator']}")
    if theirs["tflops"] != mine["tflops"]:
        found.append("TFLOPS of one GPU, with sparsity")
    if theirs["usd_per_h"] != mine["usd_per_h"]:
        found.append("another price")
    return found


def _print(data: Mapping[str, Any]) -> None:
    print_table(_COLUMNS, [_cells(one) for one in data["items"]])
    for name, of in data["sources"].items():
        say(f"{name}: {of['source']}, {of['dated']}")


def _cells(one: Mapping[str, Any]) -> list[Cell | str]:
    gpus = f"{one['accelerator']}:{one['accelerator_count']}"
    notes = "; ".join(one["notes"])
    return [
        one["instance_type"],
        gpus,
        *_figures(one),
        *_figures(one["said"]),
        Cell(notes, "yellow"),
    ]


def _figures(of: Mapping[str, Any]) -> list[str]:
    return [
        f"{of['memory_gb']:,.0f}",
        f"{of['tflops']:,.0f}",
        f"${of['usd_per_h']:,.3f}",
        f"{of['tflops_per_usd']:,.1f}",
        str(of["rank"]),
    ]
