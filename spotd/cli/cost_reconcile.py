"""`spotctl cost reconcile`."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import percent
from spotd.cli.render import Column, Output, emit, output_option, print_table, say

if TYPE_CHECKING:
    from spotd.money.billing_exports import Bill

_GZIP = b"\x1f\x8b"
_COLUMNS = (
    Column("MACHINE", cut=True),
    Column("JOB", cut=True),
    *(Column(title, right=True) for title in ("BILLED", "LEDGER", "DIFFERENCE")),
    Column("", cut=True),
)


def reconcile(
    ctx: typer.Context,
    aws: Path | None = typer.Option(
        None, "--aws-cur", metavar="FILE", help="Cost and Usage Report, CSV or CSV.gz."
    ),
    gcp: Path | None = typer.Option(
        None, "--gcp", metavar="FILE", help="Detailed billing export, as CSV or CSV.gz."
    ),
    azure: Path | None = typer.Option(
        None, "--azure", metavar="FILE", help="Cost details export, CSV or CSV.gz."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Compare, and mark nothing."),
    output: Output = output_option(),
) -> None:
    """Hold a cloud's bill against the ledger, machine by machine.

    Machines that have ended within the time of the bill are marked as reconciled, with what they
    were billed for. Machines with GPUs that the ledger does not know are listed, and so are those
    that the bill does not have. More than 1 % unexplained is an alert to the route "default".
    Amounts are before credits and refunds, which are told apart: they are no saving.

    \b
    Example:
      spotctl cost reconcile --aws-cur november.csv.gz --dry-run
    """
    chosen = {"aws": aws, "gcp": gcp, "azure": azure}
    given = [(cloud, file) for cloud, file in chosen.items() if file is not None]
    if len(given) != 1:
        text = "name one bill: --aws-cur FILE, --gcp FILE or --azure FILE"
        raise UserError(text, "spotctl cost reconcile --help", ExitCode.USAGE)
    cloud, file = given[0]
    found = read_bill(cloud, file)
    if not found.machines:
        text = f"{file} has no machines of {cloud}"
        raise UserError(text, "look whether it is that cloud's export", ExitCode.USAGE)
    rows = [
        [e.key, e.what, e.gpu, e.cost_microusd, e.start_us, e.end_us, e.credit_microusd]
        for e in found.machines
    ]
    body = {"cloud": cloud, "entries": rows, "dry_run": dry_run}
    body["credits_microusd"] = found.credits_microusd
    with connect(ctx) as client:
        data = client.post("/v1/costs/reconcile", body)
    emit(data, output, lambda: _print(data), "cloud")


def read_bill(cloud: str, file: Path) -> Bill:
    """One entry a machine. Raises UserError."""
    from spotd.money.billing_exports import BillingError, bill

    if file.suffix == ".parquet":
        text = f"{file} is Parquet, which is not read here"
        raise UserError(text, "export it as CSV, or convert it", ExitCode.USAGE)
    try:
        with _opened(file) as lines:
            return bill(cloud, csv.DictReader(lines))
    except OSError as error:
        reason = error.strerror or str(error)
        text = f"{file} cannot be read: {reason}"
        raise UserError(text, "name a CSV file, or one in gzip", ExitCode.USAGE) from None
    except (BillingError, csv.Error, UnicodeDecodeError, EOFError) as error:
        text = f"{file} is no bill of {cloud}: {error}"
        raise UserError(text, "docs/cost.md says which columns it needs", ExitCode.USAGE) from None


def _opened(file: Path) -> IO[str]:
    with file.open("rb") as first:
        packed = first.read(2) == _GZIP
    if packed:
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _print(data: dict[str, Any]) -> None:
    rows = [_row(one, "" if one["reconciled"] else "not over yet") for one in data["matched"]]
    rows += [_row(one, f"not in the ledger: {one['what']}") for one in data["unknown"]]
    rows += [_row(one, "not in the bill") for one in data["missing"]]
    print_table(_COLUMNS, rows)
    since, until = data["since"][:10], data["until"][:10]
    print(f"\n{data['cloud']}, {since} to {until}: ${data['billed_usd']:,.2f} billed")
    share = percent(data["unexplained"])
    told = " (an alert)" if data["alerts"] and not data["dry_run"] else ""
    print(f"unexplained: ${data['unexplained_usd']:,.2f}, {share}{told}")
    if data["others_usd"]:
        print(f"machines without GPUs that are none of ours: ${data['others_usd']:,.2f}")
    if data["credits_usd"]:
        sign = "-" if data["credits_usd"] < 0 else "+"
        taken = f"{sign}${abs(data['credits_usd']):,.2f}"
        print(f"credits and refunds: {taken}; not in the amounts above, and no saving")
    verb = "would be" if data["dry_run"] else "are"
    say(f"{data['segments']} segments {verb} reconciled")


def _row(one: dict[str, Any], word: str) -> list[str]:
    amounts = [f"${one[name]:,.2f}" for name in ("billed_usd", "ledger_usd")]
    return [one["machine"], one["job"] or "-", *amounts, f"{one['difference_usd']:+,.2f}", word]
