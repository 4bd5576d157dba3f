"""Render set-up steps as a bash script with the az command line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from providers.iam.script import ABSENT, quoted
from providers.iam.script import script as lines
from providers.iam.setup import Call, Step

_HEAD = r"""#!/usr/bin/env bash
# What spotd needs in this subscription. Run it as often as you like: what is there stays as it is.
set -euo pipefail
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

# The answer of `az rest ...`; "null" for what does not exist. Any other failure ends this script.
# What a PUT made is waited for, and an identity that was just made and is not known everywhere.
ask() {
  local method=$1 url=$2 query=$3 answer state tries=20
  shift 3
  until answer=$(az rest --method "$method" --url "$url" "$@" --query "$query" -o json 2>"$errors")
  do
    if [ "$method" = put ] && grep -q PrincipalNotFound "$errors" && [ $((tries -= 1)) -gt 0 ]; then
      sleep "${PAUSE:-6}"
      continue
    fi
    if [ "$method" = get ] && grep -qE 'Not ?Found|DoesNotExist' "$errors"; then
      printf null
      return 0
    fi
    cat "$errors" >&2
    return 1
  done
  for _ in $(seq 60); do
    [ "$method" = put ] || break
    state=$(az rest --method get --url "$url" --query properties.provisioningState -o tsv)
    case "$state" in
      Succeeded | "") break ;;
      Failed | Canceled) echo "$url: $state" >&2; return 1 ;;
      *) sleep 2 ;;
    esac
  done
  printf '%s' "$answer" | tr -d '"'
}
"""


def script(steps: Sequence[Step]) -> str:
    """Return a script that checks each step and creates what is missing."""
    return lines(_HEAD + ABSENT, steps, _command)


def _command(call: Call) -> str:
    url = f"{call.parameters['path']}?api-version={call.parameters['version']}"
    line = f"ask {call.operation.lower()} {quoted(url)} {quoted(call.answer or 'id')}"
    if "body" in call.parameters:
        line += f" --body {quoted(json.dumps(call.parameters['body']))}"
    return line
