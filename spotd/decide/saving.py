"""Slow training asks for a checkpoint: what is paid for is kept before the machine gets worse."""

from __future__ import annotations

from spotd.decide.draft import Draft
from spotd.decide.health import slow
from spotd.model import S, Severity
from spotd.states import NodeState


def save_when_slow(d: Draft) -> None:
    """At most once per full round of checks, so that one slow hour is not a save a minute."""
    spec = d.job.spec.health
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    if d.ended or not running or d.job.stop_text:
        return
    round_us = int(spec.checks * spec.check_every_s * S)
    if d.now_us - d.job.save_wanted_at_us < round_us:
        return
    if slow(d.view.throughput, spec, d.now_us):
        d.set_job(save_wanted_at_us=d.now_us)
        d.event(
            "slow",
            f"below {spec.ratio:.0%} of the job's own throughput for {round_us / S:.0f} s; saving",
            running[0],
            severity=Severity.WARNING,
            alert=True,
        )
