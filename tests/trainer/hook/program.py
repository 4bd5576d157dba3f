"""Run a user's program as the agent does: with `spotd_hook` and nothing else of ours on its path.

Not a test itself.

    python -m tests.trainer.hook.program PATH ARGUMENTS...
"""

from __future__ import annotations

import os
import runpy
import sys

from trainer.agent.run.prepare import hook_path

if __name__ == "__main__":
    sys.path.append(hook_path())
    del sys.argv[0]
    sys.executable = os.environ.get("SAVERS_PYTHON", sys.executable)
    runpy.run_path(sys.argv[0], run_name="__main__")
