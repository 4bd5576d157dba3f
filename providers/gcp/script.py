"""Render set-up steps as a bash script with the gcloud command line."""

from __future__ import annotations

from collections.abc import Sequence

from providers.iam.setup import Step

_HEAD = """\
#!/usr/bin/env bash
# What spotd needs in this project. Run it as often as you like: what is there is left as it is.
set -euo pipefail
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

# Whether it is there; any error but that it is not ends this script.
there() {
  if bash -o pipefail -c "$1" >/dev/null 2>"$errors"; then return 0; fi
  grep -q '^ERROR' "$errors" || return 1
  if grep -qE 'NOT_FOUND|was not found' "$errors"; then return 1; fi
  cat "$errors" >&2
  exit 1
}

# An account that was just made is not known to policies at once.
bind() {
  for _ in $(seq 20); do
    if "$@" >/dev/null 2>"$errors"; then return 0; fi
    grep -qi 'service account .*does not exist' "$errors" || break
    sleep "${PAUSE:-6}"
  done
  cat "$errors" >&2
  return 1
}

# What a member has of a role under another condition than EXPRESSION is of an earlier run, when the
# stores were others: taken out. PROJECT MEMBER ROLE TITLE EXPRESSION
only() {
  gcloud projects get-iam-policy "$1" --flatten='bindings[].members' \\
    --filter="bindings.role=$3 AND bindings.members=$2" \\
    --format='value(bindings.condition.expression)' |
  while IFS= read -r old; do
    if [ "$old" = "$5" ]; then continue; fi
    condition=None
    if [ -n "$old" ]; then condition="^;^title=$4;expression=$old"; fi
    if gcloud projects remove-iam-policy-binding "$1" --member="$2" --role="$3" \\
      --condition="$condition" --quiet </dev/null >/dev/null; then
      echo "taken out: an old condition of the role $4"
    else
      echo "still there: an old condition of the role $4: take it out by hand" >&2
    fi
  done
}
"""


def script(steps: Sequence[Step]) -> str:
    """Return a script that checks each step and creates what is missing."""
    return "\n".join([_HEAD, *(_step(step) for step in steps)])


def _step(step: Step) -> str:
    check, create = step.commands
    safe_text = step.text.replace("'", "")
    lines = [f"# {step.text}"]
    if check == "false":
        return "\n".join([*lines, f"bind {create}", ""])
    lines += [f"look=$(cat <<'LOOK'\n{check}\nLOOK\n)", 'if ! there "$look"; then', f"  {create}"]
    assignment = [f"{step.name}=$({check})"] if step.name else []
    return "\n".join([*lines, f"  echo 'made: {safe_text}'", "fi", *assignment, ""])
