"""For the doctor: what adapters came upon in their clouds' answers, and how often."""

from __future__ import annotations

from spotd.log import redactor
from spotd.serve.call import Backing, Check


def check_remarks(backing: Backing) -> list[Check]:
    """A line for each. None is a fault by itself: spotd goes on in spite of it."""
    return [
        Check(f"answers of {name}", True, f"{_times(remark.times)}: {redactor.clean(remark.text)}")
        for _, (name, remark) in sorted(backing.remarks().items())
    ]


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times} times"
