"""What a cloud account needs before spotd can use it, as a list of steps: data, so that it can be
printed as commands, applied, and compared with what is there. Each cloud makes its own in
`providers/<cloud>/setup.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from providers.iam.policy import PolicyFacts

NETWORKS = ("public", "private", "jump")
EACH = "ZONE"  # in a step for each of several words, the name of the one
_NAME = re.compile(r"\$([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True)
class SetupFacts:
    """`box` is the only CIDR that machines are logged in to from; `network` is one of NETWORKS;
    `queue`, if any, is what the cloud's own warnings go to. `trusts` are the clouds whose machines
    may be who machines are here, with what tells them: as TRUSTS of that cloud's set-up says."""

    policy: PolicyFacts
    box: str
    network: str = "public"
    queue: str = ""
    trusts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One call of the cloud's API. In `parameters` and `answer`, $NAME stands for what a step
    before this one found or made; `answer` is the JMESPath of what is wanted of the answer."""

    region: str
    service: str
    operation: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    answer: str = ""


@dataclass(frozen=True)
class Step:
    """Something that has to be there: `look` says whether it is (null, false and "" are no), and
    `make` makes it. Without `make` it is looked up only. What either answers is $`name` from then
    on. With `each`, once for every word of that name, as $ZONE, and nothing is kept. `commands` are
    (look, make) for a cloud whose command line does not speak its API."""

    text: str
    look: Call
    make: Call | None = None
    name: str = ""
    each: str = ""
    commands: tuple[str, str] = ("", "")


class MissingError(Exception):
    """What is looked up and not made is not there."""


Ask = Callable[[Call], Any]  # the answer, None for what does not exist


def missing(steps: Sequence[Step], ask: Ask, names: dict[str, str] | None = None) -> list[str]:
    """What would be made, in words; nothing is changed. What steps answer goes into `names`."""
    return [text for text, there in _walk(steps, ask, names, make=False) if not there]


def apply(
    steps: Sequence[Step], ask: Ask, names: dict[str, str] | None = None
) -> Iterator[tuple[str, bool]]:
    """Make what is not there: (what, whether it was there); `names` as above."""
    return _walk(steps, ask, names, make=True)


def search(query: str, answer: Mapping[str, Any]) -> Any:
    """The part of an answer that a JMESPath names, as the command lines' `--query` does it."""
    import jmespath  # type: ignore[import-untyped] # noqa: PLC0415 - for set-ups alone

    return jmespath.search(query, answer)


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with what its names stand for. Raises KeyError for one that is not known."""
    if isinstance(value, str):
        return _NAME.sub(lambda found: names[found[1]], value)
    if isinstance(value, Mapping):
        return {key: filled(item, names) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [filled(item, names) for item in value]
    return value


def names_in(text: str) -> list[str]:
    """The $NAMEs of a text, without the dollar."""
    return _NAME.findall(text)


def _walk(
    steps: Sequence[Step], ask: Ask, found: dict[str, str] | None, *, make: bool
) -> Iterator[tuple[str, bool]]:
    names = {} if found is None else found
    for step in steps:
        for one in names[step.each].split() if step.each else [""]:
            here = names | zone_names(one)
            try:
                look = _call(step.look, here)
            except KeyError:  # of something that is not made yet
                if step.make is not None:
                    yield filled(step.text, here), False
                continue
            answer = ask(look)
            there = bool(answer)
            if not there and step.make is None:
                raise MissingError(f"{filled(step.text, here)} is not there")
            if not there and make and step.make is not None:
                answer = ask(_call(step.make, here))
            if step.name and answer:
                names[step.name] = str(answer)
            if step.make is not None:
                yield filled(step.text, here), there


def zone_names(zone: str) -> dict[str, str]:
    """$ZONE, and $NET: which sixteenth of the network is its own, by the letter it ends with."""
    return {EACH: zone, "NET": str((ord(zone[-1]) - ord("a")) % 16 * 16)} if zone else {}


def _call(call: Call, names: Mapping[str, str]) -> Call:
    parameters, answer = filled(call.parameters, names), filled(call.answer, names)
    return Call(call.region, call.service, call.operation, parameters, answer)
