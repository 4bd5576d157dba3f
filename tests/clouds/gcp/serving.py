"""Run the Google Cloud stand-in, with the key of an account that may call it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from werkzeug.serving import WSGIRequestHandler, make_server

from tests.clouds.gcp.gce import Gce
from tests.clouds.gcp.identity import Identity
from tests.clouds.machines import Machines


class _Quiet(WSGIRequestHandler):
    """Logs no requests, and no traceback for an answer that is dropped on purpose."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for the client's delayed ACK

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""

    def connection_dropped(self, error: BaseException, environ: object = None) -> None:
        """Log nothing."""


@dataclass(frozen=True)
class StandIn:
    """`settings` are those with which an adapter finds it."""

    endpoint: str
    gce: Gce
    identity: Identity
    credentials_file: Path

    @property
    def settings(self) -> dict[str, object]:
        return {
            "credentials_file": self.credentials_file,
            "compute_endpoint": self.endpoint,
            "billing_endpoint": self.endpoint,
            "services_endpoint": self.endpoint,
        }


@contextmanager
def serving(
    folder: Path, address: str = "127.0.0.1", machines: Machines | None = None
) -> Iterator[StandIn]:
    """Run Google Cloud for the duration of the block. A mismatch with the API's description fails
    it."""
    identity = Identity()
    gce = Gce(identity, machines)
    server = make_server(address, 0, gce, True, request_handler=_Quiet)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    endpoint = f"http://{address}:{server.server_port}"
    gce.host = endpoint
    identity.write_key(folder / "gcp-key.json", endpoint)
    try:
        yield StandIn(endpoint, gce, identity, folder / "gcp-key.json")
    finally:
        gce.fleet.close()
        server.shutdown()
        thread.join()
        server.server_close()
    assert gce.problems == [], gce.problems
