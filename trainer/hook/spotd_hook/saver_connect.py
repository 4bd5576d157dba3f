"""How a training process comes to its saver: the one that the agent keeps beside it, which outlives
it, or where there is none, one of its own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

from .agent_client import AgentClient
from .constants import WARNING
from .job import Job
from .saver_client import SaverClient
from .spawned import Spawned

AGENT_S = 20.0  # for the agent's saver to accept; an agent of before it had one says nothing
ASK_S = 1.0
POLL_S = 0.02


class SaverConnector:
    """`start` at once, `line` when it is needed, as often as the saver has died. Close it. With
    `alone` it is for this process, which may start one of its own; else the machine's ranks share
    the one that `env` names. `socket` is where it accepts."""

    def __init__(
        self,
        job: Job,
        link: AgentClient,
        env: Mapping[str, str],
        *,
        alone: bool = True,
        agent_s: float = AGENT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._link = job, link
        self._at_agent = env.get("SPOTD_SAVER", "")
        self._alone, self._agent_s, self._monotonic = alone, agent_s, monotonic
        self._own: Spawned | None = None

    def start(self) -> None:
        """Have it started, without waiting for it. Raises OSError."""
        if self._at_agent:
            self._link.want_saver([sys.executable, "-m", "trainer.saver", "--stay"])
        elif self._own is None or not self._own.alive:
            if self._own is not None:
                self._own.close()
            self._own = Spawned(self._environment())

    def line(self) -> SaverClient:
        """A line to it. Raises OSError."""
        self.start()
        if self._at_agent:
            try:
                return self._dial_agents()
            except OSError as error:
                if not self._alone:
                    raise
                text = f"the node agent has no saver for us ({error}): we start one of our own"
                self._link.send(WARNING, {"text": text})
                self._at_agent = ""
                self.start()
        assert self._own is not None  # noqa: S101 - just started
        self._own.wait_ready()
        return SaverClient(self._own.socket)

    def close(self, timeout_s: float | None = None) -> bool:
        """Of our own: wait until what is staged is saved, or so long; whether it was."""
        return self._own is None or self._own.close(timeout_s)

    @property
    def socket(self) -> str:
        """Where it accepts; "" before one was started."""
        return self._at_agent or ("" if self._own is None else self._own.socket)

    @property
    def pid(self) -> int:
        """Of our own; 0 without one."""
        return 0 if self._own is None else self._own.pid

    def _dial_agents(self) -> SaverClient:
        asked_at = self._monotonic()
        give_up_at = asked_at + self._agent_s
        while True:
            try:
                return SaverClient(self._at_agent)
            except OSError:
                if (now := self._monotonic()) >= give_up_at:
                    raise
            if now >= asked_at + ASK_S:  # its agent may not have seen yet that one has died
                asked_at = now
                self.start()
            time.sleep(POLL_S)

    def _environment(self) -> dict[str, str]:
        job = self._job
        return {
            "SPOTD_JOB_ID": job.job_id,
            "SPOTD_GENERATION": str(job.generation),
            "SPOTD_TOKEN": job.owner,
            "SPOTD_HEAD_GENERATION": str(job.head_generation),
            "SPOTD_STORE_URL": job.store_url,
            "SPOTD_STORE_OPTIONS": json.dumps(dict(job.store_options)),
            "SPOTD_SHARDS_URL": job.shards_url,
            "SPOTD_SHARD_STORES": json.dumps(job.shard_stores),
            "SPOTD_KEEP": str(job.keep),
            "SPOTD_KEEP_EVERY": str(job.keep_every_steps),
            "SPOTD_SUSPECT": job.suspect,
        }
