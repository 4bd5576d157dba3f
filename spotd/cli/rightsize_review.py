"""`spotctl rightsize --from-history`: measured jobs, and where they would be cheaper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from providers.dollars import format_usd
from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent
from spotd.cli.durations import duration_s
from spotd.cli.render import Cell, Column, Output, emit, print_message, print_table
from spotd.sizing.memory import FITS
from spotd.sizing.sizes import Measured, on_offer, proposed
from spotd.sizing.task import task_of

MOST_OFFERS = 5000
MAX_COST_SHARE = 0.9  # an offer must save a tenth or more to be worth a move
BUSY = 0.7  # GPU use below this share is reported
KEEP, CHANGE, LOOK, UNKNOWN = "keep", "change", "look", "unknown"
_STYLES = {KEEP: "green", CHANGE: "yellow", LOOK: "yellow", UNKNOWN: "dim"}
_COLUMNS = (
    Column("JOB", rank=0),
    Column("ON", wrap=True),
    *(Column(t, right=True) for t in ("MACHINE-H", "PAID", "GPUS BUSY", "IDLE")),
    *(Column(t, right=True, rank=2) for t in ("TOKENS/S", "$/M TOKENS")),
    Column("VERDICT", wrap=True, rank=0),
    Column("", wrap=True),
)


def review(ctx: typer.Context, since: str, output: Output, *, all_jobs: bool) -> None:
    """Compare the newest job of each name with the offers of now.

    An offer is proposed if the job fits it and the same work would cost a tenth less there.
    """
    if not all_jobs:
        message = "--from-history reviews all jobs on record"
        raise UserError(message, "leave FILE, --job and --model out", ExitCode.USAGE)
    since_s = int(duration_s(since, "--since", "90d"))
    with connect(ctx) as client:
        reply = client.call(routes.RIGHTSIZE_REVIEW(), query={"since_s": since_s})
        offers = client.call(routes.LIST_OFFERS(), query={"limit": MOST_OFFERS})["items"]
    items = [assess(job, offers) for job in reply["items"]]
    data = {**reply, "kind": "RightsizeReview", "items": items}
    emit(data, output, lambda: _print(data), "job")


def assess(job: Mapping[str, Any], offers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the job with `verdict`, its cost of a million tokens, and the best other offer."""
    use = job["use"] or {}
    gpu = use.get("gpu")
    if job["measured"] is None:
        verdict = UNKNOWN if gpu is None else KEEP if gpu >= BUSY else LOOK
        nothing = dict.fromkeys(("usd_per_m_tokens", "better", "saves"))
        return {**job, "verdict": verdict, **nothing}
    measured = Measured(**job["measured"])
    current_usd = _usd_per_m_tokens(
        job["price_usd_per_h"] * job["num_nodes"], measured.tokens_per_s
    )
    best = _best_offer(job, measured, offers)
    saves = 1 - best["usd_per_m_tokens"] / current_usd if best and current_usd else 0.0
    better = best if saves > 1 - MAX_COST_SHARE else None
    idle = gpu is not None and gpu < BUSY
    verdict = CHANGE if better else LOOK if idle else KEEP
    return {
        **job,
        "verdict": verdict,
        "usd_per_m_tokens": round(current_usd, 6),
        "better": better,
        "saves": round(saves, 4) if better else None,
    }


def _usd_per_m_tokens(usd_per_h: float, tokens_per_s: float) -> float:
    return usd_per_h / 3600 / tokens_per_s * 1e6


def _best_offer(
    job: Mapping[str, Any], measured: Measured, offers: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the fitting offer of the same capacity type that costs least for a million tokens.

    An estimated rate is corrected by the error of the estimate for the measured machines: a program
    that starves one GPU starves another.
    """
    task, candidates = task_of(job["model"]), []
    current = on_offer(task, job, job["num_nodes"])
    if current is None:
        return None
    correction = measured.tokens_per_s / current["tokens_per_s"]
    for offer in offers:
        if offer["capacity_type"] != job["capacity_type"] or offer["excluded"]:
            continue
        for size in proposed(task, offer, measured):
            if size["verdict"] != FITS:
                continue
            rate = size["tokens_per_s"] * (1.0 if size["measured"] else correction)
            usd_per_h = offer["price_usd_per_h"] * size["num_nodes"]
            cost = _usd_per_m_tokens(usd_per_h, rate)
            names = ("key", "provider", "region", "zone", "instance_type", "capacity_type")
            about = {name: offer[name] for name in names}
            shown = {name: size[name] for name in ("num_nodes", "measured")}
            shown["tokens_per_s"] = round(rate, 1)
            candidates.append({**about, **shown, "usd_per_m_tokens": round(cost, 6)})
    return min(candidates, key=lambda row: (row["usd_per_m_tokens"], row["key"]), default=None)


def _print(data: Mapping[str, Any]) -> None:
    if not data["items"]:
        print_message(f"no job had machines with GPUs since {data['since'][:10]}")
        return
    print_table(_COLUMNS, [_row(row) for row in data["items"]])
    if data["left_out"]:
        print_message(f"{data['left_out']} more, which cost less")
    print_message(
        "where a rate is not measured on that kind of GPU, it is estimated (docs/rightsizing.md)"
    )


def _row(row: Mapping[str, Any]) -> list[Cell | str]:
    use, measured = row["use"] or {}, row["measured"]
    machines = f"{row['num_nodes']} x {row['instance_type']} {row['capacity_type']}"
    cost = row["usd_per_m_tokens"]
    return [
        row["job"],
        machines,
        f"{row['node_hours']:,.1f}",
        money(row["usd"]),
        percent(use.get("gpu")),
        money(use.get("idle_usd")),
        f"{measured['tokens_per_s']:,.0f}" if measured else "-",
        "-" if cost is None else format_usd(cost),
        Cell(row["verdict"], _STYLES[row["verdict"]]),
        clean(_why(row)),
    ]


def _why(row: Mapping[str, Any]) -> str:
    better = row["better"]
    if better:
        rate = "measured" if better["measured"] else "estimated"
        location = better["zone"] or better["region"]
        return (
            f"{better['num_nodes']} x {better['instance_type']} in {better['provider']}/{location}"
            f": {format_usd(better['usd_per_m_tokens'])} a million tokens, {percent(row['saves'])} "
            f"less ({rate})"
        )
    if row["verdict"] == LOOK:
        return (row["use"] or {}).get("cause") or "its GPUs are not busy"
    if row["verdict"] == UNKNOWN:
        return "not measured; set spotd.model in its file, and report steps"
    return (
        ""
        if row["measured"]
        else "its GPUs are busy; spotd.model would show other machines that it fits"
    )
