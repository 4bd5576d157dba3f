"""A past in which spot is taken away each afternoon (UTC), within minutes, again and again."""

from __future__ import annotations

from spotd.model import LeaveReason, S
from spotd.past import Past, Stay
from tests.spotd.decide.build import NOW

HOUR = 3600 * S
DAY = 24 * HOUR


def afternoons(offer_key: str, days: int, until_us: int = NOW) -> Past:
    """Of the whole days before `until_us`: one machine until noon, twelve more until the evening,
    and another for the night."""
    midnight = until_us - until_us % DAY
    lives: list[tuple[int, int]] = []
    for begun in range(midnight - days * DAY, midnight, DAY):
        lives.append((begun, begun + 12 * HOUR))
        noon = begun + 12 * HOUR
        each = range(noon, noon + 6 * HOUR, HOUR // 2)
        lives += [(began, began + 600 * S) for began in each]
        lives.append((begun + 18 * HOUR, begun + DAY))
    stays = [
        Stay(
            f"x-g{number}-0",
            offer_key,
            began,
            began_at_us=began,
            until_us=until,
            left=LeaveReason.PREEMPTED,
        )
        for number, (began, until) in enumerate(lives, 1)
    ]
    return Past(tuple(stays))
