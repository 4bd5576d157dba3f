"""Tables of a training run's size: the bar against the card, the offers and the advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotd.base.text import money, place, span
from spotd.cli.render import Cell, Column, print_message, print_table, print_text
from spotd.sizing.checkpoint_size import saves_lines
from spotd.sizing.fit import FITS_WITH, TIGHT_WITH
from spotd.sizing.memory import DOES_NOT_FIT, FITS, TIGHT
from spotd.sizing.task import Task

_BAR = (("state", "█"), ("gather", "▓"), ("activations", "▒"), ("logits", "░"), ("context", "·"))
_CARD_CELLS, _MOST_CELLS = 20, 30  # of a bar: the card's length, and where the bar is cut off
_STYLES = {
    FITS: "green", FITS_WITH: "yellow", TIGHT: "yellow", TIGHT_WITH: "yellow", DOES_NOT_FIT: "red",
}  # fmt: skip
_COLUMNS = (
    Column("GPU", rank=0),
    Column("GPUS", right=True, rank=0),
    Column("GIB/GPU", right=True),
    Column("OF", right=True),
    Column("VERDICT", wrap=True, rank=0),
    Column("MEMORY", rank=2),
    Column("TOKENS/S", right=True),
    Column("TIME", right=True),
)
_OFFER_COLUMNS = (
    Column("WHERE", wrap=True, rank=0),
    Column("MACHINES", wrap=True),
    Column("AS"),
    Column("$/H", right=True),
    Column("VERDICT", wrap=True, rank=0),
    Column("TIME", right=True),
    Column("COST", right=True, rank=0),
)


def print_sizes(task: Task, data: Mapping[str, Any]) -> None:
    """Print the table of sizes, the offers, and why something is slow."""
    gpus = data["items"][-1]["gpus"] if data["items"] else task.run.gpus
    print_text(
        f"{data['model']}, {data['parameters'] / 1e9:.1f} B parameters: {task.run.method}, "
        f"{task.run.sequence:,} tokens a sequence; {_options(task.on(gpus))}"
    )
    if not data["items"]:
        print_message("it fits none of the tried numbers of these GPUs")
    print_table(_COLUMNS, [_row(item) for item in data["items"]])
    print("".join(f"{mark} {part}  " for part, mark in _BAR) + "│ the card")
    if "naive_gib_in_all" in data:
        print_text(
            f"by the rule of 4 bytes a parameter: {data['naive_gib_in_all']} GiB in all, over all "
            "GPUs; no training run is that small"
        )
    for line in saves_lines(data["checkpoint"]):
        print_text(line)
    for item in data["items"]:
        _print_causes(f"{item['gpus']} {item['accelerator']}", item)
    if data["offers"]:
        print_table(_OFFER_COLUMNS, [_offer_row(row) for row in data["offers"][:10]])
        causes: dict[str, Mapping[str, Any]] = {}
        for row in data["offers"][:10]:
            causes.setdefault(row["size"]["cause"] or row["size"]["note"], row)
        for row in causes.values():  # each reason once, at the cheapest place
            _print_causes(place(dict(row)), row["size"])
    print_message(data["limits"])


def _options(task: Task) -> str:
    """Return the options that are given, and the source of the others."""
    told = sorted(task.given - {"method", "gpus", "sequence", "tensor", "context"})
    named = "".join(f"{name} {getattr(task.run, name)}, " for name in told)
    assumed = task.fit(0.0).assumed_text
    if not assumed:
        return named.removesuffix(", ")
    return f"{named}the rest by the defaults of {task.framework}: {assumed}"


def _print_causes(label: str, item: Mapping[str, Any]) -> None:
    if item["assumed"]:
        print_text(f"{label}: {item['text']}")
    if item["note"]:
        print_text(item["note"], indent=2)
    if item["cause"]:
        print_text(f"{label}: {item['cause']}")
        for advice in item["advice"]:
            print_text(f"{advice['text']}", indent=2)


def _row(item: Mapping[str, Any]) -> list[Cell | str]:
    return [
        item["accelerator"],
        str(item["gpus"]),
        f"{item['gib_per_gpu']:.1f}",
        f"{item['card_gib']:.1f}",
        Cell(item["verdict"], _STYLES[item["verdict"]]),
        bar(item["parts_gib"], item["card_gib"]),
        f"{item['tokens_per_s']:,.0f}{'' if item['measured'] else ' ?'}",
        _hours(item),
    ]


def bar(parts_gib: Mapping[str, float], card_gib: float) -> str:
    """Draw the parts stacked against the card, which ends at the line."""
    drawn, total = "", 0.0
    for part, mark in _BAR:
        total += parts_gib[part]
        drawn += mark * (round(total / card_gib * _CARD_CELLS) - len(drawn))
    if len(drawn) > _MOST_CELLS:
        drawn = drawn[: _MOST_CELLS - 1] + "»"
    drawn = drawn.ljust(_CARD_CELLS)
    return f"{drawn[:_CARD_CELLS]}│{drawn[_CARD_CELLS:]}"


def _hours(item: Mapping[str, Any]) -> str:
    return span(item["hours"] * 3600) if item["hours"] else "-"


def _offer_row(row: Mapping[str, Any]) -> list[Cell | str]:
    fit, nodes = row["size"], row["size"]["num_nodes"]
    machines = f"{row['instance_type']} {row['accelerator_count']}x{row['accelerator']}"
    return [
        place(dict(row)),
        f"{nodes} x {machines}" if nodes > 1 else machines,
        row["capacity_type"],
        money(row["price_usd_per_h"] * nodes),
        Cell(fit["text"], _STYLES[fit["verdict"]]),
        Cell(f"{_hours(fit)} late", "yellow") if fit["late"] else _hours(fit),
        money(fit["usd"]),
    ]


def size_columns(offers: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the extra columns of a plan whose job file describes its model."""
    columns = [Column("MEMORY", rank=2)]
    if any(row["size"] and row["size"]["hours"] for row in offers):
        columns += [Column("TIME", right=True), Column("COST", right=True, rank=0)]
    return columns


def size_cells(
    fit: Mapping[str, Any] | None, offers: Sequence[Mapping[str, Any]]
) -> list[Cell | str]:
    """Return the cells of `size_columns` for one offer."""
    if fit is None:
        return ["nothing known", *["-"] * (len(size_columns(offers)) - 1)]
    cells: list[Cell | str] = [Cell(fit["text"], _STYLES[fit["verdict"]])]
    if len(size_columns(offers)) > 1:
        cells += [_hours(fit), money(fit["usd"])]
    return cells


def offer_notes(data: Mapping[str, Any]) -> None:
    """Print below a plan: the source of its times, what is slow, what helps, and the limits."""
    model, sizes = data["model"], [row["size"] for row in data["offers"] if row["size"]]
    measured = model["measured"]
    if measured:
        print_message(
            f"times by {measured['tokens_per_s']:,.0f} tokens/s, measured over "
            f"{measured['steps']} steps on {measured['gpus']} {measured['accelerator']}; by "
            "published runs on other GPUs"
        )
    if sizes and all(size["verdict"] == DOES_NOT_FIT for size in sizes):
        print_message(
            f"{model['name']} fits none of these: spotctl rightsize FILE shows what it would fit"
        )
    explained = [row for row in data["offers"] if row["size"] and _has_explanation(row["size"])]
    for row in explained[:1]:
        _print_causes(place(row), row["size"])
    print_message(f"memory and time of {model['name']}: {model['limits']}")


def _has_explanation(item: Mapping[str, Any]) -> bool:
    return bool(item["cause"] or item["note"])
