"""Write Terraform's configuration language (HCL), as far as the generated modules need it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


class Raw(str):
    """An expression that is written without quotes."""

    __slots__ = ()


def module_head(account: str, provider: str, version: str) -> str:
    """Format the head of a root module that needs one of HashiCorp's providers."""
    return f"""\
# What spotd needs in this {account}: `terraform init`, and `terraform apply`.
terraform {{
  required_providers {{
    {provider} = {{
      source  = "hashicorp/{provider}"
      version = ">= {version}"
    }}
  }}
}}
"""


def block(kind: str, labels: list[str], body: Mapping[str, Any]) -> str:
    """Format one block. A list of mappings among the values becomes nested blocks of that name."""
    header = " ".join([kind, *(json.dumps(label) for label in labels)])
    return f"{header} {{\n" + "".join(_lines(body, "  ")) + "}\n"


def _lines(body: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in body.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            for inner in value:
                yield (
                    f"{indent}{key} {{\n" + "".join(_lines(inner, indent + "  ")) + f"{indent}}}\n"
                )
        elif isinstance(value, Mapping):
            yield f"{indent}{key} = {{\n" + "".join(_pairs(value, indent + "  ")) + f"{indent}}}\n"
        else:
            yield f"{indent}{key} = {_value(value)}\n"


def _pairs(body: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in body.items():
        yield f"{indent}{json.dumps(key)} = {_value(value)}\n"


def _value(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value)


def heredoc(text: str) -> Raw:
    """Format JSON as a heredoc."""
    return Raw(f"<<-JSON\n{text}\nJSON")


def label_of(name: str) -> str:
    """Return the Terraform label of a name."""
    return name.replace("-", "_")
