"""The job file of a rehearsal: a user's, kept to one cloud, to spot machines, and to what may be
spent."""

from __future__ import annotations

from typing import Any

import yaml

from spotd.spec.document import parse
from spotd.spec.quantities import parse_duration_s

LONGEST_S = 3 * 3600  # that the job may take, whoever has forgotten it by then
_PLACE = ("infra", "cloud", "region", "zone")
_SEVERAL = ("any_of", "ordered")


class UnsuitableJobError(Exception):
    """A job that nothing can be shown with. The text names the field."""


def confined(text: str, provider: str, cloud: str, most_usd: float) -> str:
    """The file `text` (whose secrets are given beside it) for one spot machine of `provider`, a
    cloud of the make `cloud`. Raises UnfitError, and SpecError for what is no job file."""
    data = {str(key): value for key, value in parse(text).data.items()}
    own = dict(data.get("spotd") or {})
    if (own.get("checkpoint") or {}).get("engine") != "spotd":
        raise UnsuitableJobError(
            "spotd.checkpoint.engine is not spotd: without its checkpoints there is nothing to see"
        )
    if int(data.get("num_nodes") or 1) != 1:
        raise UnsuitableJobError("num_nodes: a rehearsal is of a job on one machine")
    data["resources"] = _resources(dict(data.get("resources") or {}), provider, cloud)
    budget = dict(own.get("budget") or {})
    budget["max_cost_usd"] = min(most_usd, float(budget.get("max_cost_usd") or most_usd))
    own |= {"budget": budget, "capacity": ["spot"], "candidates": 1}
    given = own.get("max_duration")
    if given is None or parse_duration_s(given) > LONGEST_S:
        own["max_duration"] = f"{LONGEST_S}s"
    data["spotd"] = own
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _resources(given: dict[str, Any], provider: str, cloud: str) -> dict[str, Any]:
    found = _block(given, provider, cloud)
    several = next((key for key in _SEVERAL if given.get(key)), "")
    if several:
        rows = [row for row in given[several] if isinstance(row, dict)]
        kept = [_block(row, provider, cloud) if _says(row) else dict(row) for row in rows]
        fit = [row for row in kept if row is not None]
        for row in fit:
            row.pop("use_spot", None)
        if not fit:
            raise UnsuitableJobError(f"resources.{several} names no machine of {cloud}")
        # What they say themselves counts; a place that none of them has is nobody's.
        found = {k: v for k, v in given.items() if k not in _PLACE} if found is None else found
        found |= {several: fit} | ({} if "infra" in found else {"infra": provider})
    if found is None:
        raise UnsuitableJobError(f"resources names another cloud than {cloud}")
    found.pop("use_spot", None)
    return found


def _says(block: dict[str, Any]) -> bool:
    return any(block.get(key) for key in _PLACE)


def _block(block: dict[str, Any], provider: str, cloud: str) -> dict[str, Any] | None:
    """With its place there; None for one that is elsewhere."""
    parts = str(block.get("infra") or "").strip("/ ").split("/")
    named = parts[0] or str(block.get("cloud") or "")
    if named.lower() not in ("", "*", cloud, provider.lower()):
        return None
    region = parts[1] if len(parts) > 1 else str(block.get("region") or "*")
    zone = parts[2] if len(parts) > 2 else str(block.get("zone") or "*")
    kept = {key: value for key, value in block.items() if key not in _PLACE}
    return kept | {"infra": f"{provider}/{region}/{zone}".removesuffix("/*").removesuffix("/*")}
