"""Doctor checks of provider warnings: unexpected answers of clouds, with their number."""

from __future__ import annotations

from spotd.api.request.context import ApiContext
from spotd.api.request.request import Check
from spotd.base.log import redactor


def check_provider_warnings(context: ApiContext) -> list[Check]:
    """Return one check for each warning.

    None is a failure by itself, because spotd continues in spite of it.
    """
    return [
        Check(
            f"answers of {name}", True, f"{_times(warning.times)}: {redactor.clean(warning.text)}"
        )
        for _, (name, warning) in sorted(context.clouds.provider_warnings().items())
    ]


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times} times"
