"""`python -m providers.local.server --dir DIR`: run the local cloud until SIGTERM or SIGINT.

When ready it prints one JSON line, `{"url": "http://127.0.0.1:PORT", ...}`, and keeps it in
DIR/server.json while it runs. Requests need the token in DIR/token. All machines end with the
server, also on SIGKILL.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from providers.local.access import load_or_create_token, token_file
from providers.local.api import Api, Server
from providers.local.blocking_http import bind
from providers.local.cloud_state import CloudState
from providers.local.preemption import Preemptor
from providers.local.process_pool import ProcessPoolError
from providers.local.scenario import DEFAULT, Scenario
from providers.local.scenario_fields import ScenarioError
from providers.local.scenario_file import load
from providers.local.site import MachineSite, SiteError, parse_site

_HEARTBEAT_S = 1.0
_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def main(argv: list[str] | None = None) -> int:
    """Run the server. Returns 2 for bad arguments, 1 if it cannot start or its fork server died."""
    parser = argparse.ArgumentParser(prog="python -m providers.local.server", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="disks, ledger and logs")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; 0 takes a free one")
    parser.add_argument("--scenario", type=Path, help="TOML file; see examples/scenarios/")
    parser.add_argument(
        "--machine", type=Path, metavar="PROGRAM", help="makes each machine; see site.py"
    )
    parser.add_argument("--network", default="", metavar="CIDR", help="of those machines")
    options = parser.parse_args(argv)
    folder: Path = options.dir.absolute()
    try:
        scenario = load(options.scenario) if options.scenario else DEFAULT
        site = parse_site(options.machine, options.network)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _serve(folder, options.port, scenario, site)
    except SiteError as error:
        print(f"the local cloud cannot start: {error}", file=sys.stderr)
        return 2
    except ScenarioError as error:
        print(f"the scenario has mistakes; correct them and start again:\n{error}", file=sys.stderr)
        return 2
    except (OSError, ProcessPoolError) as error:
        print(f"the local cloud cannot start: {error}", file=sys.stderr)
    return 1


def _serve(folder: Path, port: int, scenario: Scenario, site: MachineSite | None) -> int:
    # Block them before any thread starts, so that only `sigtimedwait` gets them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    fork_server_died = threading.Event()

    def on_death() -> None:
        fork_server_died.set()
        os.kill(os.getpid(), signal.SIGTERM)

    bound = bind("127.0.0.1", port)
    cloud = CloudState(folder, scenario, on_death, site)
    server = Server(bound, Api(cloud, Preemptor(cloud)), load_or_create_token(folder))
    try:
        server.start()
        token = str(token_file(folder))
        ready = json.dumps(
            {"url": server.url, "token_file": token, "pid": os.getpid(), "local": True}
        )
        (folder / "server.json").write_text(ready)
        print(ready, flush=True)
        while signal.sigtimedwait(_STOP_SIGNALS, _HEARTBEAT_S) is None:
            cloud.ledger.heartbeat()
        server.stop()
    finally:
        (folder / "server.json").unlink(missing_ok=True)
        cloud.shutdown()
    return 1 if fork_server_died.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
