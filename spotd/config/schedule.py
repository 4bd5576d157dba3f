"""How often the daemon does each of its periodic tasks."""

from __future__ import annotations

from dataclasses import dataclass

from spotd.config.config import Config

LEASE_S = 20.0
RENEW_S = 5.0


@dataclass(frozen=True)
class Schedule:
    """The interval of each task, in seconds."""

    survey_s: float = 10.0
    offers_s: float = 60.0
    notices_s: float = 15.0
    alerts_s: float = 1.0
    silence_s: float = 5.0
    health_s: float = 30.0
    leftovers_s: float = 300.0
    expiry_s: float = 300.0  # between looks at whose expiry is to be moved on
    prune_s: float = 3600.0
    keep_s: float = 90 * 86_400.0  # history older than this is pruned
    lease_s: float = LEASE_S
    renew_s: float = RENEW_S


def schedule_of(config: Config) -> Schedule:
    """Return the schedule of the configured timing."""
    timing = config.file.timing
    return Schedule(
        survey_s=timing.survey_every_s,
        offers_s=timing.offers_every_s,
        alerts_s=timing.alerts_every_s,
        expiry_s=min(max(config.timing.unattended_s / 96, 1.0), Schedule.expiry_s),
        prune_s=timing.prune_every_s,
        keep_s=timing.keep_history_days * 86_400,
        lease_s=timing.lease_s,
        renew_s=timing.lease_s / 4,
    )
