"""Output in the requested form: tables for people, versioned JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from spotd.base.text import clean

if TYPE_CHECKING:
    from rich.console import Console

HELP = {"help_option_names": ["-h", "--help"]}  # context settings of sub-groups
_PIPE_WIDTH = 1000  # wide enough that nothing is cut off in a pipe


class Output(str, Enum):
    TABLE = "table"
    JSON = "json"
    NAME = "name"


def output_option() -> Any:
    """Return the `-o` option of every command that prints data."""
    return typer.Option(Output.TABLE, "-o", "--output", metavar="FORM", help="table, json or name.")


@dataclass(frozen=True)
class Column:
    """One table column. Only a `cut` column is shortened when the terminal is too narrow.

    The last `tail` characters of its texts are never cut, because they carry meaning, as in
    "(local)".
    """

    title: str
    right: bool = False
    cut: bool = False
    tail: int = 0


@dataclass(frozen=True)
class Cell:
    """A text with a style of `rich`."""

    text: str
    style: str = ""


PHASE_STYLES = {
    "running": "green",
    "succeeded": "green",
    "draining": "yellow",
    "recovering": "yellow",
    "failed": "red",
    "cancelled": "dim",
    "paused": "dim",
}


def phase_cell(job: dict[str, Any]) -> Cell:
    """Return a job's phase as a cell; a success that kept nothing is not green."""
    if job.get("kept_nothing"):
        return Cell(f"{job['phase']}, nothing kept", "yellow")
    if job.get("approval"):
        return Cell(f"{job['phase']}, needs approval", "yellow")
    return Cell(job["phase"], PHASE_STYLES.get(job["phase"], ""))


def emit(data: dict[str, Any], output: Output, table: Callable[[], None], names: str) -> None:
    """Print `data` as JSON, or the field `names` of each item on a line, or by calling `table`."""
    if output is Output.JSON:
        print(json.dumps(data, indent=2))
    elif output is Output.NAME:
        for item in data.get("items", [data]):
            print(clean(item[names]))
    else:
        table()


def emit_line(data: dict[str, Any]) -> None:
    """Print one object of a stream as one line of JSON."""
    print(json.dumps(data, separators=(",", ":")), flush=True)


def console() -> Console:
    """Return a console on stdout for tables.

    It is as wide as the terminal; in a pipe it is wide enough for every line.
    """
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
    if "COLUMNS" in os.environ:
        width = shutil.get_terminal_size().columns
    return Console(width=width, highlight=False, soft_wrap=False)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> None:
    """Print aligned columns without rules.

    If even the shortened columns do not fit the terminal, lines get longer than it; no column is
    lost.
    """
    from rich.text import Text

    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[Cell(clean(cell.text), cell.style) for cell in row] for row in cells]
    target = console()
    widths = _widths(columns, cells, target.width)
    titles = [Cell(column.title, "bold") for column in columns]
    for row in [titles, *cells]:
        line = Text("  ").join(
            Text(_fit(cell.text, width, column), style=cell.style)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        line.rstrip()
        target.print(line, soft_wrap=True)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], available: int) -> list[int]:
    """Return the width of each column: as needed, then shorten the widest `cut` columns."""
    from rich.cells import cell_len

    texts = [[column.title, *(row[i].text for row in rows)] for i, column in enumerate(columns)]
    widths = [max(cell_len(text) for text in column) for column in texts]
    excess = sum(widths) + 2 * (len(widths) - 1) - available
    for _ in range(max(0, excess)):
        shrinkable = [
            i for i, column in enumerate(columns) if column.cut and widths[i] > 8 + column.tail
        ]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda i: widths[i] - columns[i].tail)] -= 1
    return widths


def _fit(text: str, width: int, column: Column) -> str:
    """Return `text` shortened or padded to exactly `width` cells."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > width:
        tail = text[len(text) - column.tail :] if column.tail else ""
        text = (
            set_cell_size(text, width - 1 - cell_len(tail)).rstrip()
            + "\N{HORIZONTAL ELLIPSIS}"
            + tail
        )
    padding = " " * (width - cell_len(text))
    return padding + text if column.right else text + padding


def print_pairs(pairs: Sequence[tuple[str, Cell | str]]) -> None:
    """Print one `name  value` line for each pair; empty values and "-" are left out."""
    from rich.text import Text

    shown = [(name, cell if isinstance(cell, Cell) else Cell(cell)) for name, cell in pairs]
    shown = [(name, cell) for name, cell in shown if cell.text not in ("", "-")]
    width = max((len(name) for name, _ in shown), default=0)
    target = console()
    for name, cell in shown:
        text = Text(f"{name:<{width}}  ", style="dim") + Text(clean(cell.text), style=cell.style)
        target.print(text, soft_wrap=True)


def print_message(message: str) -> None:
    """Print one line for the user on stderr; never data."""
    print(clean(message), file=sys.stderr, flush=True)
