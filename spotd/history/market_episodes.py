"""Market episodes: a price far above its own median, and machines that are not available.

Each is alerted when it starts and when it ends. An episode is open from the event that started it
to the one with the same key that ended it; there is no other state. The closing bound is below the
opening one, so that a price at the bound does not alternate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from providers.base import Offer, OfferRequest
from providers.dollars import format_microusd
from spotd.domain.events import Event, Severity
from spotd.domain.units import S, format_seconds

SPIKE, SPIKE_OVER = "price_spike", "price_spike_over"
NONE_LEFT, AGAIN = "none_available", "available_again"
ENDS = {SPIKE: SPIKE_OVER, NONE_LEFT: AGAIN}
KINDS = (SPIKE, SPIKE_OVER, NONE_LEFT, AGAIN)
NAMED = 5  # maximum number of offers alerted at once, in case all prices of a region rise together
LEAST_KNOWN_S = 86_400.0  # minimum history for a median

Points = Sequence[tuple[int, int]]  # (start time, micro-USD per hour), in order


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
    episodes: dict[str, Episode] = {}
    over: set[str] = set()
    for event in events:
        if event.kind in ENDS:
            since_us = event.data.get("since_us")
            started_us = since_us if isinstance(since_us, int) else 0
            subject = str(event.data.get("subject", ""))
            episodes.setdefault(event.key, Episode(event.kind, subject, started_us, event.key))
        else:
            over.add(event.key)
    return [episode for key, episode in episodes.items() if key not in over]


def median_microusd(points: Points, since_us: int, until_us: int) -> int | None:
    """Return the time-weighted median price; None if less than LEAST_KNOWN_S is known."""
    lengths: dict[int, int] = {}
    for number, (at_us, price) in enumerate(points):
        end_us = points[number + 1][0] if number + 1 < len(points) else until_us
        length_us = min(end_us, until_us) - max(at_us, since_us)
        if length_us > 0:
            lengths[price] = lengths.get(price, 0) + length_us
    total_us, below = sum(lengths.values()), 0
    if total_us < LEAST_KNOWN_S * S:
        return None
    for price in sorted(lengths):
        below += lengths[price]
        if 2 * below >= total_us:
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
    running = {item.subject: item for item in episodes if item.kind == SPIKE}
    known = {item.offer.key: item for item in concerns}
    started: list[tuple[WatchedOffer, str]] = []
    since_us = now_us - int(terms.window_s * S)
    for concern in concerns:
        offer, episode = concern.offer, running.get(concern.offer.key)
        usual = median_microusd(points.get(offer.key, ()), since_us, now_us)
        why = _rise_text(concern, usual, terms.rise if episode is None else terms.rise / 2)
        if why and episode is None:
            started.append((concern, why))
        elif episode is not None and not why:
            lasted = format_seconds((now_us - episode.since_us) / S)
            text = f"{_price_text(offer)} again, after {lasted}"
            yield _end_event(episode, text, terms, alert=True)
    for subject, episode in running.items():
        if subject not in known:
            text = f"no job runs on {subject} or waits for it any more: price alerts end"
            yield _end_event(episode, text, terms, alert=False)
    for number, (concern, why) in enumerate(started):
        more = len(started) - NAMED
        text = f"{_price_text(concern.offer)}, {why}; {_affected_jobs(concern)}"
        if number == NAMED - 1 and more > 0:
            text += f"; and so have {more} more"
        yield _start_event(SPIKE, concern.offer.key, text, now_us, terms, alert=number < NAMED)


def _rise_text(concern: WatchedOffer, usual: int | None, rise: float) -> str:
    """Return what is wrong with the price now, or "".

    A cap counts only if the offer was below it: what was always too expensive has not risen.
    """
    price = concern.offer.price_microusd_per_h
    if usual and rise and price >= usual * (1 + rise):
        return f"{price / usual - 1:.0%} above its median of {format_microusd(usual)}/h"
    for name, cap in (*concern.runs.items(), *concern.waits.items()):
        was_below = name in concern.runs or (usual is not None and usual <= cap)
        if 0 < cap < price and was_below:
            return f"above the max_hourly_cost of {name}, {format_microusd(cap)}"
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
    running = {episode.subject: episode for episode in episodes if episode.kind == NONE_LEFT}
    names_waiting = {waiting.name for waiting in wants}
    for waiting in wants:
        long = now_us - waiting.since_us >= terms.patience_s * S
        if long and waiting.name not in running:
            names, waited = _names(waiting.jobs), format_seconds((now_us - waiting.since_us) / S)
            text = (
                f"no {waiting.name} was available for {waited}: {names} "
                f"{'waits' if len(waiting.jobs) == 1 else 'wait'}"
                f"{waiting.why and f'; {waiting.why}'}"
            )
            yield _start_event(NONE_LEFT, waiting.name, text, waiting.since_us, terms, alert=True)
    for name, episode in running.items():
        location, at_us = served.get(name, ("", 0))
        if at_us > episode.since_us:
            lasted = format_seconds((at_us - episode.since_us) / S)
            text = f"{name} is available again, in {location}, after {lasted}"
            yield _end_event(episode, text, terms, alert=True)
        elif name not in names_waiting:
            yield _end_event(episode, f"no job waits for {name} any more", terms, alert=False)


def label(alternatives: Sequence[OfferRequest]) -> str:
    """Return what a job waits for in words: "8xH100 spot", without its caps."""
    parts = []
    for request in alternatives:
        count = request.accelerator_count
        machine = f"{count}x{request.accelerator}" if request.accelerator else request.instance_type
        kinds = "/".join(kind.value for kind in request.capacity_types)
        location = request.zone or request.region or request.cloud
        parts.append(
            f"{machine or 'machine'} {kinds}{f' in {location}' if location else ''}".strip()
        )
    return " or ".join(dict.fromkeys(parts))


def _start_event(
    kind: str, subject: str, text: str, since_us: int, terms: EpisodeThresholds, *, alert: bool
) -> Event:
    data = {"subject": subject, "since_us": since_us}
    key = f"{kind}:{subject}:{since_us}"
    return Event(kind, text, "", Severity.WARNING, alert, key, data, terms.route)


def _end_event(episode: Episode, text: str, terms: EpisodeThresholds, *, alert: bool) -> Event:
    data = {"subject": episode.subject, "since_us": episode.since_us}
    kind = ENDS[episode.kind]
    return Event(kind, text, "", Severity.INFO, alert, episode.key, data, terms.route)


def _price_text(offer: Offer) -> str:
    return f"{offer.key} is at {format_microusd(offer.price_microusd_per_h)}/h"


def _affected_jobs(concern: WatchedOffer) -> str:
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
