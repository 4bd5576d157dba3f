"""Prepare a user's job file for an interruption test: one cloud, spot only, limited cost."""

from __future__ import annotations

from typing import Any

import yaml

from spotd.spec.document import parse
from spotd.spec.quantities import parse_duration_s

MAX_DURATION_S = 3 * 3600  # the job ends after this time even if nobody cancels it
_LOCATION_KEYS = ("infra", "cloud", "region", "zone")
_ALTERNATIVE_KEYS = ("any_of", "ordered")


class UnsuitableJobError(Exception):
    """A job that an interruption test cannot use. The text names the field."""


def restrict_job_file(text: str, provider: str, cloud: str, max_usd: float) -> str:
    """Return the job file `text`, changed to run on one spot machine of `provider`.

    `cloud` is the kind of the provider, `max_usd` the upper limit of its budget. Raises
    UnsuitableJobError, and SpecError if the text is not a job file.
    """
    data = {str(key): value for key, value in parse(text).data.items()}
    spotd_block = dict(data.get("spotd") or {})
    if (spotd_block.get("checkpoint") or {}).get("engine") != "spotd":
        raise UnsuitableJobError(
            "spotd.checkpoint.engine is not spotd: the test needs its checkpoints"
        )
    if int(data.get("num_nodes") or 1) != 1:
        raise UnsuitableJobError("num_nodes: an interruption test needs a job on one machine")
    data["resources"] = _resources(dict(data.get("resources") or {}), provider, cloud)
    budget = dict(spotd_block.get("budget") or {})
    budget["max_cost_usd"] = min(max_usd, float(budget.get("max_cost_usd") or max_usd))
    spotd_block |= {"budget": budget, "capacity": ["spot"], "candidates": 1}
    duration = spotd_block.get("max_duration")
    if duration is None or parse_duration_s(duration) > MAX_DURATION_S:
        spotd_block["max_duration"] = f"{MAX_DURATION_S}s"
    data["spotd"] = spotd_block
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _resources(resources: dict[str, Any], provider: str, cloud: str) -> dict[str, Any]:
    restricted = _restrict_block(resources, provider, cloud)
    key = next((name for name in _ALTERNATIVE_KEYS if resources.get(name)), "")
    if key:
        usable = []
        for block in resources[key]:
            if isinstance(block, dict):
                has_location = _has_location(block)
                alternative = (
                    _restrict_block(block, provider, cloud) if has_location else dict(block)
                )
                if alternative is not None:
                    alternative.pop("use_spot", None)
                    usable.append(alternative)
        if not usable:
            raise UnsuitableJobError(f"resources.{key} names no machine of {cloud}")
        # The alternatives' own locations count; a location in another cloud is dropped here.
        if restricted is None:
            restricted = {
                name: value for name, value in resources.items() if name not in _LOCATION_KEYS
            }
        restricted |= {key: usable} | ({} if "infra" in restricted else {"infra": provider})
    if restricted is None:
        raise UnsuitableJobError(f"resources names another cloud than {cloud}")
    restricted.pop("use_spot", None)
    return restricted


def _has_location(block: dict[str, Any]) -> bool:
    return any(block.get(key) for key in _LOCATION_KEYS)


def _restrict_block(block: dict[str, Any], provider: str, cloud: str) -> dict[str, Any] | None:
    """Return the block with its location in `provider`; None if it names another cloud."""
    parts = str(block.get("infra") or "").strip("/ ").split("/")
    cloud_name = parts[0] or str(block.get("cloud") or "")
    if cloud_name.lower() not in ("", "*", cloud, provider.lower()):
        return None
    region = parts[1] if len(parts) > 1 else str(block.get("region") or "*")
    zone = parts[2] if len(parts) > 2 else str(block.get("zone") or "*")
    values = {key: value for key, value in block.items() if key not in _LOCATION_KEYS}
    return values | {"infra": f"{provider}/{region}/{zone}".removesuffix("/*").removesuffix("/*")}
