"""`make audit`: known vulnerabilities of every package in constraints.txt, by pip-audit.

pip-audit calls it success when the advisory service knew none of the packages, and says "No known
vulnerabilities found". Here only a package that was looked up counts: exit 0 when all of them were
and none is vulnerable, 1 for a vulnerability, 2 when any package was not audited.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
COMMAND = ("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off")
_SHOWN = 10


def pinned(text: str) -> set[str]:
    """The names in a file of constraints, as package indexes compare them."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)
    return {_plain(name) for name in found}


def judge(wanted: set[str], output: str, error: str) -> tuple[int, list[str]]:
    """The exit code, and what to print, of what pip-audit said about the packages `wanted`."""
    try:
        rows: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (error.strip().splitlines() or ["pip-audit said nothing"])[-1]
        return 2, [_count(0, wanted), f"pip-audit did not get through: {last[:300]}"]
    audited = {_plain(row["name"]): row["vulns"] for row in rows if "vulns" in row}
    reasons = {_plain(row["name"]): row.get("skip_reason", "") for row in rows}
    found = [
        f"{name}: {vuln['id']} (fixed in {', '.join(vuln['fix_versions']) or 'no version yet'})"
        for name, vulns in sorted(audited.items())
        for vuln in vulns
    ]
    missing = sorted(wanted - audited.keys())
    lines = [_count(len(wanted) - len(missing), wanted)]
    lines += [
        f"NOT AUDITED {name}: {reasons.get(name, 'not told of')}" for name in missing[:_SHOWN]
    ]
    if len(missing) > _SHOWN:
        lines.append(f"and {len(missing) - _SHOWN} more that were not audited")
    lines += [f"VULNERABLE {line}" for line in found]
    if not missing and not found:
        lines.append("no known vulnerability")
    return (1 if found else 2 if missing or not wanted else 0), lines


def _count(audited: int, wanted: set[str]) -> str:
    return f"{audited} of {len(wanted)} packages audited"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Run pip-audit and judge what it said."""
    command = [sys.executable, "-m", "pip_audit", "-r", str(CONSTRAINTS), *COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    code, lines = judge(pinned(CONSTRAINTS.read_text()), done.stdout, done.stderr)
    print("\n".join(lines))
    if code == 2:
        print("error: the audit is not done: let it reach the advisory service, and run it again")
    return code


if __name__ == "__main__":
    sys.exit(main())
