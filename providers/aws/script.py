"""Render set-up steps as a bash script with the AWS command line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from providers.iam.script import ABSENT, quoted
from providers.iam.script import script as lines
from providers.iam.setup import Call, Step

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
"""


def script(steps: Sequence[Step]) -> str:
    """Return a script that checks each step and creates what is missing."""
    return lines(_HEAD + ABSENT, steps, _command)


def _command(call: Call) -> str:
    parts = ["ask", call.service, call.operation.replace("_", "-"), "--region", call.region]
    line = " ".join(parts)
    if call.answer:
        line += f" --query {quoted(call.answer)}"
    if call.parameters:
        line += f" --cli-input-json {quoted(json.dumps(call.parameters))}"
    return line
