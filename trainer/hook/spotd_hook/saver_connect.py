"""Connect a training process to its saver.

That is the saver which the agent runs beside it and which outlives it, or, without an agent, one
that the process starts itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

from .agent_client import AgentClient
from .constants import WARNING
from .job import Job
from .saver_client import SaverClient
from .spawned import SpawnedSaver

AGENT_SAVER_WAIT_S = 20.0  # for the agent's saver to accept; an older agent has none
REQUEST_EVERY_S = 1.0
POLL_S = 0.02


class SaverConnector:
    """Starts and connects to the saver, as often as it dies; close it.

    Call `start` early and `connect` when the saver is needed. With `may_spawn` the process may
    start a saver of its own; otherwise the machine's ranks share the one named in `env`.
    """

    def __init__(
        self,
        job: Job,
        link: AgentClient,
        env: Mapping[str, str],
        *,
        may_spawn: bool = True,
        wait_s: float = AGENT_SAVER_WAIT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._link = job, link
        self._agent_socket = env.get("SPOTD_SAVER", "")
        self._may_spawn, self._wait_s, self._monotonic = may_spawn, wait_s, monotonic
        self._spawned: SpawnedSaver | None = None

    def start(self) -> None:
        """Start the saver without waiting for it. Raises OSError."""
        if self._agent_socket:
            self._link.request_saver([sys.executable, "-m", "trainer.saver", "--stay"])
        elif self._spawned is None or not self._spawned.alive:
            if self._spawned is not None:
                self._spawned.close()
            self._spawned = SpawnedSaver(self._environment())

    def connect(self) -> SaverClient:
        """Return a connection to the saver. Raises OSError."""
        self.start()
        if self._agent_socket:
            try:
                return self._connect_to_agents_saver()
            except OSError as error:
                if not self._may_spawn:
                    raise
                message = f"the node agent has no saver for us ({error}): we start one of our own"
                self._link.send(WARNING, {"text": message})
                self._agent_socket = ""
                self.start()
        assert self._spawned is not None  # noqa: S101 - just started
        self._spawned.wait_ready()
        return SaverClient(self._spawned.socket)

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait until our own saver has saved everything; return whether it has."""
        return self._spawned is None or self._spawned.close(timeout_s)

    @property
    def socket(self) -> str:
        """The saver's socket path; "" before one was started."""
        return self._agent_socket or ("" if self._spawned is None else self._spawned.socket)

    @property
    def pid(self) -> int:
        """Process id of our own saver; 0 without one."""
        return 0 if self._spawned is None else self._spawned.pid

    def _connect_to_agents_saver(self) -> SaverClient:
        requested_at_s = self._monotonic()
        give_up_at_s = requested_at_s + self._wait_s
        while True:
            try:
                return SaverClient(self._agent_socket)
            except OSError:
                if (now := self._monotonic()) >= give_up_at_s:
                    raise
            # The agent may not have noticed yet that its saver died.
            if now >= requested_at_s + REQUEST_EVERY_S:
                requested_at_s = now
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
