"""Bills of clouds, line items that somebody wrote down, and histories of other schedulers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spotd.cli.casefile import read_case
from spotd.cli.costreconcile import read_bill
from spotd.cli.shadow import read_history
from spotd.errors import UserError
from spotd.history.foreign import FORMS
from spotd.history.shadow import Habits, shadow
from spotd.money.billing import EXPORTS
from spotd.money.document import report_data
from spotd.money.reconcile import reconcile
from spotd.money.report import report_of
from tests.rigs.memory import MEMORY


@contextlib.contextmanager
def _written(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        file = Path(name) / "file"
        file.write_bytes(data)
        yield file


def read_any_bill(data: bytes) -> None:
    """A billing export, taken for that of each cloud: machines with sane amounts, or a refusal."""
    with _written(data) as file:
        for cloud in EXPORTS:
            with contextlib.suppress(UserError):
                found = read_bill(cloud, file)
                assert all(one.start_us <= one.end_us for one in found.machines)
                made = reconcile(found.machines, (), 0, found.credits_microusd)
                assert made.unexplained_microusd >= 0


def read_items(data: bytes) -> None:
    """A file of `spotctl cost report --file`: a report that adds up, or a refusal."""
    with _written(data) as file, contextlib.suppress(UserError):
        account, claim = read_case(file)
        found = report_data(report_of(account), claim)
        assert round(sum(one["cost_usd"] for one in found["items"]) - found["total_usd"], 3) == 0


def read_any_history(data: bytes) -> None:
    """A history, taken for each form: ranges whose ends are in order, or a refusal."""
    with _written(data) as file:
        for form in ("auto", *FORMS):
            with contextlib.suppress(UserError):
                found = shadow(read_history(file, form, 2.0).stays, Habits(checkpoint_gb=1.0))
                for part in (found.minutes, found.steps, found.usd):
                    assert part.low is None or part.high is None or part.low <= part.high
