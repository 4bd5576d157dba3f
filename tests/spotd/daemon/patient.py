"""spotd that waits for its local cloud longer than any test does: `python -m
tests.spotd.daemon.patient run …`."""

from __future__ import annotations

import sys
from functools import partialmethod
from typing import Any

from providers.local.cloud import LocalCloud
from spotd.daemon.command import main
from tests.fixtures.waiting import LIMIT_S

if __name__ == "__main__":
    patient: Any = partialmethod(LocalCloud.__init__, timeout_s=3 * LIMIT_S)
    LocalCloud.__init__ = patient  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
