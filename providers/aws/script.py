"""Steps as a script for bash and the AWS command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from providers.setup import EACH, Call, Step, names_in

_HEAD = r"""#!/usr/bin/env bash
# What spotd needs in this AWS account. Run it as often as you like: what is there is left as it is.
set -euo pipefail
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
absent='NoSuchEntity|ResourceNotFoundException|NonExistentQueue|QueueDoesNotExist'

# The answer of `aws ...`; "null" for what does not exist. Any other failure ends this script.
ask() {
  local answer
  if answer=$(aws "$@" --output json 2>"$errors"); then
    printf '%s' "$answer" | tr -d '"'
  elif grep -qE "$absent" "$errors"; then
    printf null
  else
    cat "$errors" >&2
    return 1
  fi
}
absent() { case "$1" in null | false | "") return 0 ;; *) return 1 ;; esac; }
"""


def script(steps: Sequence[Step]) -> str:
    """Each step once: looked for, and made if it is not there."""
    return "\n".join([_HEAD, *(_step(step) for step in steps)])


def _step(step: Step) -> str:
    name = step.name or "found"
    body = [f"{name}=$({_command(step.look)})"]
    if step.make is not None:
        made = _command(step.make)
        make = f"{name}=$({made})" if step.name else f"{made} >/dev/null"
        body += [
            f'if absent "${name}"; then',
            f"  {make}",
            f"  echo {_quoted('made: ' + step.text)}",
            "fi",
        ]
    if step.each:
        letter = f'"\'${{{EACH}: -1}}"'
        net = f"  NET=$(( ($(printf %d {letter}) - 97) % 16 * 16 ))"
        lines = [f"for {EACH} in ${step.each}; do", net, *(f"  {line}" for line in body), "done"]
    else:
        lines = body
    return "\n".join([f"# {step.text}", *lines, ""])


def _command(call: Call) -> str:
    words = ["ask", call.service, call.operation.replace("_", "-"), "--region", call.region]
    line = " ".join(words)
    if call.answer:
        line += f" --query {_quoted(call.answer)}"
    if call.parameters:
        line += f" --cli-input-json {_quoted(json.dumps(call.parameters))}"
    return line


def _quoted(text: str) -> str:
    """For bash; names of ours are filled in, nothing else is."""
    if not names_in(text):
        return shlex.quote(text)
    for special in ("\\", '"', "`"):
        text = text.replace(special, "\\" + special)
    return f'"{text}"'
