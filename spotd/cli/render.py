"""Output in the requested form: tables for people, versioned JSON for programs.

`Progress` is the line on the terminal while something is transferred.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from spotd.base.text import clean
from spotd.cli.local_time import localised

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
from spotd.base.text import size

HELP = {"help_option_names": ["-h", "--help"]}  # context settings of sub-groups
_FULL_WIDTH = 1000  # wide enough for every line; that of a pipe
_INDENT = 2
_WRAPPED_LINES = 3
_WIDE: ContextVar[bool] = ContextVar("wide", default=False)
_LEFT_OUT: ContextVar[int] = ContextVar("left_out", default=0)


class Output(str, Enum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"

    @property
    def is_table(self) -> bool:
        """Whether the output is for people; `wide` is a table with every column."""
        return self in (Output.TABLE, Output.WIDE)


def output_option() -> Any:
    """Return the `-o` option of every command that prints data."""
    return typer.Option(
        Output.TABLE, "-o", "--output", metavar="FORM", help="table, wide, json or name."
    )


@dataclass(frozen=True)
class Column:
    """One table column.

    On a terminal that is too narrow the columns of the highest `rank` are left out first, from the
    right; those of rank 0 always stay. A `wrap` column goes on over several lines, between words.
    """

    title: str
    right: bool = False
    wrap: bool = False
    rank: int = 1


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
        wide_before, left_out_before = _WIDE.set(output is Output.WIDE), _LEFT_OUT.set(0)
        try:
            table()
            _print_left_out(_LEFT_OUT.get())
        finally:
            _WIDE.reset(wide_before)
            _LEFT_OUT.reset(left_out_before)


def _print_left_out(count: int) -> None:
    """Print one dim line on stderr with the number of columns that had no room."""
    if count:
        from rich.console import Console

        columns = "1 column" if count == 1 else f"{count} columns"
        Console(stderr=True, highlight=False).print(
            f"{columns} left out; -o wide shows all", style="dim", soft_wrap=True
        )


def emit_line(data: dict[str, Any]) -> None:
    """Print one object of a stream as one line of JSON."""
    print(json.dumps(data, separators=(",", ":")), flush=True)


def console() -> Console:
    """Return a console on stdout for tables.

    It is as wide as the terminal; in a pipe, and with `-o wide`, it is wide enough for every line.
    """
    from rich.console import Console

    return Console(width=_width(), highlight=False, soft_wrap=False)


def _width() -> int:
    if not _WIDE.get() and (sys.stdout.isatty() or "COLUMNS" in os.environ):
        return shutil.get_terminal_size().columns
    return _FULL_WIDTH


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> None:
    """Print aligned columns without rules, no line longer than the terminal is wide.

    What makes room, in this order: "(local)" after a place goes, `wrap` columns take several lines,
    columns are left out by their rank, and the first column takes a line of its own. No word is
    broken: a line is too long only where a single word is.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[Cell(shown(cell.text), cell.style) for cell in row] for row in cells]
    table = [[Cell(column.title, "bold") for column in columns], *cells]
    width = _width()
    if sum(_natural_widths(table)) + _gaps(len(columns)) > width:
        table = [[Cell(c.text.replace(" (local)", ""), c.style) for c in row] for row in table]
    layout = _fit(columns, table, width)
    folded = not layout
    if folded:  # the first column on a line of its own
        rest = _fit(columns[1:], [row[1:] for row in table], width - _INDENT)
        layout = {number + 1: size for number, size in rest.items()} or dict(
            enumerate(_natural_widths(table)[1:], 1)
        )
    _LEFT_OUT.set(_LEFT_OUT.get() + len(columns) - len(layout) - folded)
    target = console()
    for row in table:
        if folded:
            target.print(row[0].text, style=row[0].style, soft_wrap=True)
        for line in _lines(columns, row, layout, indent=_INDENT if folded else 0):
            target.print(line, soft_wrap=True)


def _gaps(count: int) -> int:
    return 2 * (count - 1)


def _natural_widths(table: Sequence[Sequence[Cell]]) -> list[int]:
    from rich.cells import cell_len

    return [max(cell_len(cell.text) for cell in column) for column in zip(*table, strict=True)]


def _fit(
    columns: Sequence[Column], table: Sequence[Sequence[Cell]], available: int
) -> dict[int, int]:
    """Return the width of each column that is shown, by its number; {} if even rank 0 is too wide.

    A wrapped cell takes about three lines before another column is left out for its sake, and as
    many as its words need once there is none to leave out.
    """
    natural = _natural_widths(table)
    longest = [
        max(len(word) for cell in column for word in (cell.text.split() or [""]))
        for column in zip(*table, strict=True)
    ]
    kept = dict(enumerate(natural))
    optional = sorted((i for i in kept if columns[i].rank), key=lambda i: (columns[i].rank, i))
    while True:
        lines = _WRAPPED_LINES if optional else max(natural, default=1) or 1
        floors = {
            i: max(longest[i], -(-natural[i] // lines)) if columns[i].wrap else natural[i]
            for i in kept
        }
        if sum(floors.values()) + _gaps(len(kept)) <= available:
            return _shrink({i: natural[i] for i in kept}, floors, available - _gaps(len(kept)))
        if not optional:
            return {}
        del kept[optional.pop()]


def _shrink(widths: dict[int, int], floors: dict[int, int], available: int) -> dict[int, int]:
    """Return `widths` with the widest made narrower until their sum is `available`."""
    for _ in range(sum(widths.values()) - available):
        widest = max((i for i in widths if widths[i] > floors[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _lines(
    columns: Sequence[Column], row: Sequence[Cell], layout: dict[int, int], indent: int
) -> Iterator[Text]:
    """Yield the lines of one row."""
    from rich.cells import cell_len
    from rich.text import Text

    blocks = {i: wrapped(row[i].text, width) for i, width in layout.items()}
    for number in range(max(len(block) for block in blocks.values())):
        line = Text(" " * indent)
        for i, block in blocks.items():
            text = block[number] if number < len(block) else ""
            padding = " " * (layout[i] - cell_len(text))
            line.append(padding + text if columns[i].right else text + padding, row[i].style)
            line.append("  ")
        line.rstrip()
        yield line


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width`, broken between words only."""
    if len(text) <= width:
        return [text]
    lines = textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def shown(text: object) -> str:
    """Return a text as a terminal shows it: harmless, on one line, times in the user's zone."""
    return localised(clean(text))


def print_pairs(pairs: Sequence[tuple[str, Cell | str]]) -> None:
    """Print one `name  value` line for each pair; empty values and "-" are left out."""
    from rich.text import Text

    given = [(name, cell if isinstance(cell, Cell) else Cell(cell)) for name, cell in pairs]
    given = [(name, cell) for name, cell in given if cell.text not in ("", "-")]
    width = max((len(name) for name, _ in given), default=0)
    target = console()
    for name, cell in given:
        for number, line in enumerate(wrapped(shown(cell.text), target.width - width - 2)):
            head = f"{'' if number else name:<{width}}  "
            target.print(Text(head, "dim") + Text(line, cell.style), soft_wrap=True)


def print_text(text: str, indent: int = 0, colour: str | None = None) -> None:
    """Print a sentence on stdout; its further lines are indented by two more."""
    for number, line in enumerate(wrapped(shown(text), _width() - indent - _INDENT)):
        margin = " " * (indent + (_INDENT if number else 0))
        typer.echo(margin + (typer.style(line, fg=colour) if colour else line))


def print_message(message: str) -> None:
    """Print one line for the user on stderr; never data. A terminal's lines end between words."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else _FULL_WIDTH
    text = shown(message)
    lead = len(text) - len(text.lstrip(" "))
    for line in wrapped(text.lstrip(" "), width - lead):
        print(" " * lead + line, file=sys.stderr, flush=True)


class Progress:
    """A line on a terminal's stderr that is rewritten in place; nothing if stderr is a pipe."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._enabled = sys.stderr.isatty()

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are done."""
        if self._enabled:
            share = 100 * done // total if total else 100
            line = f"{self._verb} {size(done)} of {size(total)} ({share} %)"
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Erase the line."""
        if self._enabled:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
