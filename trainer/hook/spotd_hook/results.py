"""Report the results of an evaluation to the job that runs it.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Mapping, Sequence

from .agent_client import AgentClient
from .constants import RESULTS

NOT_TRAINING = -1  # as a rank: the agent does not wait for this process to end
MOST_FAILED = 100  # names that are stored
MAX_NAME = 200  # characters
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def report_results(
    suite: str,
    *,
    cases: int = 0,
    passed: int = 0,
    failed: Sequence[str] = (),
    tokens_per_s: float | None = None,
    ttft_s: float | None = None,
    ttft_p95_s: float | None = None,
    timeout_s: float = 5.0,
) -> bool:
    """Report how the model did in `suite`.

    `cases` were run and `passed` passed; `failed` names (some of) the others. `tokens_per_s` is the
    generation speed, `ttft_s` and `ttft_p95_s` the median and 95th percentile of the seconds from a
    request to its first token. Repeating a report changes nothing.

    Waits until it is sent, `timeout_s` at most. Returns False if there is no spotd agent, as in a
    run by hand. Raises ValueError for impossible values.
    """
    cases, passed = _count("cases", cases), _count("passed", passed)
    names = [str(name)[:MAX_NAME] for name in [*failed][:MOST_FAILED]]
    values = {"suite": suite, "cases": cases, "passed": passed, "failed": names}
    optional = {"tokens_per_s": tokens_per_s, "ttft_s": ttft_s, "ttft_p95_s": ttft_p95_s}
    measured = {name: float(value) for name, value in optional.items() if value is not None}
    _check(suite, cases, passed, len(failed), measured)
    if not os.environ.get("SPOTD_SOCKET"):
        return False
    link = AgentClient.connect(os.environ, NOT_TRAINING)
    connected = link.wait_flag(timeout_s)
    link.send(RESULTS, {**values, **measured})
    link.close(timeout_s=timeout_s)
    return connected


def _count(name: str, value: object) -> int:
    """Return a whole number, also from integer types of other libraries such as NumPy."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name}: {value!r} is not a whole number") from None


def _check(suite: str, cases: int, passed: int, failed: int, measured: Mapping[str, float]) -> None:
    """Raise ValueError at once; the control box checks everything again."""
    if not _SUITE.fullmatch(suite):
        fix = "up to 63 letters, digits, '.', '_' and '-', like 'helpdesk'"
        raise ValueError(f"suite: {suite[:40]!r} is not a valid name: use {fix}")
    if not 0 <= passed <= cases or failed > cases - passed:
        raise ValueError(f"passed: {passed} passed and {failed} failed of {cases} cases")
    for name, value in measured.items():
        if not (0 < value < math.inf):
            raise ValueError(f"{name}: {value} was not measured; leave it out")
    p95_s = measured.get("ttft_p95_s")
    if p95_s is not None and not measured.get("ttft_s", math.inf) <= p95_s:
        raise ValueError("ttft_p95_s: also give ttft_s, the median, which cannot be larger")
    if not cases and not measured:
        raise ValueError("cases: nothing was measured; give cases, tokens_per_s or ttft_s")
