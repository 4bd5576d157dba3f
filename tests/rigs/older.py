"""The agent as it was before this version of the wire: what a daemon of the version before ships.

`agent-wire-1.pyz` is the bundle of the last revision that spoke version 1. When the version grows,
build the bundle of the last revision before that (`spotd.act.bundle.build_bundle`), and keep the
one of the version before alone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from spotd import wire
from spotd.act.bundle import Bundle

VERSION = wire.WIRE_VERSION - 1
FILE = Path(__file__).parents[1] / "fixtures" / f"agent-wire-{VERSION}.pyz"

# A daemon that ships them: all of it is today's but what it has on the machines.
OLD_DAEMON = """
import sys
import spotd.daemon
from pathlib import Path
from spotd.config import load_config
from tests.rigs.older import bundle

spotd.daemon.build_bundle = bundle
sys.exit(spotd.daemon.run_daemon(load_config(Path(sys.argv[1]), to_start=True)))
"""


def bundle() -> Bundle:
    """The older agent."""
    data = FILE.read_bytes()
    return Bundle(data, hashlib.sha256(data).hexdigest())
