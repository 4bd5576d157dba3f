"""The alert routes of a configuration."""

from __future__ import annotations

from spotd.act.alerts import LogRoute, Route
from spotd.act.slack import SlackRoute
from spotd.config import Config
from spotd.config import file as written


def routes_of(config: Config) -> dict[str, Route]:
    """Route name -> route. Raises ConfigError when a webhook's URL cannot be read any more."""
    found: dict[str, Route] = {}
    for name, entry in config.file.alerts.routes.items():
        if isinstance(entry, written.SlackRoute):
            url = config.route_url(name)
            found[name] = SlackRoute(url, entry.min_severity)
        else:
            found[name] = LogRoute(entry.min_severity)
    return found
