"""`spotctl advisor job`: spot or on demand for a job file, and for the phases of a project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent, seconds_since, span
from spotd.cli.durations import duration_s
from spotd.cli.job_file import env_option, env_values, read_job_file
from spotd.cli.render import (
    Cell,
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
    print_text,
)

_COLUMNS = (
    Column("PHASE", wrap=True, rank=0),
    Column("AS"),
    *(Column(title, right=True, rank=2) for title in ("WORK H", "PAID H")),
    *(Column(title, right=True, rank=0) for title in ("COST", "ON DEMAND", "SAVED")),
    Column("", wrap=True),
)
_MODES = (
    Column("PARAMETERS", rank=0),
    Column("ON SPOT", wrap=True, rank=0),
    *(Column(title, right=True) for title in ("COST", "ON DEMAND", "SAVED", "GUIDES SAY")),
)
_SIZES = {"spot": "up to 13B", "hybrid": "between", "search": "200B and more"}
_MARKS = {True: Cell("yes", "green"), False: Cell("no", "red"), None: Cell("?", "yellow")}


def _phase_option(name: str, text: str) -> Any:
    return typer.Option("", f"--{name}", metavar="DURATION", help=text)


def advise(
    ctx: typer.Context,
    file: Path = typer.Argument(metavar="FILE", help="A job file, or - for stdin."),
    search: str = _phase_option("search", "Length of the hyper-parameter search, like 72h."),
    train: str = _phase_option("train", "Length of training, if it is not in the file."),
    validate: str = _phase_option("validate", "Length of the evaluation, like 24h."),
    parameters: str = typer.Option(
        "",
        "--parameters",
        metavar="N",
        help="Size of the model, like 70B; default: spotd.model.",
    ),
    env: list[str] = env_option(),
    output: Output = output_option(),
) -> None:
    """Advise spot or on-demand for a job, by measurements. Starts nothing.

    The conditions are those that guides to spot name. Each is shown with its measured value; one
    that fails favours on-demand machines. "?" means unknown and has no influence. Then come the
    phases of a project, by the model's size: which run on spot, and what each costs at today's
    prices with its interruptions. A saving is computed, and never exceeds the discount of the
    prices.

    \b
    Example:
      spotctl advisor job examples/finetune.yaml
      spotctl advisor job examples/finetune.yaml --search 72h --train 216h --validate 24h
    """
    body = {
        "yaml": read_job_file(file),
        "env": env_values(env),
        "fallback_name": file.stem if str(file) != "-" else "stdin",
        "parameters": _parameters(parameters),
        "search_s": _hours_s(search, "--search", "72h"),
        "train_s": _hours_s(train, "--train", "216h"),
        "validate_s": _hours_s(validate, "--validate", "24h"),
    }
    with connect(ctx) as client:
        data = client.call(routes.ADVISE(), body)
    for warning in data["warnings"]:
        print_message(f"warning: {warning}")
    emit(data, output, lambda: _print(data), "job")


def _hours_s(text: str, option: str, example: str) -> int:
    return int(duration_s(text, option, example)) if text else 0


def _parameters(text: str) -> int:
    from spotd.spec.model import parse_count

    try:
        return int(parse_count(text)) if text else 0
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise UserError(f"--parameters: {problem}", fix, ExitCode.USAGE) from None


def _print(data: Mapping[str, Any]) -> None:
    print_text(_verdict(data))
    columns = (
        Column("HOLDS", rank=0),
        Column("CONDITION", wrap=True, rank=0),
        Column("BECAUSE", wrap=True, rank=0),
    )
    rows: list[list[Cell | str]] = [
        [
            _MARKS[condition["holds"]],
            _NAMES[condition["name"]],
            _TEXTS[condition["name"]](condition["measured"]),
        ]
        for condition in data["conditions"]
    ]
    print_table(columns, rows)
    print()
    if memory := data.get("memory"):
        print(f"memory: {memory['gpus']} {memory['accelerator']}: {memory['text']}")
        if memory["note"]:
            print(f"  {memory['note']}")
    _print_phases(data)


def _verdict(data: Mapping[str, Any]) -> str:
    deciding = [condition for condition in data["conditions"] if condition["decides"]]
    fails = [_NAMES[condition["name"]] for condition in deciding if condition["holds"] is False]
    unknown = sum(condition["holds"] is None for condition in deciding)
    suffix = f", {unknown} not known" if unknown else ""
    if data["verdict"] == "spot":
        holding = len(deciding) - unknown
        return f"advice: spot; {holding} of {len(deciding)} conditions hold{suffix}"
    if data["verdict"] == "unknown":
        return f"advice: none; nothing rules spot out, but its cost advantage is unknown{suffix}"
    return f"advice: on demand; failed conditions: {', '.join(fails)}{suffix}{_price(data)}"


def _price(data: Mapping[str, Any]) -> str:
    """Return the price of following the advice, if spot would be cheaper all the same."""
    discount = next(
        condition for condition in data["conditions"] if condition["name"] == "discount"
    )
    measured = discount["measured"]
    if not discount["holds"]:
        return ""
    spot, on_demand = money(measured["spot_usd"]), money(measured["on_demand_usd"])
    return f"; by cost alone it would be spot: {spot} a useful hour, not {on_demand}"


# --- text of the conditions

_NAMES = {
    "checkpoints": "checkpoints are saved",
    "tolerance": "little time is lost",
    "recovery": "recovery was observed",
    "discount": "the discount pays off",
    "length": "the run is long enough",
    "deadline": "the deadline allows it",
    "at_once": "spot is available",
    "batch": "it is not interactive",
    "last_save": "notice is long enough",
}


def _checkpoints(measured: Mapping[str, Any]) -> str:
    if measured["engine"] == "none" and not measured["directory"]:
        return "no checkpoint is stored; try: spotd.checkpoint, docs/any-script.md"
    saved_by = (
        f"the folder {clean(measured['directory'])}" if measured["directory"] else "spotd_hook"
    )
    return f"by {saved_by}; {measured['on_record']} on record of the last job of that name"


def _tolerance(measured: Mapping[str, Any]) -> str:
    if "lost_share" not in measured:
        return "not known without checkpoints, or without offers on spot and on demand"
    return (
        f"{percent(measured['lost_share'])} of the time is lost ({percent(measured['low'])} to "
        f"{percent(measured['high'])}), limit {percent(measured['most'])}: one every "
        f"{span(measured['mtbf_s'])}, {span(measured['restart_s'])} of restart, a save every "
        f"{span(measured['pause_s'])}"
    )


def _recovery(measured: Mapping[str, Any]) -> str:
    report, resumed = measured["report"], measured["resumed"]
    times = "once" if resumed == 1 else f"{resumed} times"
    parts = [f"{times} by the last job of that name"] if resumed else []
    if report:
        result = "shown" if report["ok"] else "FAILED"
        parts.append(f"{result} on {report['cloud']} on {report['day']}")
    return "; ".join(parts) or "none yet; try: spotctl doctor --live, or spotctl demo"


def _discount(measured: Mapping[str, Any]) -> str:
    if not measured:
        return "not known without offers on both, or without checkpoints and spotd.work"
    outcomes = {
        "yes": "also at the upper end of interruptions",
        "likely": "not at the upper end of interruptions",
        "no": "interruptions cost more",
    }
    spot = "unbounded" if measured["spot_usd"] is None else money(measured["spot_usd"])
    return (
        f"a useful hour: {spot} on spot, {money(measured['on_demand_usd'])} on demand, "
        f"{percent(measured['discount'])} off; {outcomes[measured['verdict']]}"
    )


def _length(measured: Mapping[str, Any]) -> str:
    least = f"{measured['least']:g} h"
    if measured["hours"] is None:
        return f"not known; try: spotd.work or --train, and {least} are enough"
    return f"{measured['hours']:,.1f} h, at least {least}"


def _deadline(measured: Mapping[str, Any]) -> str:
    if measured["at"] is None:
        return "no deadline"
    if measured["at"] == "not steered":
        return "the amount of work is not known; try: spotd.work"
    if measured["late_s"]:
        late_by = span(measured["late_s"])
        return f"missed by {late_by} even on demand; the earliest is {measured['earliest']}"
    if measured["guarded"]:
        return "only on-demand from now on meets it"
    if measured["spare_s"] is None:
        return "no on-demand offer that could meet it is permitted and available"
    remaining = span(max(-(seconds_since(measured["at"]) or 0.0), 0.0))
    return f"{remaining} until then; on-demand must be requested within {span(measured['spare_s'])}"


def _at_once(measured: Mapping[str, Any]) -> str:
    if not measured:
        return "no matching spot offer, or no on-demand offer to compare with"
    text = f"{measured['offers']} offers"
    if not measured["answered"]:
        return f"{text}; none was requested in 30 days"
    interval = f"{measured['refused_low'] * 100:.0f} to {measured['refused_high'] * 100:.0f} %"
    up_after_s = measured["hello_median_s"]
    startup = f", up after {up_after_s:.0f} s" if up_after_s is not None else ""
    threshold = f", at most {measured['most'] * 100:.0f} %" if measured["refused"] else ""
    other_pools = measured["elsewhere"]
    pools = (
        f"; {other_pools} other pool{'s' * (other_pools != 1)} that fit"
        if other_pools and threshold
        else ""
    )
    refused = (
        f"{measured['refused']} of {measured['answered']} requests refused ({interval}{threshold})"
    )
    return f"{text}; {refused}{startup}{pools}"


def _batch(measured: Mapping[str, Any]) -> str:
    return f"kind: {measured['kind']}"


def _last_save(measured: Mapping[str, Any]) -> str:
    notice = measured["notice_s"]
    planned, p10 = notice["planned"], notice["observed_p10"]
    observed = (
        f"one of ten had {p10:.0f} s or less, {notice['count']} seen" if p10 is not None else ""
    )
    if planned is None:
        return "no notice time of that cloud is known"
    known = f"{measured['cloud']}: {planned:.0f} s ({observed or 'as documented'})"
    if measured["save_s"] is None:
        return f"{known}; no job of that name has saved three times"
    return f"{measured['save_s']:.0f} s a save, at most {measured['part'] * 100:.0f} % of {known}"


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "checkpoints": _checkpoints,
    "tolerance": _tolerance,
    "recovery": _recovery,
    "discount": _discount,
    "length": _length,
    "deadline": _deadline,
    "at_once": _at_once,
    "batch": _batch,
    "last_save": _last_save,
}


# --- phases


def _print_phases(data: Mapping[str, Any]) -> None:
    mode, total = data["mode"], data["total"]
    if mode is None:
        print_text(
            "phases: how large the model is is not known; try: spotd.model, or --parameters 70B"
        )
        return
    size = f"{data['parameters'] / 1e9:,.3g}B parameters: " if data["parameters"] else ""
    print_text(f"phases: {size}{mode['text']}")
    rows = [_phase_row(phase) for phase in data["phases"]]
    if total:
        rows.append(["all", "", "", "", *_dollar_cells(total), ""])
    print_table(_COLUMNS, rows)
    if total and mode["promised"]:
        low, high = (f"{share * 100:.0f}" for share in mode["promised"])
        print_text(
            f"computed {percent(total['saving'])}, at most the prices' {percent(total['discount'])}"
            f"; guides say {low} to {high} %"
        )
    if total:
        print()
        print_table(_MODES, [_mode_row(phase) for phase in data["modes"]])


def _phase_row(phase: Mapping[str, Any]) -> list[Cell | str]:
    name, as_ = phase["phase"], phase["capacity"]
    if phase["hours"] is None:
        return [name, as_, "-", "-", "-", "-", "-", _missing(phase)]
    if phase["usd"] is None:
        return [name, as_, f"{phase['hours']:,.1f}", "-", "-", "-", "-", "no offers to price it by"]
    takes = "-" if phase["takes_hours"] is None else f"{phase['takes_hours']:,.1f}"
    return [name, as_, f"{phase['hours']:,.1f}", takes, *_dollar_cells(phase), phase["why"]]


def _missing(phase: Mapping[str, Any]) -> str:
    option, usual = f"--{phase['phase']}", phase["usual_hours"]
    if usual is None:
        return (
            f"not known; try: {option} 40h{', or spotd.work' if phase['phase'] == 'train' else ''}"
        )
    low, high = (f"{hours:,.0f}h" for hours in usual)
    guides = f" (guides: {low} to {high})" if low != high else ""
    return f"not known; try: {option} {high}{guides}"


def _dollar_cells(row: Mapping[str, Any]) -> list[str]:
    return [money(row["usd"]), money(row["on_demand_usd"]), percent(row["saving"])]


def _mode_row(mode: Mapping[str, Any]) -> list[Cell | str]:
    low, high = (f"{share * 100:.0f}" for share in mode["promised"])
    cells = _dollar_cells(mode["total"]) if mode["total"] else ["-", "-", "-"]
    return [_SIZES[mode["name"]], " and ".join(mode["on_spot"]), *cells, f"{low} to {high} %"]
