"""The kinds of alert sinks: a new one is a module with its section and its sink, and a line."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from spotd.alert_sinks.apprise import AppriseRoute
from spotd.alert_sinks.command import CommandRoute
from spotd.alert_sinks.log import LogRoute
from spotd.alert_sinks.slack import SlackRoute

AnyAlertRoute = Annotated[
    AppriseRoute | CommandRoute | LogRoute | SlackRoute, Field(discriminator="kind")
]
