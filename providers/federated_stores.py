"""What config.toml says of a store that machines of other clouds exchange what they are for, after
`spotctl init --trust`: [stores.NAME] and its `federate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from providers.iam.hcl import Raw, block
from providers.iam.policy import PolicyFacts
from providers.iam.setup import filled

SCHEMES = {"aws": "s3", "gcp": "gs", "azure": "az"}


def store_of(facts: PolicyFacts, cloud: str) -> str:
    """The store of this cloud that checkpoints go to first; "" where there is none."""
    urls = (facts.checkpoint_store, *facts.job_stores)
    return next((url for url in urls if url.startswith(f"{SCHEMES[cloud]}://")), "")


def lines(facts: PolicyFacts, told: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """TOML. `told` is what `federate` of the cloud's set-up answers, `names` what its $NAMEs stand
    for. Raises KeyError for one that is not among them."""
    head = [
        "# Where config.toml has a section with this url, federate goes there.",
        "[stores.checkpoints]",
        f"url = {json.dumps(store_of(facts, told['kind']))}",
    ]
    if told["kind"] == "azure":
        head.append('options = { account = "ACCOUNT" }  # the storage account that has it')
    body = [f"{key} = {json.dumps(filled(value, names))}" for key, value in told.items()]
    return [*head, "", "[stores.checkpoints.federate]", *body]


def output(facts: PolicyFacts, told: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The same of a module of Terraform: `terraform output -raw federate`. `names` are expressions
    of its language."""
    text = lines(facts, told, {name: f"${{{value}}}" for name, value in names.items()})
    listed = ", ".join(json.dumps(line) for line in text)
    return block("output", ["federate"], {"value": Raw(f'join("\\n", [{listed}])')})
