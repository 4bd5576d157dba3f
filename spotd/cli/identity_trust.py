"""`spotctl init --trust`: which machines of another cloud may be who machines are here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spotd.base.errors import ExitCode, UserError, suggest

if TYPE_CHECKING:
    from providers.iam.policy import PolicyFacts
    from providers.iam.setup import SetupFacts

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_AUDIENCE = re.compile(r"[^\s,\"'`$\\]+")
# Word -> its form; what stands in a script and in documents has no sign that means something there.
_FORMS = {
    "ISSUER": re.compile(r"https://[a-z0-9.-]+"),
    "ROLE-ARN": re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+"),
    "UNIQUE-ID": re.compile(r"[0-9]{6,30}"),
    "ACCOUNT-ID": re.compile(r"[0-9]{12}"),
    "ROLE": re.compile(r"[\w+=.@-]{1,64}"),
    "TENANT": re.compile(_UUID),
    "OBJECT-ID": re.compile(_UUID),
    "AUDIENCE": _AUDIENCE,
}


def read_trusts(
    words: Sequence[str], forms: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Of options like aws=123456789012,spotd-node-d0, each of a cloud in `forms`, which has what is
    to be told of it. Raises UserError."""
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        cloud, _, rest = word.partition("=")
        if cloud not in forms:
            raise _wrong(f"{cloud[:40]!r} is no other cloud", suggest(cloud, forms))
        told, names = tuple(rest.split(",", len(forms[cloud]) - 1)), forms[cloud]
        example = f"--trust {cloud}={','.join(names)}"
        if len(told) != len(names):
            raise _wrong(f"{cloud} is told by {' and '.join(names)}", example)
        for name, value in zip(names, told, strict=True):
            if not _FORMS[name].fullmatch(value):
                raise _wrong(f"{cloud}: {value[:60]!r} is no {name}", example)
        if cloud in found:
            raise _wrong(f"{cloud} is there twice", "once for each cloud")
        found[cloud] = told
    return found


def block_of(cloud: str, facts: SetupFacts) -> dict[str, Any]:
    """What [stores.NAME.federate] will say, nothing where nobody is trusted. Raises UserError where
    no store of this cloud is known, for then those who are trusted would get a right to nothing,
    and for what one block cannot say."""
    from providers.federated_stores import SCHEMES, store_of

    if not facts.trusts:
        return {}
    if not store_of(facts.policy, cloud):
        scheme = SCHEMES[cloud]
        text = f"no store of checkpoints is a {scheme}:// one, so nobody would get a right to any"
        raise _wrong(text, f"[stores.NAME] with such a url, or --checkpoints {scheme}://BUCKET")
    try:
        told: dict[str, Any] = import_module(f"providers.{cloud}.setup").federate(facts)
    except ValueError as error:
        raise _wrong(str(error), "the same AUDIENCE for both: for gcp any word does") from None
    return told


def commands_of(facts: PolicyFacts, told: Mapping[str, Any]) -> list[str]:
    """Of a script whose steps have found what names stand for: it says what the file is to say."""
    from providers.federated_stores import lines
    from providers.iam.script import quoted
    from providers.iam.setup import names_in

    known = {name: f"${name}" for value in told.values() for name in names_in(str(value))}
    return ["# for config.toml", *(f"echo {quoted(line)}" for line in lines(facts, told, known))]


def _wrong(text: str, fix: str) -> UserError:
    return UserError(f"--trust: {text}", fix, ExitCode.USAGE)
