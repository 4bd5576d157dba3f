"""Text on whether spot pays, in the first lines of a plan."""

from __future__ import annotations

from typing import Any

from spotd.base.text import clean, money, percent, place, span
from spotd.cli.render import print_text

_VERDICTS = {
    "yes": "spot today: yes",
    "likely": "spot today: probably, but not at the upper end of the known interruption rates",
    "no": "spot today: no: the discount does not pay for the interruptions",
}


def print_spot_value(estimate: dict[str, Any] | None) -> None:
    """Print the verdict, both costs and their terms, and the break-even interruption rate."""
    if estimate is None:
        return
    spot, on_demand = estimate["spot"], estimate["on_demand"]
    print_text(
        f"{_VERDICTS[estimate['verdict']]}: {percent(estimate['discount'])} off, {_saved(estimate)}"
    )
    print_text(
        f"  a useful hour: {_usd(spot['usd'])} "
        f"({_usd(spot['low_usd'])} to {_usd(spot['high_usd'])}) on spot in {place(spot['offer'])}, "
        f"{_usd(on_demand['usd'])} on demand in {place(on_demand['offer'])}{_total_cost(estimate)}"
    )
    print_text(
        f"spot: {_terms(spot, estimate)}; on demand: {_terms(on_demand, estimate)}", indent=2
    )
    print_text(_interruptions(estimate), indent=2)
    if guide_rule := estimate["guides"]:
        low, high = percent(guide_rule["saving_low"]), percent(guide_rule["saving_high"])
        saved = low if low == high else f"{low} to {high}"
        text = clean(guide_rule["text"])
        print_text(f"guides to spot say, by size and length: {text}; here {saved} saved", indent=2)


def _saved(estimate: dict[str, Any]) -> str:
    saving = estimate["saving"]
    if saving is None:
        return "and on spot it would never end"
    return f"{percent(saving)} saved" if saving >= 0 else f"{percent(-saving)} dearer"


def _usd(value: float | None) -> str:
    return "unbounded" if value is None else money(value)


def _total_cost(estimate: dict[str, Any]) -> str:
    hours, spot, on_demand = (
        estimate["hours"],
        estimate["spot"]["usd"],
        estimate["on_demand"]["usd"],
    )
    if not hours or spot is None or on_demand is None:
        return ""
    return f"; all {hours:,.0f} h: {money(hours * spot)} and {money(hours * on_demand)}"


def _terms(side: dict[str, Any], estimate: dict[str, Any]) -> str:
    saves = money(side["saves_usd"]) if estimate["stall"] else "not measured"
    return (
        f"machines {money(side['machines_usd'])}, egress {money(side['egress_usd'])}, "
        f"saves {saves}, interruptions {_usd(side['interruptions_usd'])}"
    )


def _interruptions(estimate: dict[str, Any]) -> str:
    hazard, starts = estimate["hazard"], estimate["starts_on_record"]
    restart = f"{starts} starts on record" if starts else "assumed: too few on record"
    repeated = "all work" if estimate["again_s"] is None else f"{span(estimate['again_s'])} of work"
    text = (
        f"{hazard['middle']:.3g} interruptions per machine-hour ({hazard['low']:.2g} to "
        f"{hazard['high']:.2g}; {hazard['losses']} in {hazard['hours']:,.0f} h here, and one in "
        f"{hazard['prior_h']:,.0f} h as the prior), each with {span(estimate['restart_s'])} of "
        f"restart ({restart}) and {repeated} repeated"
    )
    break_even = estimate["break_even_hazard"]
    if estimate["again_s"] is None:
        return text
    return (
        f"{text}; spot pays off up to {break_even:.3g}"
        if break_even
        else f"{text}; spot pays off at no rate"
    )
