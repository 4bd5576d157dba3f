"""Whether spot pays, in the first lines of a plan."""

from __future__ import annotations

from typing import Any

from spotd.base.text import clean, money, percent, place, span

_WORDS = {
    "yes": "spot today: yes",
    "likely": "spot today: probably, but not at the upper end of what is known of interruptions",
    "no": "spot today: no: the discount does not pay for the interruptions",
}


def print_worth(found: dict[str, Any] | None) -> None:
    """The verdict with both sides, the terms, and from where on it turns."""
    if found is None:
        return
    spot, other = found["spot"], found["on_demand"]
    print(f"{_WORDS[found['verdict']]}: {percent(found['discount'])} off, {_saved(found)}")
    print(
        f"  a useful hour: {_usd(spot['usd'])} ({_usd(spot['low_usd'])} to "
        f"{_usd(spot['high_usd'])}) "
        f"on spot in {place(spot['offer'])}, {_usd(other['usd'])} on demand in "
        f"{place(other['offer'])}{_whole(found)}"
    )
    print(f"  spot: {_terms(spot, found)}; on demand: {_terms(other, found)}")
    print(f"  {_interruptions(found)}")
    if rule := found["guides"]:
        low, high = percent(rule["saving_low"]), percent(rule["saving_high"])
        saved = low if low == high else f"{low} to {high}"
        print(
            f"  guides to spot say, by size and length: {clean(rule['text'])}; here {saved} saved"
        )


def _saved(found: dict[str, Any]) -> str:
    saving = found["saving"]
    if saving is None:
        return "and on spot it would never end"
    return f"{percent(saving)} saved" if saving >= 0 else f"{percent(-saving)} dearer"


def _usd(value: float | None) -> str:
    return "endless" if value is None else money(value)


def _whole(found: dict[str, Any]) -> str:
    hours, spot, other = found["hours"], found["spot"]["usd"], found["on_demand"]["usd"]
    if not hours or spot is None or other is None:
        return ""
    return f"; all {hours:,.0f} h: {money(hours * spot)} and {money(hours * other)}"


def _terms(side: dict[str, Any], found: dict[str, Any]) -> str:
    saves = money(side["saves_usd"]) if found["stall"] else "not measured"
    return (
        f"machines {money(side['machines_usd'])}, egress {money(side['egress_usd'])}, "
        f"saves {saves}, interruptions {_usd(side['interruptions_usd'])}"
    )


def _interruptions(found: dict[str, Any]) -> str:
    hazard, starts = found["hazard"], found["starts_on_record"]
    restart = f"{starts} starts on record" if starts else "planned with; too few on record"
    again = "all work" if found["again_s"] is None else f"{span(found['again_s'])} of work"
    text = (
        f"{hazard['middle']:.3g} interruptions an hour and machine ({hazard['low']:.2g} to "
        f"{hazard['high']:.2g}; {hazard['losses']} in {hazard['hours']:,.0f} h here, and one in "
        f"{hazard['prior_h']:,.0f} h believed before), each {span(found['restart_s'])} of restart "
        f"({restart}) and {again} again"
    )
    even = found["break_even_hazard"]
    if found["again_s"] is None:
        return text
    return f"{text}; spot pays up to {even:.3g}" if even else f"{text}; at no rate spot pays"
