"""One sweep: list every cloud, terminate what has expired, alert on what is new."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from providers.base import Provider
from spotd.domain.units import S
from spotd.planner.core.reaper_policy import Finding, MachineProblem, look
from spotd.reaper.notify import NotificationState, Notifier

LAST_US = 253_402_300_800 * S  # the year 10000, which no calendar here knows
NAMED = 10  # machines that one page names
CALLS = 8  # at once, of each cloud
# After so long no other call is begun: systemd ends what takes 240 s, and no alert would be sent.
END_S = 120.0
_DOUBT = "the clock here was set ahead, or the machine or spot-reaper has just started"


@dataclass
class SweepReport:
    """The findings and actions of a sweep. `errors` keep the reaper from its work."""

    items: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)

    def to_data(self, *, dry_run: bool) -> dict[str, Any]:
        return {
            "apiVersion": "spotd/v1",
            "kind": "Reaping",
            "dry_run": dry_run,
            "items": self.items,
            "errors": self.errors,
            "pages": self.pages,
        }


@dataclass
class _Part:
    """One cloud's part of a sweep. `topics` are alerts by key."""

    items: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    topics: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reaper:
    """The settings of a sweep.

    `end_untagged` terminates machines without an expiry; a dry run terminates none and sends no
    alerts.
    """

    deployment: str
    providers: Mapping[str, Provider]
    pager: Notifier
    unattended_s: float | None = None
    dry_run: bool = False
    end_untagged: bool = False

    def go_round(
        self, notified: NotificationState, now_us: int, wait_s: float = 0.0
    ) -> SweepReport:
        """Check every cloud, all at once.

        A cloud that does not answer, or hangs, delays no other and no alert. For `wait_s` the clock
        is not trusted and nothing is terminated.
        """
        end_s = time.monotonic() + END_S

        def look_at(item: tuple[str, Provider]) -> _Part:
            return self._look_at(*item, now_us, wait_s, end_s)

        with ThreadPoolExecutor(max(len(self.providers), 1)) as lanes:
            parts = list(lanes.map(look_at, self.providers.items()))
        report = SweepReport()
        topics: dict[str, str] = {}
        for part in parts:
            report.items += part.items
            report.errors += part.errors
            topics |= part.topics
        if not self.dry_run:
            self._tell(notified, topics, report, now_us)
        return report

    def _look_at(
        self, name: str, provider: Provider, now_us: int, wait_s: float, end_s: float
    ) -> _Part:
        part = _Part()
        try:
            listed = provider.list()
        except Exception as error:  # noqa: BLE001 - an adapter's bug is an answer that is none
            text = f"{name} cannot be listed: {error}"
            part.errors.append(text)
            part.topics[f"away/{name}"] = f"spot-reaper is blind there: {text}"
            return part
        findings = look(listed, self.deployment, now_us, self.unattended_s)
        ending = [finding for finding in findings if self._ends(finding)]
        ending = self._still(provider, ending, part, now_us)

        def end(finding: Finding) -> tuple[str, str]:
            return self._end(provider, finding, wait_s, end_s)

        with ThreadPoolExecutor(CALLS) as lanes:
            ended = list(lanes.map(end, ending))
        done = {f.instance.instance_id: what for f, (what, _) in zip(ending, ended, strict=True)}
        part.errors += [error for _, error in ended if error]
        part.items += [_item(name, f, done.get(f.instance.instance_id, "left")) for f in findings]
        for what in dict.fromkeys(done.values()):
            some = [f for f in ending if done[f.instance.instance_id] == what]
            text = _said(name, some, what, wait_s)
            part.topics |= {f"{what}/{name}/{f.instance.instance_id}": text for f in some}
        part.topics |= _warnings(name, [f for f in findings if not self._ends(f)])
        return part

    def _still(
        self, provider: Provider, ending: Sequence[Finding], part: _Part, now_us: int
    ) -> list[Finding]:
        """Return those that the cloud, asked once more right before, still lists as expired.

        A daemon that comes back renews at once.
        """
        if not ending:
            return []
        try:
            again = look(provider.list(), self.deployment, now_us, self.unattended_s)
        except Exception as error:  # noqa: BLE001 - as in _look_at
            part.errors.append(f"{provider.name} cannot be listed once more: {error}")
            return []
        ends = {f.instance.instance_id for f in again if self._ends(f)}
        return [f for f in ending if f.instance.instance_id in ends]

    def _ends(self, finding: Finding) -> bool:
        untagged = finding.found is MachineProblem.UNTAGGED and self.end_untagged
        return finding.found is MachineProblem.EXPIRED or untagged

    def _end(
        self, provider: Provider, finding: Finding, wait_s: float, end_s: float
    ) -> tuple[str, str]:
        """Terminate a machine; return what was done, and what went wrong."""
        ident = f"{provider.name}: {finding.instance.instance_id}"
        if wait_s:
            return "waits", f"{ident} is not ended for {wait_s / 60:.0f} min: {_DOUBT}"
        if self.dry_run:
            return "would end", ""
        if time.monotonic() > end_s:
            return "failed", f"{ident} has to wait for the next round: this one took too long"
        try:
            provider.terminate(finding.instance.instance_id)
        except Exception as error:  # noqa: BLE001 - as above
            return "failed", f"{ident} cannot be ended: {error}"
        return "ended", ""

    def _tell(
        self,
        notified: NotificationState,
        topics: Mapping[str, str],
        report: SweepReport,
        now_us: int,
    ) -> None:
        """Alert once on each topic for as long as it lasts.

        An alert that no way accepted is sent again, also when the topic is over by then: a
        terminated machine is not listed any more.
        """
        news, late = notified.news(topics), notified.untold(topics)
        report.pages = list(dict.fromkeys(topics[key] for key in news))
        sent = {text: self.pager.send(f"spot-reaper: {text}") for text in report.pages}
        untold = {key: topics[key] for key in news if not sent[topics[key]][0]}
        put_off = {key: f"at {_when(now_us)} {text}" for key, text in untold.items()}
        if late:
            newest = list(dict.fromkeys(late.values()))[-NAMED:]
            text = "\n".join(["these messages could not be delivered:", *newest])
            report.pages.append(text)
            sent[text] = self.pager.send(f"spot-reaper: {text}")
            if not sent[text][0]:
                put_off = late | put_off
        report.errors += dict.fromkeys(error for _, errors in sent.values() for error in errors)
        troubles = [
            notified.put_off(put_off),
            notified.keep(key for key in topics if key not in untold),
        ]
        report.errors += [trouble for trouble in troubles if trouble]


def _warnings(provider: str, findings: Sequence[Finding]) -> dict[str, str]:
    """A topic for each machine; the machines of a box that fell silent share one text."""
    silent = [f for f in findings if f.found is MachineProblem.SILENT]
    untagged = [f for f in findings if f.found is MachineProblem.UNTAGGED]
    strange = [f for f in findings if f.found is MachineProblem.STRANGE]
    topics: dict[str, str] = {}
    if silent:
        longest_h = max(f.silent_s for f in silent) / 3600
        text = (
            f"the control box has been silent for {longest_h:.1f} h. In {provider} "
            f"{_named(silent, ends=True)}. Start spotd to let them continue; otherwise "
            "they save and end"
        )
        topics |= {
            f"silent/{provider}/{f.instance.instance_id}/{f.expires_at_us}": text for f in silent
        }
    if untagged:
        text = (
            f"in {provider} {_named(untagged)} carry this deployment's tag but no expiry: only "
            "you can end them, or spot-reaper --end-untagged"
        )
        topics |= {f"untagged/{provider}/{f.instance.instance_id}": text for f in untagged}
    if strange:
        text = (
            f"in {provider} {_named(strange, ends=True)}, later than spotd ever writes: the "
            "clock here is far behind, or the tag is not spotd's. Only you can end them"
        )
        topics |= {f"strange/{provider}/{f.instance.instance_id}": text for f in strange}
    return topics


def _named(findings: Sequence[Finding], *, ends: bool = False) -> str:
    names = [
        f.instance.instance_id + (f" ends at {_when(f.expires_at_us)}" if ends else "")
        for f in findings[:NAMED]
    ]
    more = len(findings) - NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _said(provider: str, findings: Sequence[Finding], done: str, wait_s: float) -> str:
    """Return one text about all machines with the same outcome: there may be hundreds."""
    words = {"ended": "ended", "would end": "would end", "failed": "could NOT end"}
    what = words.get(done, f"in {wait_s / 60:.0f} min will end, for {_DOUBT},")
    lines = [f"{what} {_why(provider, finding)}" for finding in findings[:NAMED]]
    more = len(findings) - NAMED
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _why(provider: str, finding: Finding) -> str:
    instance = finding.instance
    why = (
        f"its expiry passed at {_when(finding.expires_at_us)}, and it was not renewed for "
        f"{finding.silent_s / 3600:.1f} h"
        if finding.expires_at_us
        else "it has no expiry, and --end-untagged was given"
    )
    job = instance.tags.get("spotd-job", "none")
    return f"{instance.instance_id} in {provider}/{instance.zone} (job {job}): {why}"


def _item(provider: str, finding: Finding, done: str) -> dict[str, Any]:
    instance = finding.instance
    return {
        "provider": provider,
        "instance": instance.instance_id,
        "region": instance.region,
        "zone": instance.zone,
        "job": instance.tags.get("spotd-job", ""),
        "found": finding.found.value,
        "done": done,
        "expires_at": _when(finding.expires_at_us) if finding.expires_at_us else None,
        "silent_s": round(finding.silent_s, 1),
    }


def _when(at_us: int) -> str:
    if at_us >= LAST_US:
        return "an impossible time"
    return datetime.fromtimestamp(at_us / S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
