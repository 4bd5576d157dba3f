"""Steps as a script for bash; how a call is written, each cloud's command line says."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from providers.iam.setup import EACH, Call, Step, names_in

# What every script has: "null" stands for what does not exist.
ABSENT = """\
absent() { case "$1" in null | false | "") return 0 ;; *) return 1 ;; esac; }
"""


def script(head: str, steps: Sequence[Step], command: Callable[[Call], str]) -> str:
    """Each step once: looked for, and made if it is not there. `head` defines what the lines that
    `command` makes of calls use."""
    return "\n".join([head, *(_step(step, command) for step in steps)])


def quoted(text: str) -> str:
    """For bash; names of ours are filled in, nothing else is."""
    if not names_in(text):
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
        letter = f'"\'${{{EACH}: -1}}"'
        net = f"  NET=$(( ($(printf %d {letter}) - 97) % 16 * 16 ))"
        lines = [f"for {EACH} in ${step.each}; do", net, *(f"  {line}" for line in body), "done"]
    else:
        lines = body
    return "\n".join([f"# {step.text}", *lines, ""])
