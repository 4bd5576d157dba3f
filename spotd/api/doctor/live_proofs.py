"""The doctor's look at what was ever shown on the clouds themselves, by reports of `--live`."""

from __future__ import annotations

from collections.abc import Sequence

from spotd.api.request.request import ApiContext, Check
from spotd.base.live_reports import PATH_KIND, RECOVERY_KIND, LiveReport
from spotd.domain.units import S

OLD_US = 90 * 86_400 * S  # clouds and spotd have changed since
_KINDS = {PATH_KIND: "live report", RECOVERY_KIND: "recovery"}
_HOW = {
    PATH_KIND: "spotctl doctor --live --cloud {0} --spend-up-to 2usd",
    RECOVERY_KIND: "spotctl doctor --live --gpu job.yaml --cloud {0} --spend-up-to 60usd",
}


def check_proofs(backing: ApiContext, now_us: int) -> list[Check]:
    """One line a cloud: what came last of each kind, and what to run for what is not there, did not
    come off, or is old."""
    shown = backing.live_reports()
    clouds = sorted({i.kind for i in backing.providers_info() if not i.local and i.kind != "local"})
    return [_check(cloud, [one for one in shown if one.cloud == cloud], now_us) for cloud in clouds]


def _check(cloud: str, shown: Sequence[LiveReport], now_us: int) -> Check:
    texts, fixes = [], []
    for kind, name in _KINDS.items():
        last = next((one for one in reversed(shown) if one.kind == kind), None)
        texts.append(f"last {name} of {cloud}: {_told(last, now_us)}")
        if last is None or not last.ok or _age_us(last, now_us) > OLD_US:
            fixes.append(_HOW[kind].format(cloud))
    fix = "; ".join(fixes)
    return Check(f"live {cloud}", True, ", ".join(texts), fix, doubtful=bool(fixes))


def _told(last: LiveReport | None, now_us: int) -> str:
    if last is None:
        return "never"
    days = _age_us(last, now_us) // (86_400 * S)
    ago = "today" if days <= 0 else f"{days} day{'s' if days > 1 else ''} ago"
    return f"{last.at:%Y-%m-%d}, {ago}{'' if last.ok else ', and it FAILED'}"


def _age_us(shown: LiveReport, now_us: int) -> int:
    return now_us - int(shown.at.timestamp() * S)
