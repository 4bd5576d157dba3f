"""Cloud account set-up as a list of steps: data that can be printed as commands, applied, and
compared with the account. Each cloud has its own steps in `providers/<cloud>/setup.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from providers.iam.policy import PolicyFacts

NETWORKS = ("public", "private", "jump")
EACH = "ZONE"  # the name of the current word in a step with `each`
_NAME = re.compile(r"\$([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True)
class SetupFacts:
    """`box` is the only CIDR from which machines accept SSH; `network` is one of NETWORKS; `queue`,
    if not empty, receives the cloud's own warnings. `trusts` maps a trusted cloud to the arguments
    that identify its machines, as `trusts` in the facts of the store lists them."""

    policy: PolicyFacts
    box: str
    network: str = "public"
    queue: str = ""
    trusts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One call of the cloud's API.

    $NAME in `parameters` and `answer` stands for the result of an earlier step. `answer` is a
    JMESPath that selects the wanted part of the answer. The field names are part of the output of
    `spotctl init -o json`.
    """

    region: str
    service: str
    operation: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    answer: str = ""


@dataclass(frozen=True)
class Step:
    """A resource that has to exist.

    `look` tests whether it does (null, false and "" mean no), and `make` creates it; without `make`
    it is only looked up. The result becomes $`name` for later steps. With `each`, the step runs
    once for every word of that name, as $ZONE, and stores no result. `commands` are shell commands
    (look, make) for a cloud whose command line does not call its API directly. The field names are
    part of the output of `spotctl init -o json`.
    """

    text: str
    look: Call
    make: Call | None = None
    name: str = ""
    each: str = ""
    commands: tuple[str, str] = ("", "")


class MissingError(Exception):
    """A resource that is looked up and not created does not exist."""


Execute = Callable[[Call], Any]  # returns the answer, None for a missing resource


def find_missing_steps(
    steps: Sequence[Step], execute: Execute, names: dict[str, str] | None = None
) -> list[str]:
    """Return descriptions of what `apply` would create; changes nothing. Results of steps go into
    `names`."""
    return [
        description
        for description, exists in _walk(steps, execute, names, create=False)
        if not exists
    ]


def apply(
    steps: Sequence[Step], execute: Execute, names: dict[str, str] | None = None
) -> Iterator[tuple[str, bool]]:
    """Create what is missing; yields (description, whether it existed). `names` as above."""
    return _walk(steps, execute, names, create=True)


def select_jmespath(query: str, answer: Mapping[str, Any]) -> Any:
    """Return the part of an answer that a JMESPath selects, like the command lines' `--query`."""
    import jmespath  # type: ignore[import-untyped] # noqa: PLC0415 - for set-ups alone

    return jmespath.search(query, answer)


def substitute(value: Any, names: Mapping[str, str]) -> Any:
    """Replace the $NAMEs in `value`. Raises KeyError for an unknown one."""
    if isinstance(value, str):
        return _NAME.sub(lambda match: names[match[1]], value)
    if isinstance(value, Mapping):
        return {key: substitute(item, names) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [substitute(item, names) for item in value]
    return value


def placeholders_in(text: str) -> list[str]:
    """Return the $NAMEs in a text, without the dollar."""
    return _NAME.findall(text)


def _walk(
    steps: Sequence[Step], execute: Execute, captured: dict[str, str] | None, *, create: bool
) -> Iterator[tuple[str, bool]]:
    names = {} if captured is None else captured
    for step in steps:
        for item in names[step.each].split() if step.each else [""]:
            values = names | zone_names(item)
            try:
                check = _call(step.look, values)
            except KeyError:  # it needs a resource that does not exist yet
                if step.make is not None:
                    yield substitute(step.text, values), False
                continue
            result = execute(check)
            exists = bool(result)
            if not exists and step.make is None:
                raise MissingError(f"{substitute(step.text, values)} is not there")
            if not exists and create and step.make is not None:
                result = execute(_call(step.make, values))
            if step.name and result:
                names[step.name] = str(result)
            if step.make is not None:
                yield substitute(step.text, values), exists


def zone_names(zone: str) -> dict[str, str]:
    """Return $ZONE and $NET, the zone's sixteenth of the network, by the zone's last letter."""
    return {EACH: zone, "NET": str((ord(zone[-1]) - ord("a")) % 16 * 16)} if zone else {}


def _call(call: Call, names: Mapping[str, str]) -> Call:
    parameters, query = substitute(call.parameters, names), substitute(call.answer, names)
    return Call(call.region, call.service, call.operation, parameters, query)
