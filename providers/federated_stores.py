"""Render the [stores.NAME] section of config.toml for a store that other clouds' machines access by
identity federation, as `spotctl init --trust` sets it up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from providers.clouds import CLOUDS, STORES
from providers.iam.hcl import Raw, block
from providers.iam.policy import PolicyFacts
from providers.iam.setup import substitute


def store_of(facts: PolicyFacts, cloud: str) -> str:
    """Return the first checkpoint store on this cloud; "" where there is none."""
    urls = (facts.checkpoint_store, *facts.job_stores)
    return next((url for url in urls if url.startswith(f"{CLOUDS[cloud].scheme}://")), "")


def toml_lines(
    facts: PolicyFacts, settings: Mapping[str, Any], names: Mapping[str, str]
) -> list[str]:
    """Return the section as lines of TOML.

    `settings` come from `federation_settings` of the cloud's set-up; `names` are the values of
    their $NAMEs. Raises KeyError for an unknown name.
    """
    header = [
        "# Where config.toml has a section with this url, federate goes there.",
        "[stores.checkpoints]",
        f"url = {json.dumps(store_of(facts, settings['kind']))}",
    ]
    for name, meaning in STORES[settings["kind"]].required_options.items():
        header.append(f'options = {{ {name} = "{name.upper()}" }}  # {meaning} that has it')
    body = [f"{key} = {json.dumps(substitute(value, names))}" for key, value in settings.items()]
    return [*header, "", "[stores.checkpoints.federate]", *body]


def terraform_output(
    facts: PolicyFacts, settings: Mapping[str, Any], names: Mapping[str, str]
) -> str:
    """Return the same section as a Terraform output, for `terraform output -raw federate`. `names`
    are Terraform expressions."""
    lines = toml_lines(facts, settings, {name: f"${{{value}}}" for name, value in names.items()})
    quoted_lines = ", ".join(json.dumps(line) for line in lines)
    return block("output", ["federate"], {"value": Raw(f'join("\\n", [{quoted_lines}])')})
