"""How often the duties have their turn, by the configuration."""

from __future__ import annotations

from spotd.config.config import Config
from spotd.duties import Schedule


def schedule_of(config: Config) -> Schedule:
    """Of the timing in force."""
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
