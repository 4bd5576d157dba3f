"""The job's settings in the environment of a training program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .cadence import CheckpointTerms, read_terms

PEER_TIMEOUT_S = 3600.0  # long: rank 0 may wait for HEAD while others wait for it


@dataclass(frozen=True)
class Job:
    """The job's settings. The defaults are for runs by hand: checkpoints go to ./checkpoints."""

    job_id: str
    generation: int
    owner: str
    head_generation: int  # newest known generation in HEAD
    store_url: str
    store_options: Mapping[str, str]
    every_steps: int
    every_s: float
    keep: int
    keep_every_steps: int  # also keep one per so many steps; 0: none
    suspect: str  # a manifest to avoid on resume
    progress_every_s: float
    shards_url: str = ""  # of the store for shards; "": the job's store
    shard_stores: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # URL -> options
    peer_timeout_s: float = PEER_TIMEOUT_S  # timeout of collectives
    auto: bool = False  # adaptive interval; `every_s` is for programs that cannot measure
    terms: CheckpointTerms = field(default_factory=CheckpointTerms)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Job:
        generation = int(env.get("SPOTD_GENERATION", "1"))
        return cls(
            job_id=env.get("SPOTD_JOB_ID", "by-hand"),
            generation=generation,
            owner=env.get("SPOTD_TOKEN", f"g{generation}"),
            head_generation=int(env.get("SPOTD_HEAD_GENERATION", "0")),
            store_url=env.get("SPOTD_STORE_URL") or (Path.cwd() / "checkpoints").as_uri(),
            store_options=json.loads(env.get("SPOTD_STORE_OPTIONS", "{}")),
            every_steps=int(env.get("SPOTD_EVERY_STEPS", "100")),
            every_s=float(env.get("SPOTD_EVERY_S", "300")),
            keep=int(env.get("SPOTD_KEEP", "3")),
            keep_every_steps=int(env.get("SPOTD_KEEP_EVERY") or 0),
            suspect=env.get("SPOTD_SUSPECT", ""),
            progress_every_s=float(env.get("SPOTD_PROGRESS_EVERY_S", "1")),
            shards_url=env.get("SPOTD_SHARDS_URL", ""),
            shard_stores=json.loads(env.get("SPOTD_SHARD_STORES") or "{}"),
            peer_timeout_s=float(env.get("SPOTD_PEER_TIMEOUT_S") or PEER_TIMEOUT_S),
            auto=env.get("SPOTD_EVERY") == "auto",
            terms=read_terms(env),
        )

    def is_due(self, steps: int, seconds: float) -> bool:
        """Return whether to save this long after the last save: every N steps or T seconds.

        Whichever comes first counts; 0 disables one of them.
        """
        return 0 < self.every_steps <= steps or 0 < self.every_s <= seconds
