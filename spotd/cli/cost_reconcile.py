"""`spotctl cost reconcile`: compare a cloud's bill with the ledger."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from providers.cloud_facts import alternatives, load
from providers.clouds import CLOUDS
from providers.dollars import format_usd
from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import percent
from spotd.cli.more_options import with_options
from spotd.cli.render import (
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
    print_text,
)

if TYPE_CHECKING:
    from spotd.money.billing_exports import Bill

_GZIP = b"\x1f\x8b"
_COLUMNS = (
    Column("MACHINE", rank=0),
    Column("JOB", rank=1),
    *(Column(title, right=True, rank=0) for title in ("BILLED", "LEDGER", "DIFFERENCE")),
    Column("", wrap=True),
)


_BILLS = {name: cloud.bill for name, cloud in CLOUDS.items() if cloud.bill}
_FILES = {
    name: (Path | None, typer.Option(None, facts.option, metavar="FILE", help=facts.help))
    for name, facts in _BILLS.items()
}


@with_options(_FILES, before="dry_run")
def reconcile(
    ctx: typer.Context,
    *,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only compare; mark nothing as reconciled."
    ),
    output: Output = output_option(),
    **files: Path | None,
) -> None:
    """Compare a cloud's bill with the ledger, machine by machine.

    Machines that ended within the bill's period are marked as reconciled, at the billed amount. GPU
    machines that the ledger does not know are listed, and so are machines that are missing from the
    bill. More than 1 % unexplained is an alert to the route "default". Amounts are before credits
    and refunds, which are shown separately: they are not a saving.

    \b
    Example:
      spotctl cost reconcile --aws-cur november.csv.gz --dry-run
    """
    named_files = [(cloud, file) for cloud, file in files.items() if file is not None]
    if len(named_files) != 1:
        options = alternatives([f"{facts.option} FILE" for facts in _BILLS.values()])
        message = f"name one bill: {options}"
        raise UserError(message, "spotctl cost reconcile --help", ExitCode.USAGE)
    cloud, file = named_files[0]
    bill = read_bill(cloud, file)
    if not bill.machines:
        message = f"{file} has no machines of {cloud}"
        raise UserError(message, "check that it is an export of that cloud", ExitCode.USAGE)
    rows = [
        [
            entry.key,
            entry.what,
            entry.gpu,
            entry.cost_microusd,
            entry.start_us,
            entry.end_us,
            entry.credit_microusd,
        ]
        for entry in bill.machines
    ]
    body = {"cloud": cloud, "entries": rows, "dry_run": dry_run}
    body["credits_microusd"] = bill.credits_microusd
    with connect(ctx) as client:
        data = client.call(routes.RECONCILE_BILL(), body)
    emit(data, output, lambda: _print(data), "cloud")


def read_bill(cloud: str, file: Path) -> Bill:
    """Return the bill with one entry for each machine. Raises UserError."""
    from spotd.money.billing_exports import BillingError, bill

    if file.suffix == ".parquet":
        message = f"{file} is Parquet, which is not read here"
        raise UserError(message, "export it as CSV, or convert it", ExitCode.USAGE)
    try:
        with _open_text(file) as lines:
            return bill(load(_BILLS[cloud].export), csv.DictReader(lines))
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"{file} cannot be read: {reason}"
        raise UserError(message, "name a CSV file, or one in gzip", ExitCode.USAGE) from None
    except (BillingError, csv.Error, UnicodeDecodeError, EOFError) as error:
        message = f"{file} is not a bill of {cloud}: {error}"
        raise UserError(
            message, "docs/cost.md lists the columns that it needs", ExitCode.USAGE
        ) from None


def _open_text(file: Path) -> IO[str]:
    with file.open("rb") as start:
        compressed = start.read(2) == _GZIP
    if compressed:
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _print(data: dict[str, Any]) -> None:
    rows = [_row(row, "" if row["reconciled"] else "not over yet") for row in data["matched"]]
    rows += [_row(row, f"not in the ledger: {row['what']}") for row in data["unknown"]]
    rows += [_row(row, "not in the bill") for row in data["missing"]]
    print_table(_COLUMNS, rows)
    since, until = data["since"][:10], data["until"][:10]
    print()
    print_text(f"{data['cloud']}, {since} to {until}: {format_usd(data['billed_usd'])} billed")
    share = percent(data["unexplained"])
    alert_note = " (an alert)" if data["alerts"] and not data["dry_run"] else ""
    print_text(f"unexplained: {format_usd(data['unexplained_usd'])}, {share}{alert_note}")
    if data["others_usd"]:
        print_text(f"machines without GPUs that are not spotd's: {format_usd(data['others_usd'])}")
    if data["credits_usd"]:
        signed_credits = format_usd(data["credits_usd"], signed=True)
        print_text(
            f"credits and refunds: {signed_credits}; not in the amounts above, and no saving"
        )
    verb = "would be" if data["dry_run"] else "are"
    print_message(f"{data['segments']} segments {verb} reconciled")


def _row(row: dict[str, Any], note: str) -> list[str]:
    amounts = [format_usd(row[name]) for name in ("billed_usd", "ledger_usd")]
    return [
        row["machine"],
        row["job"] or "-",
        *amounts,
        f"{format_usd(row['difference_usd'], signed=True)}",
        note,
    ]
