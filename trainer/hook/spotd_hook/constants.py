"""What this program and the agent call things, as in spotd/wire, which user's machines do not have
(a test compares the two). Standard library only, Python >= 3.10."""

from __future__ import annotations

MAX_LINE_BYTES = 1 << 20
CLAIM_NOW = "now"

EXIT_FINISHED = 0
EXIT_ERROR = 1
EXIT_RELEASED = 75  # saved, and HEAD is given away
EXIT_FENCED = 76  # another generation owns HEAD

READY = "ready"
CLAIMED = "claimed"
PROGRESS = "progress"
CHECKPOINT_FAILED = "checkpoint_failed"
PLAN = "plan"
RELEASED = "released"
RESULTS = "results"
WARNING = "warning"
