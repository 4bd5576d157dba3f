"""The route for IAM policy documents, made from this deployment's configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

from providers.clouds import CLOUDS
from providers.iam.policy import Document, PolicyFacts
from spotd.api.request.request import ApiRequest, bad_input, not_found
from spotd.base.errors import UserError

_TYPE = re.compile(r"[A-Za-z0-9*?._-]{1,64}")

Make = Callable[[PolicyFacts], Mapping[str, Document]]


def read_policy(call: ApiRequest) -> dict[str, Any]:
    """The policy documents of one cloud. `types` are the allowed instance types, separated by
    commas (AWS); `spot=1` allows spot machines only (AWS). `facts` are the inputs of the
    documents."""
    cloud = call.path["cloud"]
    if cloud not in CLOUDS:
        raise not_found(f"there is no cloud {cloud[:40]!r}", f"one of {', '.join(CLOUDS)}")
    try:
        facts = call.context.clouds.policy_facts(cloud)
    except UserError as error:
        raise bad_input(error.text, error.try_) from None
    if facts is None:
        message = f"no provider of kind {cloud} is configured"
        raise not_found(message, f"add [providers.{cloud}] to config.toml and start spotd again")
    types = [word for word in call.query.get("types", "").split(",") if word]
    if invalid := [word for word in types if not _TYPE.fullmatch(word)]:
        raise bad_input(
            f"{invalid[0][:40]!r} is not an instance type", "write them like p5.*,g6e.12xlarge"
        )
    facts = replace(
        facts,
        instance_types=tuple(types) or facts.instance_types,
        spot_only=call.query.get("spot", "") == "1",
    )
    make: Make = import_module(f"providers.{cloud}.policy").policies
    documents = dict(make(facts))
    return {"kind": "Policy", "cloud": cloud, "documents": documents, "facts": asdict(facts)}
