"""Render set-up steps as a bash script; each cloud formats its own calls."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from providers.iam.setup import EACH, Call, Step, placeholders_in

# Part of every script: "null" stands for a missing resource.
ABSENT = """\
absent() { case "$1" in null | false | "") return 0 ;; *) return 1 ;; esac; }
"""


def script(header: str, steps: Sequence[Step], command: Callable[[Call], str]) -> str:
    """Render a script that checks each step and creates what is missing. `header` defines the
    functions that the lines made by `command` use."""
    return "\n".join([header, *(_step(step, command) for step in steps)])


def quoted(text: str) -> str:
    """Quote for bash; only $NAMEs of set-up steps are expanded."""
    if not placeholders_in(text):
        return shlex.quote(text)
    for special in ("\\", '"', "`"):
        text = text.replace(special, "\\" + special)
    return f'"{text}"'


def _step(step: Step, command: Callable[[Call], str]) -> str:
    name = step.name or "found"
    body = [f"{name}=$({command(step.look)})"]
    if step.make is not None:
        made = command(step.make)
        make = f"{name}=$({made})" if step.name else f"{made} >/dev/null"
        body += [
            f'if absent "${name}"; then',
            f"  {make}",
            f"  echo {quoted('made: ' + step.text)}",
            "fi",
        ]
    if step.each:
        last_letter = f'"\'${{{EACH}: -1}}"'
        net_line = f"  NET=$(( ($(printf %d {last_letter}) - 97) % 16 * 16 ))"
        lines = [
            f"for {EACH} in ${step.each}; do",
            net_line,
            *(f"  {line}" for line in body),
            "done",
        ]
    else:
        lines = body
    return "\n".join([f"# {step.text}", *lines, ""])
