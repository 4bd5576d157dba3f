"""Draw which package imports which, from the code itself.

    python -m tests.architecture.picture          print the picture as Mermaid text
    python -m tests.architecture.picture --write  put it into docs/architecture.md

An arrow from A to B means that modules of A import modules of B. Arrows that follow from others are
left out (transitive reduction), so that the picture shows the order and no more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"```mermaid\nflowchart.*?```\n", re.DOTALL)


def part_of(module: str) -> str:
    """Return the box of a module: its package in spotd, else its top-level package."""
    return ".".join(module.split(".")[: 2 if module.startswith("spotd.") else 1])


def imports() -> dict[str, set[str]]:
    """Return the direct imports between boxes."""
    graph = grimp.build_graph("spotd", "providers", "trainer")
    edges: dict[str, set[str]] = {}
    for module in graph.modules:
        box = part_of(module)
        if box in {"spotd", "spotd.__main__"}:
            continue
        edges.setdefault(box, set())
        for imported in graph.find_modules_directly_imported_by(module):
            target = part_of(imported)
            if target not in {box, "spotd"}:
                edges[box].add(target)
    return edges


def reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the edges that do not follow from others."""

    def reach(box: str) -> set[str]:
        return edges[box].union(*(reach(target) for target in edges[box]))

    return {
        box: {
            target
            for target in targets
            if not any(target in reach(other) for other in targets if other != target)
        }
        for box, targets in edges.items()
    }


def picture() -> str:
    """Return the picture as a fenced Mermaid block."""
    edges = sorted(reduced(imports()).items())
    name = {box: box.replace(".", "_") for box, _ in edges}
    boxes = [f'    {name[box]}["{box}"]' for box, _ in edges]
    arrows = [
        f"    {name[box]} --> {name[target]}"
        for box, targets in edges
        for target in sorted(targets)
    ]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *arrows, "```"]) + "\n"


def main() -> int:
    """Print the picture, or write it into the page. Return the exit code."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(BLOCK.sub(lambda _: picture(), PAGE.read_text(), count=1))
    else:
        print(picture(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
