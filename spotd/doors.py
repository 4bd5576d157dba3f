"""The doors that a daemon opens: its socket, and one for Prometheus where it is configured."""

from __future__ import annotations

from starlette.applications import Starlette

from spotd.config import Config
from spotd.config.scraping import split_address
from spotd.serve.metrics import Metrics
from spotd.serve.scraping import ScrapeDoor, serve_scrapes
from spotd.serve.server import Server, serve

Door = Server | ScrapeDoor


def open_doors(config: Config, app: Starlette, metrics: Metrics) -> list[Door]:
    """All of them. Raises UserError, and none is open then."""
    server, section = serve(app, config.socket), config.file.metrics
    if not section.listen:
        return [server]
    try:
        token = section.read_token(config.environ)
        return [server, serve_scrapes(metrics.text, *split_address(section.listen), token)]
    except BaseException:
        server.stop()
        raise
