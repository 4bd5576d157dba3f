"""`make mutants`, after the run: how many mutants of each module the tests noticed, and the others.

What mutmut found is in `mutants/`, which it keeps from run to run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

FOUND = Path("mutants/spotd/planner")
SURVIVED = frozenset({0, 33})  # exit codes of pytest: no test failed; none was run


def table(found: Mapping[str, Mapping[str, int | None]]) -> list[str]:
    """Rows of docs/mutants.md, by module; what was not tried yet is told."""
    lines = ["| module | mutants | killed | surviving |", "|---|---|---|---|"]
    total = survived = waiting = 0
    for module, codes in sorted(found.items()):
        alive = [code for code in codes.values() if code in SURVIVED]
        open_ = [code for code in codes.values() if code is None]
        killed = len(codes) - len(alive) - len(open_)
        lines.append(f"| {module} | {len(codes)} | {killed} | {len(alive)} |")
        total, survived, waiting = total + len(codes), survived + len(alive), waiting + len(open_)
    lines.append(f"| all | {total} | {total - survived - waiting} | {survived} |")
    if waiting:
        lines.append(f"\n{waiting} mutants were not tried yet: run it again")
    return lines


def main() -> int:
    """Print the table; exit 1 when there is none."""
    pages = sorted(FOUND.rglob("*.meta"))
    found = {
        str(page.relative_to(FOUND).with_suffix("")): json.loads(page.read_text())[
            "exit_code_by_key"
        ]
        for page in pages
    }
    if not any(found.values()):
        print(f"error: no mutants in {FOUND}: run `make mutants`")
        return 1
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
