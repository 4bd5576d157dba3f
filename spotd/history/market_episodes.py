"""Market episodes: a price far above its own median, and machines that nobody gets.

Each is alerted when it begins and when it ends. An episode is open from the event that began it to
the one with the same key that ended it; nothing else is remembered. The closing bound is below the
opening one, so a price at the bound does not alternate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from providers.base import Offer, OfferRequest
from spotd.domain.events import Event, Severity
from spotd.domain.units import S

SPIKE, SPIKE_OVER = "price_spike", "price_spike_over"
NONE_LEFT, AGAIN = "none_available", "available_again"
ENDS = {SPIKE: SPIKE_OVER, NONE_LEFT: AGAIN}
KINDS = (SPIKE, SPIKE_OVER, NONE_LEFT, AGAIN)
NAMED = 5  # offers that are told of in one look; a region whose prices rise together is one storm
LEAST_KNOWN_S = 86_400.0  # of history, before a median is one

Points = Sequence[tuple[int, int]]  # (from when, micro-USD an hour), in order


@dataclass(frozen=True)
class EpisodeThresholds:
    """When to alert. `rise` 0.3 is 30 % above the median of the last `window_s`."""

    rise: float = 0.3
    window_s: float = 7 * 86_400.0
    patience_s: float = 1800.0
    prices: bool = True
    capacity: bool = True
    route: str = ""


@dataclass(frozen=True)
class WatchedOffer:
    """An offer that jobs run on or wait for, by name, with their price caps (0 for none)."""

    offer: Offer
    runs: Mapping[str, int] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WaitingJobs:
    """Jobs that wait for the same machines, the first of them since `since_us`."""

    name: str
    jobs: tuple[str, ...]
    since_us: int
    why: str = ""


@dataclass(frozen=True)
class Episode:
    """An open episode. `subject` is an offer's key, or what is wanted."""

    kind: str
    subject: str
    since_us: int
    key: str


def open_episodes(events: Iterable[Event]) -> list[Episode]:
    """Return the episodes that events of KINDS began and none ended."""
    found: dict[str, Episode] = {}
    over: set[str] = set()
    for event in events:
        if event.kind in ENDS:
            since_us = event.data.get("since_us")
            begun_us = since_us if isinstance(since_us, int) else 0
            subject = str(event.data.get("subject", ""))
            found.setdefault(event.key, Episode(event.kind, subject, begun_us, event.key))
        else:
            over.add(event.key)
    return [episode for key, episode in found.items() if key not in over]


def median_microusd(points: Points, since_us: int, until_us: int) -> int | None:
    """The price below which it was for half of that time; None where less than LEAST_KNOWN_S of it
    is known."""
    lengths: dict[int, int] = {}
    for number, (at_us, price) in enumerate(points):
        end_us = points[number + 1][0] if number + 1 < len(points) else until_us
        length_us = min(end_us, until_us) - max(at_us, since_us)
        if length_us > 0:
            lengths[price] = lengths.get(price, 0) + length_us
    whole, below = sum(lengths.values()), 0
    if whole < LEAST_KNOWN_S * S:
        return None
    for price in sorted(lengths):
        below += lengths[price]
        if 2 * below >= whole:
            return price
    raise AssertionError("the lengths are more than their sum")


def price_events(
    concerns: Sequence[WatchedOffer],
    points: Mapping[str, Points],
    episodes: Iterable[Episode],
    terms: EpisodeThresholds,
    now_us: int,
) -> Iterator[Event]:
    """Yield the price episodes that begin or end now."""
    running = {one.subject: one for one in episodes if one.kind == SPIKE}
    known = {one.offer.key: one for one in concerns}
    begun: list[tuple[WatchedOffer, str]] = []
    since_us = now_us - int(terms.window_s * S)
    for concern in concerns:
        offer, episode = concern.offer, running.get(concern.offer.key)
        usual = median_microusd(points.get(offer.key, ()), since_us, now_us)
        why = _risen(concern, usual, terms.rise if episode is None else terms.rise / 2)
        if why and episode is None:
            begun.append((concern, why))
        elif episode is not None and not why:
            text = f"{_priced(offer)} again, after {_span(now_us - episode.since_us)}"
            yield _over(episode, text, terms, alert=True)
    for subject, episode in running.items():
        if subject not in known:
            text = f"no job runs on {subject} or waits for it any more: its price is not told of"
            yield _over(episode, text, terms, alert=False)
    for number, (concern, why) in enumerate(begun):
        more = len(begun) - NAMED
        text = f"{_priced(concern.offer)}, {why}; {_whom(concern)}"
        if number == NAMED - 1 and more > 0:
            text += f"; and so have {more} more"
        yield _begins(SPIKE, concern.offer.key, text, now_us, terms, alert=number < NAMED)


def _risen(concern: WatchedOffer, usual: int | None, rise: float) -> str:
    """Return what is wrong with the price now, or "".

    A cap counts only if the offer was below it: what was always too expensive has not risen.
    """
    price = concern.offer.price_microusd_per_h
    if usual and rise and price >= usual * (1 + rise):
        return f"{price / usual - 1:.0%} above its median of ${usual / 1e6:,.2f}/h"
    for name, cap in (*concern.runs.items(), *concern.waits.items()):
        was_below = name in concern.runs or (usual is not None and usual <= cap)
        if 0 < cap < price and was_below:
            return f"above the max_hourly_cost of {name}, ${cap / 1e6:,.2f}"
    return ""


def capacity_events(
    wants: Sequence[WaitingJobs],
    served: Mapping[str, tuple[str, int]],
    episodes: Iterable[Episode],
    terms: EpisodeThresholds,
    now_us: int,
) -> Iterator[Event]:
    """Yield the capacity episodes that begin or end now.

    `served` is, by what is wanted, the last place that granted it, and when.
    """
    running = {one.subject: one for one in episodes if one.kind == NONE_LEFT}
    waiting = {want.name: want for want in wants}
    for want in wants:
        long = now_us - want.since_us >= terms.patience_s * S
        if long and want.name not in running:
            names = _names(want.jobs)
            text = (
                f"no {want.name} was to be had for {_span(now_us - want.since_us)}: {names} "
                f"{'waits' if len(want.jobs) == 1 else 'wait'}{want.why and f'; {want.why}'}"
            )
            yield _begins(NONE_LEFT, want.name, text, want.since_us, terms, alert=True)
    for name, episode in running.items():
        where, at_us = served.get(name, ("", 0))
        if at_us > episode.since_us:
            text = f"{name} is to be had again, in {where}, after {_span(at_us - episode.since_us)}"
            yield _over(episode, text, terms, alert=True)
        elif name not in waiting:
            yield _over(episode, f"no job waits for {name} any more", terms, alert=False)


def label(alternatives: Sequence[OfferRequest]) -> str:
    """Return what a job waits for in words: "8xH100 spot", without its caps."""
    parts = []
    for want in alternatives:
        count = want.accelerator_count
        machine = f"{count}x{want.accelerator}" if want.accelerator else want.instance_type
        kinds = "/".join(kind.value for kind in want.capacity_types)
        where = want.zone or want.region or want.cloud
        parts.append(f"{machine or 'machine'} {kinds}{f' in {where}' if where else ''}".strip())
    return " or ".join(dict.fromkeys(parts))


def _begins(
    kind: str, subject: str, text: str, since_us: int, terms: EpisodeThresholds, *, alert: bool
) -> Event:
    data = {"subject": subject, "since_us": since_us}
    key = f"{kind}:{subject}:{since_us}"
    return Event(kind, text, "", Severity.WARNING, alert, key, data, terms.route)


def _over(episode: Episode, text: str, terms: EpisodeThresholds, *, alert: bool) -> Event:
    data = {"subject": episode.subject, "since_us": episode.since_us}
    kind = ENDS[episode.kind]
    return Event(kind, text, "", Severity.INFO, alert, episode.key, data, terms.route)


def _priced(offer: Offer) -> str:
    return f"{offer.key} is at ${offer.price_microusd_per_h / 1e6:,.2f}/h"


def _whom(concern: WatchedOffer) -> str:
    parts = []
    if concern.runs:
        parts.append(f"{_names(concern.runs)} {'runs' if len(concern.runs) == 1 else 'run'} there")
    if concern.waits:
        verb = "waits" if len(concern.waits) == 1 else "wait"
        parts.append(f"{_names(concern.waits)} {verb} for such a machine")
    return ", ".join(parts)


def _names(jobs: Iterable[str]) -> str:
    names = sorted(jobs)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _span(us: int) -> str:
    seconds = us / S
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
