"""Run a program of several ranks to its end, and leave without Python's own clean-up.

Gloo's threads outlive `destroy_process_group` where a device mesh holds the group, and one that
releases a tensor while Python ends aborts the process (pytorch/pytorch#179291). On GPUs there is no
such thread.
"""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    runpy.run_path(sys.argv[1], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
