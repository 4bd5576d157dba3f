"""What a chaos run must show in the end, by the cloud's own meter, the database and the stores."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spotd.demo.facts import orphan_seconds, release_delays
from spotd.domain.node import Node

# How long a machine may go on that nobody wants: a daemon that is able ends it within GRACE_S, and
# the other one takes over within that (bench/takeover.py). Time in which none is able counts extra.
GRACE_S = 45.0

Span = tuple[int, int]


def unable(spans: Sequence[tuple[str, int, int]], boxes: Sequence[str] = ("a", "b")) -> list[Span]:
    """When nobody could act: the database was away, or both boxes were."""
    together: list[Span] = []
    first, second = ([(f, t) for who, f, t in spans if who == box] for box in boxes)
    for a_from, a_to in first:
        together += [
            (max(a_from, b_from), min(a_to, b_to))
            for b_from, b_to in second
            if max(a_from, b_from) < min(a_to, b_to)
        ]
    return together + [(f, t) for who, f, t in spans if who == "database"]


def overlap_s(span: Span, others: Sequence[Span]) -> float:
    """Seconds of `span` that lie in any of the others."""
    total, until = 0, span[0]
    for begin, end in sorted(others):
        low, high = max(begin, until), min(end, span[1])
        if low < high:
            total += high - low
            until = high
    return total / 1e6


def excess_s(
    nodes: Sequence[Node], meter: Sequence[Mapping[str, Any]], away: Sequence[Span], now_us: int
) -> dict[str, float]:
    """Node id -> seconds that its machine cost beyond the grace, after it was not wanted."""
    ended = {str(row["token"]): int(row["ended_at_us"] or now_us) for row in meter}
    by_id = {node.id: node for node in nodes}
    found = {}
    for node_id, seconds in release_delays(nodes, meter, now_us).items():
        end_us = ended[by_id[node_id].token]
        over = seconds - GRACE_S - overlap_s((end_us - int(seconds * 1e6), end_us), away)
        if over > 0:
            found[node_id] = round(over, 1)
    return found


def judge_machines(
    nodes: Sequence[Node], meter: Sequence[Mapping[str, Any]], away: Sequence[Span], now_us: int
) -> list[str]:
    """What is wrong with the cloud's books, one sentence each."""
    tokens = Counter(str(row["token"]) for row in meter)
    wrong = [f"token {token} got {n} machines" for token, n in tokens.items() if n > 1]
    known = Counter(node.token for node in nodes)
    wrong += [f"token {token} is on {n} nodes" for token, n in known.items() if n > 1]
    wrong += [f"nobody's machine: {token}" for token in tokens if token not in known]
    wrong += [f"left running: {row['instance_id']}" for row in meter if not row["ended_at_us"]]
    orphan_s = orphan_seconds(nodes, meter, now_us)
    if orphan_s:
        wrong.append(f"{orphan_s} s of machines that belong to no node")
    wrong += [
        f"{node} was not wanted, and cost {seconds} s beyond {GRACE_S:g} s and any outage"
        for node, seconds in excess_s(nodes, meter, away, now_us).items()
    ]
    return wrong


def figures(
    nodes: Sequence[Node], meter: Sequence[Mapping[str, Any]], away: Sequence[Span], now_us: int
) -> dict[str, Any]:
    """For the report."""
    slow = sorted(release_delays(nodes, meter, now_us).values())
    why = Counter(
        node.departure.leave_reason.value
        for node in nodes
        if node.departure.leave_reason is not None
    )
    return {
        "machines": len(meter),
        "machine_seconds": round(sum(float(row["seconds"]) for row in meter), 1),
        "duplicate_launches": sum(n - 1 for n in Counter(r["token"] for r in meter).values()),
        "orphan_seconds": orphan_seconds(nodes, meter, now_us),
        "orphan_seconds_beyond_grace": round(sum(excess_s(nodes, meter, away, now_us).values()), 1),
        "grace_s": GRACE_S,
        "given_back_after_s_median": statistics.median(slow) if slow else 0.0,
        "given_back_after_s_worst": slow[-1] if slow else 0.0,
        "nobody_could_act_s": round(sum(t - f for f, t in away) / 1e6, 1),
        "left_because": dict(sorted(why.items())),
        "preemptions_and_losses": sum(why[name] for name in ("preempted", "lost")),
    }
