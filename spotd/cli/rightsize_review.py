"""`spotctl rightsize --from-history`: what jobs measured, and where they would be cheaper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent
from spotd.cli.durations import duration_s
from spotd.cli.render import Cell, Column, Output, emit, print_table, say
from spotd.sizing.machines import proposed
from spotd.sizing.memory import FITS
from spotd.sizing.sizes import Measured, on_offer
from spotd.sizing.task import task_of

MOST_OFFERS = 5000
WORTH = 0.9  # what saves less than a tenth is no reason to move
BUSY = 0.7  # GPUs below that are told of
KEEP, CHANGE, LOOK, UNKNOWN = "keep", "change", "look", "unknown"
_STYLES = {KEEP: "green", CHANGE: "yellow", LOOK: "yellow", UNKNOWN: "dim"}
_COLUMNS = (
    Column("JOB", cut=True),
    Column("ON", cut=True),
    *(Column(t, right=True) for t in ("MACHINE-H", "PAID", "GPUS BUSY", "IDLE")),
    *(Column(t, right=True) for t in ("TOKENS/S", "$/M TOKENS")),
    Column("VERDICT"),
    Column("", cut=True),
)


def review(ctx: typer.Context, since: str, output: Output, *, alone: bool) -> None:
    """The newest job of each name: by what it measured, whether another offer of now would do the
    same work for a tenth less, on machines that it fits."""
    if not alone:
        text = "--from-history is of all jobs on record"
        raise UserError(text, "leave FILE, --job and --model out", ExitCode.USAGE)
    since_s = int(duration_s(since, "--since", "90d"))
    with connect(ctx) as client:
        told = client.get("/v1/review", since_s=since_s)
        offers = client.get("/v1/offers", limit=MOST_OFFERS)["items"]
    items = [judged(one, offers) for one in told["items"]]
    data = {**told, "kind": "RightsizeReview", "items": items}
    emit(data, output, lambda: _print(data), "job")


def judged(one: Mapping[str, Any], offers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """With `verdict`, what a million tokens cost there, and what they would cost at best."""
    use = one["use"] or {}
    gpu = use.get("gpu")
    if one["measured"] is None:
        verdict = UNKNOWN if gpu is None else KEEP if gpu >= BUSY else LOOK
        nothing = dict.fromkeys(("usd_per_m_tokens", "better", "saves"))
        return {**one, "verdict": verdict, **nothing}
    measured = Measured(**one["measured"])
    here = _per_m(one["price_usd_per_h"] * one["num_nodes"], measured.tokens_per_s)
    best = _best(one, measured, offers)
    saves = 1 - best["usd_per_m_tokens"] / here if best and here else 0.0
    better = best if saves > 1 - WORTH else None
    idle = gpu is not None and gpu < BUSY
    verdict = CHANGE if better else LOOK if idle else KEEP
    return {
        **one,
        "verdict": verdict,
        "usd_per_m_tokens": round(here, 6),
        "better": better,
        "saves": round(saves, 4) if better else None,
    }


def _per_m(usd_per_h: float, tokens_per_s: float) -> float:
    return usd_per_h / 3600 / tokens_per_s * 1e6


def _best(
    one: Mapping[str, Any], measured: Measured, offers: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The cheapest for a million tokens of what is sold alike (spot, on demand) and fits. What is
    foretold is taken as far off as it is for the machines that were measured: a program that
    starves one GPU starves another."""
    task, found = task_of(one["model"]), []
    own = on_offer(task, one, one["num_nodes"])
    if own is None:
        return None
    off = measured.tokens_per_s / own["tokens_per_s"]
    for offer in offers:
        if offer["capacity_type"] != one["capacity_type"] or offer["excluded"]:
            continue
        for size in proposed(task, offer, measured):
            if size["verdict"] != FITS:
                continue
            rate = size["tokens_per_s"] * (1.0 if size["measured"] else off)
            usd_per_h = offer["price_usd_per_h"] * size["num_nodes"]
            cost = _per_m(usd_per_h, rate)
            names = ("key", "provider", "region", "zone", "instance_type", "capacity_type")
            about = {name: offer[name] for name in names}
            shown = {name: size[name] for name in ("num_nodes", "measured")}
            shown["tokens_per_s"] = round(rate, 1)
            found.append({**about, **shown, "usd_per_m_tokens": round(cost, 6)})
    return min(found, key=lambda row: (row["usd_per_m_tokens"], row["key"]), default=None)


def _print(data: Mapping[str, Any]) -> None:
    if not data["items"]:
        say(f"no job had machines with GPUs since {data['since'][:10]}")
        return
    print_table(_COLUMNS, [_row(one) for one in data["items"]])
    if data["left_out"]:
        say(f"{data['left_out']} more, which cost less")
    say("where a rate is not measured on that kind of GPU, it is foretold (docs/rightsizing.md)")


def _row(one: Mapping[str, Any]) -> list[Cell | str]:
    use, measured = one["use"] or {}, one["measured"]
    machines = f"{one['num_nodes']} x {one['instance_type']} {one['capacity_type']}"
    cost = one["usd_per_m_tokens"]
    return [
        one["job"],
        machines,
        f"{one['node_hours']:,.1f}",
        money(one["usd"]),
        percent(use.get("gpu")),
        money(use.get("idle_usd")),
        f"{measured['tokens_per_s']:,.0f}" if measured else "-",
        "-" if cost is None else f"${cost:,.3f}",
        Cell(one["verdict"], _STYLES[one["verdict"]]),
        clean(_why(one)),
    ]


def _why(one: Mapping[str, Any]) -> str:
    better = one["better"]
    if better:
        rate = "measured" if better["measured"] else "foretold"
        where = better["zone"] or better["region"]
        return (
            f"{better['num_nodes']} x {better['instance_type']} in {better['provider']}/{where}: "
            f"${better['usd_per_m_tokens']:,.3f} a million tokens, {percent(one['saves'])} less "
            f"({rate})"
        )
    if one["verdict"] == LOOK:
        return (one["use"] or {}).get("cause") or "its GPUs are not busy"
    if one["verdict"] == UNKNOWN:
        return "nobody measured it; say spotd.model in its file, and report steps"
    return "" if one["measured"] else "its GPUs are busy; spotd.model would say what else it fits"
