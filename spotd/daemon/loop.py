"""The reconcile loop: claim due jobs, decide about each, wait for the next due time or a hint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import structlog

from spotd.act.effects import EffectContext, not_configured
from spotd.daemon.reconcile import claim_due, drain, joint_pass, one_effect, one_pass
from spotd.daemon.terminate_fallback import TerminateFallback
from spotd.domain.events import Event, Severity
from spotd.domain.market import Timing
from spotd.domain.node import Node
from spotd.domain.plan import Effect
from spotd.store.errors import StoreError, StoreUnavailableError

log = structlog.get_logger(__name__)

BATCH = 16  # jobs claimed in one transaction and planned in one pass
LONGEST_WAIT_S = 5.0  # polling is the truth; hints only shorten the wait
AWAY_S = 1.0  # between attempts to reach an unavailable store


class Loop:
    """The reconcile loop on one thread. Effects go to `dispatch`; `poke` hints that a job is due.

    `progressed` is called after every completed round and while the store is unavailable. The loop
    itself must feed the watchdog: another thread would continue when the loop hangs. `decided` gets
    the seconds that each round with decisions took.
    """

    def __init__(
        self,
        context: EffectContext,
        timing: Timing,
        owner: str,
        dispatch: Callable[[Effect], None],
        progressed: Callable[[], None],
        decided: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._context = context
        self._timing = timing
        self._owner = owner
        self._submit = dispatch
        self._departing = TerminateFallback(context.clock, timing.reterminate_s)
        self._progressed = progressed
        self._decided = decided
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._claimed: list[str] = []  # job ids that still need a decision
        self._resumed = False
        self._poisoned: dict[str, str] = {}  # job id -> error of its last pass

    def poke(self) -> None:
        """Check for due jobs now."""
        self._poked.set()

    def change(self, timing: Timing) -> None:
        """Use new timings. As after a start, every job with a machine becomes due."""
        self._timing = timing
        self._resumed = False
        self.poke()

    def stop(self) -> None:
        """Stop after the current pass."""
        self._stopping.set()
        self._poked.set()

    def run(self) -> None:
        """Run until `stop`.

        While the store is unavailable nothing is decided, but machines that were already
        terminating are still terminated.
        """
        while not self._stopping.is_set():
            self._poked.clear()
            if self._context.condition.contested():
                self._progressed()
                self._stopping.wait(AWAY_S)
                continue
            try:
                self._resume()
                more = self.round()
            except StoreError as error:
                log.warning("the store does not answer", error=str(error))
                if isinstance(error, StoreUnavailableError):
                    self._progressed()  # a restarted daemon would not get further
                    self._terminate_departing()
                self._stopping.wait(AWAY_S)
                continue
            except Exception:
                # The watchdog is not fed, so systemd restarts a daemon that keeps failing.
                log.exception("a round failed")
                self._stopping.wait(AWAY_S)
                continue
            self._progressed()
            if not more:
                self._poked.wait(self._idle_s())

    def _dispatch(self, effect: Effect) -> None:
        self._departing.note(effect)
        self._submit(effect)

    def _terminate_departing(self) -> None:
        """Terminate machines that were terminating: they cost money until they are gone."""
        for effect in self._departing.due():
            log.info("ended without the store", node=effect.node.id)
            self._submit(effect)

    def _resume(self) -> None:
        """Make every job with a machine due once.

        Calls in flight died with the previous daemon, whatever their deadlines say.
        """
        if not self._resumed:
            store = self._context.store
            nodes = store.nodes.active()
            store.jobs.mark_due(sorted({node.job_id for node in nodes}))
            self._alert_stranded(nodes)
            self._resumed = True

    def _alert_stranded(self, nodes: Iterable[Node]) -> None:
        """Alert on machines of providers that the configuration no longer has."""
        stranded: dict[str, list[str]] = {}
        for node in nodes:
            if node.offer.provider not in self._context.providers:
                stranded.setdefault(node.offer.provider, []).append(node.id)
        for name, ids in sorted(stranded.items()):
            text = f"{not_configured(name)}; what it still has may cost money: {', '.join(ids)}"
            key = f"stranded:{name}"
            event = Event("stranded", text, severity=Severity.ERROR, alert=True, key=key)
            self._context.store.events.add("", event, self._context.clock.now_us())

    def round(self) -> bool:
        """Claim and decide once. Return whether more jobs may be due than were claimed.

        If the store does not accept a joint decision, each job is retried by itself, because one
        job may be the cause.
        """
        if len(self._claimed) < BATCH:
            due = claim_due(self._context, self._owner, BATCH)
            self._claimed += [job_id for job_id in due if job_id not in self._claimed]
        more = len(self._claimed) >= BATCH
        began_s = self._context.clock.monotonic_s() if self._claimed else None
        while self._claimed and not self._stopping.is_set():
            batch = self._claimed[:BATCH]
            if self._decide_jointly(batch):
                del self._claimed[: len(batch)]
                continue
            for _ in batch:
                job_id = self._claimed.pop(0)
                try:
                    self._decide(job_id)
                except StoreUnavailableError:
                    self._claimed.append(job_id)
                    raise
        if began_s is not None:
            self._decided(self._context.clock.monotonic_s() - began_s)
        return more

    def _decide_jointly(self, job_ids: list[str]) -> bool:
        """Decide about several jobs in one pass, and return whether that succeeded.

        One pass for many jobs costs little more than for one, and when a zone is reclaimed all its
        jobs are due at once.
        """
        poisoned: dict[str, Exception] = {}
        steps = joint_pass(
            self._context, self._timing, job_ids, self._dispatch, poisoned.__setitem__
        )
        try:
            drain(steps)
        except Exception as error:  # noqa: BLE001 - each is tried by itself, and tells
            log.warning("a joint pass failed", jobs=job_ids, error=repr(error))
            return False
        for job_id in job_ids:
            self._note_outcome(job_id, poisoned.get(job_id))
        return True

    def _decide(self, job_id: str) -> None:
        failure: Exception | None = None
        try:
            drain(one_pass(self._context, self._timing, job_id, self._dispatch))
        except StoreUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - noted below
            failure = error
        self._note_outcome(job_id, failure)

    def _note_outcome(self, job_id: str, error: Exception | None) -> None:
        """Log a failed pass. Its claim expires and the job is retried; other jobs go on."""
        if error is None:
            self._poisoned.pop(job_id, None)
            return
        log.error("a pass failed", job=job_id, exc_info=error)
        self._alert_failed_pass(job_id, f"{type(error).__name__}: {error}")

    def _alert_failed_pass(self, job_id: str, text: str) -> None:
        """Alert the job's user once for each different error."""
        if self._poisoned.get(job_id) == text:
            return
        message = f"spotd cannot decide about this job and tries again; please report this: {text}"
        event = Event("pass_failed", message, severity=Severity.ERROR, alert=True)
        self._context.store.events.add(job_id, event, self._context.clock.now_us())
        self._poisoned[job_id] = text

    def _idle_s(self) -> float:
        try:
            wake_us = self._context.store.jobs.next_wake_us()
        except StoreError:
            return 1.0
        if wake_us is None:
            return LONGEST_WAIT_S
        left_s = (wake_us - self._context.clock.now_us()) / 1e6
        return min(max(left_s, 0.005), LONGEST_WAIT_S)


def run_effect(context: EffectContext, effect: Effect) -> None:
    """Perform one effect on a thread of the pool. A failure is logged; the call is due again."""
    try:
        drain(one_effect(context, effect))
    except StoreError as error:
        log.warning("an outcome could not be recorded", effect=effect.kind.value, error=str(error))
    except Exception:
        log.exception("a call failed", effect=effect.kind.value, node=effect.node.id)
