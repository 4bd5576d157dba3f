"""The reconcile loop: claim what is due, decide about each, wait for the next moment or a hint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import structlog

from spotd.act.effects import World, not_configured
from spotd.departing import Departing
from spotd.model import Event, Node, Severity, Timing
from spotd.plan import Effect
from spotd.reconcile import claim_due, drain, joint_pass, one_effect, one_pass
from spotd.store.base import StoreError, StoreUnavailableError

log = structlog.get_logger(__name__)

BATCH = 16  # jobs claimed in one transaction, and decided about in one
LONGEST_WAIT_S = 5.0  # polling is the truth; hints only make it quicker
AWAY_S = 1.0  # between looks for a store that is away


class Loop:
    """Runs on one thread; effects go to `dispatch`. `poke` is a hint that something is due.

    `progressed` is called after every round that went through, idle or not, and while the store is
    waited for: what feeds the watchdog must be the loop itself, not a thread that would outlive it.
    `decided` is told how long each round took that decided about a job, in seconds.
    """

    def __init__(
        self,
        world: World,
        timing: Timing,
        owner: str,
        dispatch: Callable[[Effect], None],
        progressed: Callable[[], None],
        decided: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._world = world
        self._timing = timing
        self._owner = owner
        self._submit = dispatch
        self._departing = Departing(world.clock, timing.reterminate_s)
        self._progressed = progressed
        self._decided = decided
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._claimed: list[str] = []  # and not decided about yet
        self._resumed = False
        self._poisoned: dict[str, str] = {}  # job -> what its last pass failed with

    def poke(self) -> None:
        """Something may be due: look now."""
        self._poked.set()

    def change(self, timing: Timing) -> None:
        """From now on with this patience; as after a start, every job with a machine is due, and
        clouds that the configuration lost are told."""
        self._timing = timing
        self._resumed = False
        self.poke()

    def stop(self) -> None:
        """End after the pass at hand."""
        self._stopping.set()
        self._poked.set()

    def run(self) -> None:
        """Until `stop`. A store that does not answer is waited for, and nothing decided; what was
        on its way out is ended all the same."""
        while not self._stopping.is_set():
            self._poked.clear()
            if self._world.contested():
                self._progressed()
                self._stopping.wait(AWAY_S)
                continue
            try:
                self._resume()
                more = self.round()
            except StoreError as error:
                log.warning("the store does not answer", error=str(error))
                if isinstance(error, StoreUnavailableError):
                    self._progressed()  # a daemon started instead would not get further
                    self._end_departing()
                self._stopping.wait(AWAY_S)
                continue
            except Exception:
                # Not fed, the watchdog ends what fails for ever.
                log.exception("a round failed")
                self._stopping.wait(AWAY_S)
                continue
            self._progressed()
            if not more:
                self._poked.wait(self._idle_s())

    def _dispatch(self, effect: Effect) -> None:
        self._departing.note(effect)
        self._submit(effect)

    def _end_departing(self) -> None:
        """What was read as on its way out costs money, whether or not the store answers."""
        for effect in self._departing.due():
            log.info("ended without the store", node=effect.node.id)
            self._submit(effect)

    def _resume(self) -> None:
        """Calls that a former daemon was making died with it, whatever their deadline says: look
        once at every job that has a machine."""
        if not self._resumed:
            store = self._world.store
            nodes = store.active_nodes()
            store.note_jobs(sorted({node.job_id for node in nodes}))
            self._tell_stranded(nodes)
            self._resumed = True

    def _tell_stranded(self, nodes: Iterable[Node]) -> None:
        """Of machines in clouds that the configuration lost: only its user can end them now."""
        stranded: dict[str, list[str]] = {}
        for node in nodes:
            if node.offer.provider not in self._world.providers:
                stranded.setdefault(node.offer.provider, []).append(node.id)
        for name, ids in sorted(stranded.items()):
            text = f"{not_configured(name)}, for what it still has may cost money: {', '.join(ids)}"
            key = f"stranded:{name}"
            event = Event("stranded", text, severity=Severity.ERROR, alert=True, key=key)
            self._world.store.add_event("", event, self._world.clock.now_us())

    def round(self) -> bool:
        """Claim and decide once; whether more than could be claimed may be due. Jobs whose decision
        the store could not take have their turn again after the others, each alone: it may be for
        one."""
        if len(self._claimed) < BATCH:
            fresh = claim_due(self._world, self._owner, BATCH)
            self._claimed += [job_id for job_id in fresh if job_id not in self._claimed]
        more = len(self._claimed) >= BATCH
        began_s = self._world.clock.monotonic_s() if self._claimed else None
        while self._claimed and not self._stopping.is_set():
            together = self._claimed[:BATCH]
            if self._decide_jointly(together):
                del self._claimed[: len(together)]
                continue
            for _ in together:
                job_id = self._claimed.pop(0)
                try:
                    self._decide(job_id)
                except StoreUnavailableError:
                    self._claimed.append(job_id)
                    raise
        if began_s is not None:
            self._decided(self._world.clock.monotonic_s() - began_s)
        return more

    def _decide_jointly(self, job_ids: list[str]) -> bool:
        """Many jobs cost little more than one: when a zone is taken away, all in it are due. False
        when something was in the way of all: each by itself may get past it."""
        poisoned: dict[str, Exception] = {}
        steps = joint_pass(self._world, self._timing, job_ids, self._dispatch, poisoned.__setitem__)
        try:
            drain(steps)
        except Exception as error:  # noqa: BLE001 - each is tried by itself, and tells
            log.warning("a joint pass failed", jobs=job_ids, error=repr(error))
            return False
        for job_id in job_ids:
            self._judge(job_id, poisoned.get(job_id))
        return True

    def _decide(self, job_id: str) -> None:
        found: Exception | None = None
        try:
            drain(one_pass(self._world, self._timing, job_id, self._dispatch))
        except StoreUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - judged below
            found = error
        self._judge(job_id, found)

    def _judge(self, job_id: str, error: Exception | None) -> None:
        """One job's poison must not stop the others; its claim runs out and it is tried again."""
        if error is None:
            self._poisoned.pop(job_id, None)
            return
        log.error("a pass failed", job=job_id, exc_info=error)
        self._tell_poison(job_id, f"{type(error).__name__}: {error}")

    def _tell_poison(self, job_id: str, text: str) -> None:
        """Once for each thing that is wrong: the job's user waits for nothing otherwise."""
        if self._poisoned.get(job_id) == text:
            return
        words = f"spotd cannot decide about this job and tries again; please report this: {text}"
        event = Event("pass_failed", words, severity=Severity.ERROR, alert=True)
        self._world.store.add_event(job_id, event, self._world.clock.now_us())
        self._poisoned[job_id] = text

    def _idle_s(self) -> float:
        try:
            wake_us = self._world.store.next_wake_us()
        except StoreError:
            return 1.0
        if wake_us is None:
            return LONGEST_WAIT_S
        left_s = (wake_us - self._world.clock.now_us()) / 1e6
        return min(max(left_s, 0.005), LONGEST_WAIT_S)


def run_effect(world: World, effect: Effect) -> None:
    """One call, on a thread of the pool. A bug in it is logged; the call is due again later."""
    try:
        drain(one_effect(world, effect))
    except StoreError as error:
        log.warning("an outcome could not be recorded", effect=effect.kind.value, error=str(error))
    except Exception:
        log.exception("a call failed", effect=effect.kind.value, node=effect.node.id)
