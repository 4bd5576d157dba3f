"""Divide the running time of a program that reports no steps, by what its saves kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spotd.domain.lost_work import LostWork, TrainedAttempt
from spotd.domain.units import S
from spotd.money.hour_breakdown import Span, TimeUse


def script_spans(
    attempts: Sequence[TrainedAttempt],
    lost: Mapping[int, LostWork],
    *,
    saved_at_us: int,
    succeeded: bool,
) -> dict[int, list[Span]]:
    """Return the uses of each attempt's running time, by generation.

    `lost` is what each later attempt lacked, by its generation; it is replayed. The rest of what
    was there is useful. Of the newest attempt that is the time to its newest save, at
    `saved_at_us`, and all of it once the job has succeeded; the rest is not known.
    """
    spans: dict[int, list[Span]] = {}
    for number, attempt in enumerate(attempts):
        end_us = max(attempt.ended_us, attempt.began_us)
        if number + 1 < len(attempts):
            loss = lost[attempts[number + 1].generation]
            lost_us = round((loss.seconds or 0.0) * S)
            kept_us = attempt.began_us if loss.anew else max(attempt.began_us, end_us - lost_us)
            rest = TimeUse.REPLAYED
            if loss.anew:  # so is all that was kept before
                spans = {
                    generation: [(start, end, TimeUse.REPLAYED) for start, end, _ in earlier]
                    for generation, earlier in spans.items()
                }
        else:
            saved_us = min(max(saved_at_us, attempt.began_us), end_us)
            kept_us, rest = (end_us if succeeded else saved_us), TimeUse.UNTOLD
        parts = (
            (attempt.began_us, kept_us, TimeUse.USEFUL),
            (kept_us, end_us, rest),
        )
        spans[attempt.generation] = [part for part in parts if part[1] > part[0]]
    return {generation: parts for generation, parts in spans.items() if parts}
