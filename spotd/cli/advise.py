"""`spotctl advise`: spot or on demand for a job file, and the phases of a project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent, seconds_since, span
from spotd.cli.durations import duration_s
from spotd.cli.job_file import env_option, env_values, read_job_file
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say

_COLUMNS = (
    Column("PHASE"),
    Column("AS"),
    *(Column(title, right=True) for title in ("WORK H", "PAID H", "COST", "ON DEMAND", "SAVED")),
    Column("", cut=True),
)
_MODES = (
    Column("PARAMETERS"),
    Column("ON SPOT"),
    *(Column(title, right=True) for title in ("COST", "ON DEMAND", "SAVED", "GUIDES SAY")),
)
_SIZES = {"spot": "up to 13B", "hybrid": "between", "search": "200B and more"}
_MARKS = {True: Cell("yes", "green"), False: Cell("no", "red"), None: Cell("?", "yellow")}


def _phase_option(name: str, text: str) -> Any:
    return typer.Option("", f"--{name}", metavar="DURATION", help=text)


def advise(
    ctx: typer.Context,
    file: Path = typer.Argument(metavar="FILE", help="A job file, or - for stdin."),
    search: str = _phase_option("search", "How long hyper-parameters are searched for, like 72h."),
    train: str = _phase_option("train", "How long it trains, where the file does not say."),
    validate: str = _phase_option("validate", "How long the result is evaluated, like 24h."),
    parameters: str = typer.Option(
        "",
        "--parameters",
        metavar="N",
        help="Of the model, like 70B; spotd.model says it, too.",
    ),
    env: list[str] = env_option(),
    output: Output = output_option(),
) -> None:
    """Say whether a job is one for spot today, by what was measured. Starts nothing.

    The conditions are those that guides to spot name; each is told with its figure, and one that
    fails speaks for machines on demand. "?" is not known, and decides nothing. Then the phases of a
    project, by the model's size: which are on spot, and what each costs at today's prices with its
    interruptions. A saving is computed, and never above the discount of the prices.

    \b
    Example:
      spotctl advise examples/finetune.yaml
      spotctl advise examples/finetune.yaml --search 72h --train 216h --validate 24h
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
        data = client.post("/v1/advise", body)
    for warning in data["warnings"]:
        say(f"warning: {warning}")
    emit(data, output, lambda: _print(data), "job")


def _hours_s(text: str, option: str, example: str) -> int:
    return int(duration_s(text, option, example)) if text else 0


def _parameters(text: str) -> int:
    from spotd.spec.model import parse_count

    try:
        return int(parse_count(text)) if text else 0
    except ValueError as error:
        words, _, fix = str(error).partition("; ")
        raise UserError(f"--parameters: {words}", fix, ExitCode.USAGE) from None


def _print(data: Mapping[str, Any]) -> None:
    print(_verdict(data))
    columns = (Column("HOLDS"), Column("CONDITION"), Column("BY WHAT"))
    rows: list[list[Cell | str]] = [
        [_MARKS[one["holds"]], _NAMES[one["name"]], _TEXTS[one["name"]](one["measured"])]
        for one in data["conditions"]
    ]
    print_table(columns, rows)
    print()
    _print_phases(data)


def _verdict(data: Mapping[str, Any]) -> str:
    deciding = [one for one in data["conditions"] if one["decides"]]
    fails = [_NAMES[one["name"]] for one in deciding if one["holds"] is False]
    unknown = sum(one["holds"] is None for one in deciding)
    rest = f", {unknown} not known" if unknown else ""
    if data["verdict"] == "spot":
        held = len(deciding) - unknown
        return f"advice: spot; {held} of {len(deciding)} conditions hold{rest}"
    if data["verdict"] == "unknown":
        return f"advice: none; nothing speaks against spot, and nobody knows whether it pays{rest}"
    return f"advice: on demand; what does not hold: {', '.join(fails)}{rest}{_price(data)}"


def _price(data: Mapping[str, Any]) -> str:
    """What it costs to follow that advice, where spot would be cheaper all the same."""
    found = next(one for one in data["conditions"] if one["name"] == "discount")
    told = found["measured"]
    if not found["holds"]:
        return ""
    spot, other = money(told["spot_usd"]), money(told["on_demand_usd"])
    return f"; by the money alone it would be spot: {spot} a useful hour, not {other}"


# --- conditions in words

_NAMES = {
    "checkpoints": "work is kept",
    "tolerance": "it bears interruptions",
    "recovery": "a recovery was seen",
    "discount": "the discount pays",
    "length": "it is long enough",
    "deadline": "there is time",
    "at_once": "spot is to be had",
    "batch": "nobody waits for it",
    "last_save": "a notice is enough",
}


def _checkpoints(told: Mapping[str, Any]) -> str:
    if told["engine"] == "none" and not told["directory"]:
        return "no checkpoint is kept; try: spotd.checkpoint, docs/any-script.md"
    of = f"the folder {clean(told['directory'])}" if told["directory"] else "spotd_hook"
    return f"by {of}; {told['on_record']} on record of the last job of that name"


def _tolerance(told: Mapping[str, Any]) -> str:
    if "lost_share" not in told:
        return "not known without checkpoints, or without offers on spot and on demand"
    return (
        f"{percent(told['lost_share'])} of the time is lost ({percent(told['low'])} to "
        f"{percent(told['high'])}), at most {percent(told['most'])}: one each "
        f"{span(told['mtbf_s'])}, {span(told['restart_s'])} of restart, saves each "
        f"{span(told['pause_s'])}"
    )


def _recovery(told: Mapping[str, Any]) -> str:
    report, resumed = told["report"], told["resumed"]
    times = "once" if resumed == 1 else f"{resumed} times"
    parts = [f"{times} by the last job of that name"] if resumed else []
    if report:
        how = "shown" if report["ok"] else "FAILED"
        parts.append(f"{how} on {report['cloud']} on {report['day']}")
    return "; ".join(parts) or "none yet; try: spotctl doctor --live, or spotctl demo"


def _discount(told: Mapping[str, Any]) -> str:
    if not told:
        return "not known without offers on both, or without checkpoints and spotd.work"
    ends = {
        "yes": "also at the upper end of interruptions",
        "likely": "not at the upper end of interruptions",
        "no": "interruptions cost more",
    }
    spot = "endless" if told["spot_usd"] is None else money(told["spot_usd"])
    return (
        f"a useful hour: {spot} on spot, {money(told['on_demand_usd'])} on demand, "
        f"{percent(told['discount'])} off; {ends[told['verdict']]}"
    )


def _length(told: Mapping[str, Any]) -> str:
    least = f"{told['least']:g} h"
    if told["hours"] is None:
        return f"not known; try: spotd.work or --train, and {least} are enough"
    return f"{told['hours']:,.1f} h, at least {least}"


def _deadline(told: Mapping[str, Any]) -> str:
    if told["at"] is None:
        return "no deadline"
    if told["at"] == "not steered":
        return "not known how much there is to do; try: spotd.work"
    if told["late_s"]:
        late = span(told["late_s"])
        return f"missed by {late} even on demand; the earliest is {told['earliest']}"
    if told["guarded"]:
        return "only on-demand from now on keeps it"
    if told["spare_s"] is None:
        return "nothing on demand is permitted and sold that could keep it"
    left = span(max(-(seconds_since(told["at"]) or 0.0), 0.0))
    return f"{left} until then; on-demand has to be asked for within {span(told['spare_s'])}"


def _at_once(told: Mapping[str, Any]) -> str:
    if not told:
        return "no offer that fits on spot, or none on demand to compare with"
    text = f"{told['offers']} offers"
    if not told["answered"]:
        return f"{text}; none was asked for in 30 days"
    ends = f"{told['refused_low'] * 100:.0f} to {told['refused_high'] * 100:.0f} %"
    up = told["hello_median_s"]
    after = f", up after {up:.0f} s" if up is not None else ""
    most = f", at most {told['most'] * 100:.0f} %" if told["refused"] else ""
    other = told["elsewhere"]
    pools = f"; {other} other pool{'s' * (other != 1)} that fit" if other and most else ""
    refused = f"{told['refused']} of {told['answered']} requests refused ({ends}{most})"
    return f"{text}; {refused}{after}{pools}"


def _batch(told: Mapping[str, Any]) -> str:
    return f"kind: {told['kind']}"


def _last_save(told: Mapping[str, Any]) -> str:
    notice = told["notice_s"]
    planned, p10 = notice["planned"], notice["observed_p10"]
    seen = f"one of ten had {p10:.0f} s or less, {notice['count']} seen" if p10 is not None else ""
    if planned is None:
        return "no notice time of that cloud is known"
    known = f"{told['cloud']}: {planned:.0f} s ({seen or 'as documented'})"
    if told["save_s"] is None:
        return f"{known}; no job of that name has saved three times"
    return f"{told['save_s']:.0f} s a save, at most {told['part'] * 100:.0f} % of {known}"


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
        print("phases: how large the model is is not known; try: spotd.model, or --parameters 70B")
        return
    size = f"{data['parameters'] / 1e9:,.3g}B parameters: " if data["parameters"] else ""
    print(f"phases: {size}{mode['text']}")
    rows = [_phase_row(one) for one in data["phases"]]
    if total:
        rows.append(["all", "", "", "", *_dollar_cells(total), ""])
    print_table(_COLUMNS, rows)
    if total and mode["promised"]:
        low, high = (f"{one * 100:.0f}" for one in mode["promised"])
        print(
            f"computed {percent(total['saving'])}, at most the prices' {percent(total['discount'])}"
            f"; guides say {low} to {high} %"
        )
    if total:
        print()
        print_table(_MODES, [_mode_row(one) for one in data["modes"]])


def _phase_row(one: Mapping[str, Any]) -> list[Cell | str]:
    name, as_ = one["phase"], one["capacity"]
    if one["hours"] is None:
        return [name, as_, "-", "-", "-", "-", "-", _missing(one)]
    if one["usd"] is None:
        return [name, as_, f"{one['hours']:,.1f}", "-", "-", "-", "-", "no offers to price it by"]
    takes = "-" if one["takes_hours"] is None else f"{one['takes_hours']:,.1f}"
    return [name, as_, f"{one['hours']:,.1f}", takes, *_dollar_cells(one), one["why"]]


def _missing(one: Mapping[str, Any]) -> str:
    option, usual = f"--{one['phase']}", one["usual_hours"]
    if usual is None:
        return f"not known; try: {option} 40h{', or spotd.work' if one['phase'] == 'train' else ''}"
    low, high = (f"{hours:,.0f}h" for hours in usual)
    guides = f" (guides: {low} to {high})" if low != high else ""
    return f"not known; try: {option} {high}{guides}"


def _dollar_cells(of: Mapping[str, Any]) -> list[str]:
    return [money(of["usd"]), money(of["on_demand_usd"]), percent(of["saving"])]


def _mode_row(one: Mapping[str, Any]) -> list[Cell | str]:
    low, high = (f"{part * 100:.0f}" for part in one["promised"])
    cells = _dollar_cells(one["total"]) if one["total"] else ["-", "-", "-"]
    return [_SIZES[one["name"]], " and ".join(one["on_spot"]), *cells, f"{low} to {high} %"]
