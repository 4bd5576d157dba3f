"""A job with names as they are in practice: long."""

from __future__ import annotations

from dataclasses import replace

from spotd.domain.states import LeaveReason
from tests.spotd.api.images import bake_one
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig

NAME = "llama-3-70b-instruct-lora-sweep-17"
FAR = replace(OFFERS[2], region="northamerica-northeast1", zone="northamerica-northeast1-a")


def long_named() -> Rig:
    """One job with a long name that was preempted and trains in a region with a long name."""
    rig = Rig()
    rig.offer_them(SPOT, FAR)
    job_id = rig.submit(NAME, ago_s=6330)
    first = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(first, ago_s=6270, until_s=2750, first=0, last=118_190)
    second = rig.launch(job_id, FAR, ago_s=2790)
    rig.leave(first, 2720, LeaveReason.PREEMPTED, "preempt notice")
    rig.train(second, ago_s=2730, until_s=930, first=118_190, last=178_790)
    rig.hold("i-0123456789abcdef0", 7_230, "job jold is not on record: the database was restored")
    bake_one(rig)
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    return rig.start()
