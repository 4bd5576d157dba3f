"""Bills of clouds, line items that somebody wrote down, histories of other schedulers, results of
evaluations, and hours of machines."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from providers.clouds import CLOUDS
from spotd.base.errors import UserError
from spotd.cli.cost_reconcile import read_bill
from spotd.cli.external_runs import read_case
from spotd.cli.result_file import read_results
from spotd.cli.shadow import read_history
from spotd.cli.use_file import read_use
from spotd.domain.evaluation import read_evaluation
from spotd.history.external_history import FORMS
from spotd.history.shadow import ShadowAssumptions, shadow
from spotd.money.commitment import Pool, Prices, advised, bill
from spotd.money.document import report_data
from spotd.money.reconcile import reconcile
from spotd.money.report import report_of
from tests.fixtures.memory import MEMORY


@contextlib.contextmanager
def _written(data: bytes, called: str = "file") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        file = Path(name) / called
        file.write_bytes(data)
        yield file


def read_any_bill(data: bytes) -> None:
    """A billing export, taken for that of each cloud: machines with sane amounts, or a refusal."""
    with _written(data) as file:
        for cloud in CLOUDS:
            with contextlib.suppress(UserError):
                found = read_bill(cloud, file)
                assert all(one.start_us <= one.end_us for one in found.machines)
                made = reconcile(found.machines, (), 0, found.credits_microusd)
                assert made.unexplained_microusd >= 0


def read_items(data: bytes) -> None:
    """A file of `spotctl cost report --file`: a report that adds up, or a refusal. Its dollars are
    numbers of JSON: from 2^53 micro-dollars on, nine billion, each of them is rounded."""
    with _written(data) as file, contextlib.suppress(UserError):
        account, claim = read_case(file)
        found = report_data(report_of(account), claim)
        costs, total = [one["cost_usd"] for one in found["items"]], found["total_usd"]
        rounded = (len(costs) + 1) * math.ulp(total)
        assert abs(math.fsum(costs) - total) < 5e-7 + rounded


def read_any_history(data: bytes) -> None:
    """A history, taken for each form: ranges whose ends are in order, or a refusal."""
    with _written(data) as file:
        for form in ("auto", *FORMS):
            with contextlib.suppress(UserError):
                found = shadow(
                    read_history(file, form, 2.0).attempts, ShadowAssumptions(checkpoint_gb=1.0)
                )
                for part in (found.minutes, found.steps, found.usd):
                    assert part.low is None or part.high is None or part.low <= part.high


def read_any_results(data: bytes) -> None:
    """Results as CSV and as JSON: a measurement that the daemon takes as well, or a refusal."""
    for called in ("file.csv", "file.json"):
        with _written(data, called) as file, contextlib.suppress(UserError):
            found = read_results(file)
            again = {name: value for name, value in vars(found).items() if value not in (0.0, ())}
            assert read_evaluation(again) == found


def read_hours(data: bytes) -> None:
    """Hours of machines: advice within what was always in use, or a refusal."""
    with _written(data) as file, contextlib.suppress(UserError):
        pool, prices = Pool(read_use(file)), Prices(3.0, 1.0, 2.0)
        best = advised(pool, prices)
        assert 0 <= best <= pool.least
        assert bill(pool, prices, best).usd <= bill(pool, prices, 0).usd + 1e-6
