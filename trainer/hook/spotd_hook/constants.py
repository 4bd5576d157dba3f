"""Names shared with the agent, equal to those in spotd/wire (a test compares them).

spotd/wire is not on training machines' Python path. Standard library only, Python >= 3.10.
"""

from __future__ import annotations

MAX_LINE_BYTES = 1 << 20
CLAIM_NOW = "now"

EXIT_FINISHED = 0
EXIT_ERROR = 1
EXIT_RELEASED = 75  # saved, and HEAD is released
EXIT_FENCED = 76  # another generation owns HEAD

READY = "ready"
CLAIMED = "claimed"
PROGRESS = "progress"
CHECKPOINT_FAILED = "checkpoint_failed"
PLAN = "plan"
RELEASED = "released"
RESULTS = "results"
WARNING = "warning"
