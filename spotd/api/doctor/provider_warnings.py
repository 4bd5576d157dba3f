"""For the doctor: what adapters came upon in their clouds' answers, and how often."""

from __future__ import annotations

from spotd.api.request.request import ApiContext, Check
from spotd.base.log import redactor


def check_remarks(backing: ApiContext) -> list[Check]:
    """A line for each. None is a fault by itself: spotd goes on in spite of it."""
    return [
        Check(f"answers of {name}", True, f"{_times(remark.times)}: {redactor.clean(remark.text)}")
        for _, (name, remark) in sorted(backing.remarks().items())
    ]


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times} times"
