"""How often the daemon does each of its periodic tasks: the one table of their intervals."""

from __future__ import annotations

from dataclasses import dataclass

LEASE_S = 20.0
RENEW_S = 5.0


@dataclass(frozen=True)
class Schedule:
    """The interval of each task, in seconds.

    The section `[timing]` of the configuration changes some; these are the defaults.
    """

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
    budgets_s: float = 60.0
    idle_gpus_s: float = 300.0  # machines report as often
    market_alerts_s: float = 60.0
    step_totals_s: float = 60.0
    prefetch_s: float = 30.0  # of data sets
    drills_s: float = 1.0
    overdue_drills_s: float = 3600.0
    credential_leases_s: float = 30.0
    claim_s: float = 30.0  # checks that no other box has this deployment
    end_access_s: float = 10.0  # retries of removing disabled users from machines
