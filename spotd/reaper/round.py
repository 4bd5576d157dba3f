"""One round: list every cloud, end what has expired, tell a person what is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from providers.base import Provider, ProviderError
from spotd.decide.reaping import Finding, Found, look
from spotd.model import S
from spotd.reaper.page import Pager, Told

NAMED = 10  # machines that one page names


@dataclass
class Report:
    """What a round found and did. `errors` are what keeps the reaper from its work."""

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


@dataclass(frozen=True)
class Reaper:
    """What a round works with. `end_untagged` ends machines that say of no time when they may be
    ended; a dry run ends none and pages nobody."""

    deployment: str
    providers: Mapping[str, Provider]
    pager: Pager
    unattended_s: float | None = None
    dry_run: bool = False
    end_untagged: bool = False

    def go_round(self, told: Told, now_us: int) -> Report:
        """One look at every cloud. One that does not answer keeps the others from nothing."""
        report = Report()
        topics: dict[str, str] = {}
        for name, provider in self.providers.items():
            try:
                listed = provider.list()
            except ProviderError as error:
                text = f"{name} cannot be listed: {error}"
                report.errors.append(text)
                topics[f"away/{name}"] = f"spot-reaper is blind there: {text}"
                continue
            findings = look(listed, self.deployment, now_us, self.unattended_s)
            for finding in findings:
                done = self._deal_with(provider, finding, report)
                report.items.append(_item(name, finding, done))
                ident = finding.instance.instance_id
                if done in ("ended", "would end", "failed"):
                    topics[f"{done}/{name}/{ident}"] = _said(name, finding, done)
            topics |= _warnings(name, [f for f in findings if not self._ends(f)])
        if not self.dry_run:
            self._tell(told, topics, report)
        return report

    def _ends(self, finding: Finding) -> bool:
        untagged = finding.found is Found.UNTAGGED and self.end_untagged
        return finding.found is Found.EXPIRED or untagged

    def _deal_with(self, provider: Provider, finding: Finding, report: Report) -> str:
        if not self._ends(finding):
            return "left"
        if self.dry_run:
            return "would end"
        ident = finding.instance.instance_id
        try:
            provider.terminate(ident)
        except ProviderError as error:
            report.errors.append(f"{provider.name}: {ident} cannot be ended: {error}")
            return "failed"
        return "ended"

    def _tell(self, told: Told, topics: Mapping[str, str], report: Report) -> None:
        """Each topic once, for as long as it lasts. One that no way took is told again."""
        news = told.news(topics)
        report.pages = list(dict.fromkeys(topics[key] for key in news))
        lost = [error for text in report.pages for error in self.pager.send(f"spot-reaper: {text}")]
        kept = [key for key in topics if key not in news] if lost else list(topics)
        report.errors += dict.fromkeys(lost)
        if trouble := told.keep(kept):
            report.errors.append(trouble)


def _warnings(provider: str, findings: Sequence[Finding]) -> dict[str, str]:
    """A topic for each machine; the machines of a box that fell silent share one text."""
    silent = [f for f in findings if f.found is Found.SILENT]
    untagged = [f for f in findings if f.found is Found.UNTAGGED]
    topics: dict[str, str] = {}
    if silent:
        longest_h = max(f.silent_s for f in silent) / 3600
        text = (
            f"the control box has been silent for {longest_h:.1f} h. In {provider} "
            f"{_named(silent, ends=True)}. Start spotd, and they train on; else they save and end"
        )
        topics |= {
            f"silent/{provider}/{f.instance.instance_id}/{f.expires_at_us}": text for f in silent
        }
    if untagged:
        text = (
            f"in {provider} {_named(untagged)} carry our deployment's tag and no expiry: nothing "
            "ends them but you, or spot-reaper --end-untagged"
        )
        topics |= {f"untagged/{provider}/{f.instance.instance_id}": text for f in untagged}
    return topics


def _named(findings: Sequence[Finding], *, ends: bool = False) -> str:
    names = [
        f.instance.instance_id + (f" ends at {_when(f.expires_at_us)}" if ends else "")
        for f in findings[:NAMED]
    ]
    more = len(findings) - NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _said(provider: str, finding: Finding, done: str) -> str:
    instance = finding.instance
    what = {"ended": "ended", "would end": "would end", "failed": "could NOT end"}[done]
    why = (
        f"its expiry passed at {_when(finding.expires_at_us)}, and nobody renewed it for "
        f"{finding.silent_s / 3600:.1f} h"
        if finding.expires_at_us
        else "it has no expiry, and --end-untagged was given"
    )
    job = instance.tags.get("spotd-job", "none")
    return f"{what} {instance.instance_id} in {provider}/{instance.zone} (job {job}): {why}"


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
    return datetime.fromtimestamp(at_us / S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
