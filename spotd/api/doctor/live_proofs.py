"""Doctor checks of live reports: the results of `doctor --live` on the clouds themselves."""

from __future__ import annotations

from collections.abc import Sequence

from spotd.api.request.context import ApiContext
from spotd.api.request.request import Check
from spotd.base.live_reports import PATH_KIND, RECOVERY_KIND, LiveReport
from spotd.domain.units import S

OLD_US = 90 * 86_400 * S  # after that, clouds and spotd have changed too much
_KINDS = {PATH_KIND: "live report", RECOVERY_KIND: "recovery"}
_COMMANDS = {
    PATH_KIND: "spotctl doctor --live --cloud {0} --spend-up-to 2usd",
    RECOVERY_KIND: "spotctl doctor --live --gpu job.yaml --cloud {0} --spend-up-to 60usd",
}


def check_live_proofs(context: ApiContext, now_us: int) -> list[Check]:
    """Return one check for each cloud, with its last report of each kind.

    The fix names the command to run for a kind whose report is missing, failed or old.
    """
    reports = context.clouds.live_reports()
    clouds = sorted(
        {i.kind for i in context.clouds.providers() if not i.local and i.kind != "local"}
    )
    return [
        _check(cloud, [report for report in reports if report.cloud == cloud], now_us)
        for cloud in clouds
    ]


def _check(cloud: str, reports: Sequence[LiveReport], now_us: int) -> Check:
    texts, fixes = [], []
    for kind, name in _KINDS.items():
        last = next((report for report in reversed(reports) if report.kind == kind), None)
        texts.append(f"last {name} of {cloud}: {_age_text(last, now_us)}")
        if last is None or not last.ok or _age_us(last, now_us) > OLD_US:
            fixes.append(_COMMANDS[kind].format(cloud))
    fix = "; ".join(fixes)
    return Check(f"live {cloud}", True, ", ".join(texts), fix, doubtful=bool(fixes))


def _age_text(last: LiveReport | None, now_us: int) -> str:
    if last is None:
        return "never"
    days = _age_us(last, now_us) // (86_400 * S)
    ago = "today" if days <= 0 else f"{days} day{'s' if days > 1 else ''} ago"
    return f"{last.at:%Y-%m-%d}, {ago}{'' if last.ok else ', and it FAILED'}"


def _age_us(report: LiveReport, now_us: int) -> int:
    return now_us - int(report.at.timestamp() * S)
