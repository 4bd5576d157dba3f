"""What is true of one provider stands in its own folder: elsewhere no string names a provider or
the scheme of a provider's object store."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import providers
import spotd
import trainer
from providers.clouds import CLOUDS, NAMES, STORE_OF_SCHEME

ROOT = Path(spotd.__file__ or "").parent.parent
ROOTS = [Path(package.__file__ or "").parent for package in (spotd, providers, trainer)]
TABLE = "providers/clouds.py"
NAME = re.compile(rf"(?<![\w.-])({'|'.join(NAMES)})(?![\w-])")
SCHEME = re.compile(rf"({'|'.join(STORE_OF_SCHEME)})(:|://.*)?")
# Where else such a string may stand, each with the reason. A path that ends in "/" is a folder.
_RCLONE = "rclone has a kind of remote for each kind of store, with options of its own"
_BUCKET = "any bucket: what its client needs is the same for all of them"
ALLOWED = {
    "providers/local/": "plays the clouds whose facts say so, with documents like theirs",
    "providers/stores/": "one module for each kind of store, named as its URLs and its client are",
    "spotd/cli/demo.py": "the demo",
    "spotd/config/file.py": "an example of a configuration, for people",
    "spotd/demo/": "the demo",
    "spotd/reaper/config.py": "an example of a configuration, for people",
    "trainer/agent/data/mounts.py": _RCLONE,
    "trainer/agent/data/rclone.py": _RCLONE,
    "trainer/agent/run/saver_env.py": _BUCKET,
    "trainer/mounts/signing_proxy.py": _RCLONE,
    "trainer/node.py": _BUCKET,
    "trainer/reference/": "the training program of the demo and the tests",
}


def prose(tree: ast.AST) -> set[int]:
    """The ids of docstrings: they may name an example."""
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            found.add(id(body[0].value))
    return found


def own_words(provider: str) -> set[str]:
    """What the provider's folder may name: itself, and whose machines its store can trust."""
    cloud = CLOUDS.get(provider)
    trusts = cloud.store.trusts if cloud and cloud.store else ()
    return {provider, cloud.scheme, *trusts} if cloud else set()


def named(source: str, provider: str = "") -> Iterator[tuple[int, str]]:
    """Yield line and name of each string that names a provider and is not of `provider`."""
    tree = ast.parse(source)
    skipped = prose(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in skipped:
            continue
        found = {match[1] for match in NAME.finditer(node.value)}
        if scheme := SCHEME.fullmatch(node.value):
            found.add(scheme[1])
        for word in sorted(found - own_words(provider)):
            yield node.lineno, word


def places() -> Iterator[tuple[str, int, str]]:
    """Yield path, line and name of each such string outside the table."""
    for path in sorted(path for root in ROOTS for path in root.rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        folder = relative.split("/")[1] if relative.startswith("providers/") else ""
        if relative != TABLE:
            for line, word in named(path.read_text(), folder):
                yield relative, line, word


def allowed_by(path: str) -> str:
    """The entry of ALLOWED that holds for the file; "" for none."""
    return next((p for p in ALLOWED if path == p or (p[-1] == "/" and path.startswith(p))), "")


def test_no_other_place_names_a_provider() -> None:
    assert [place for place in places() if not allowed_by(place[0])] == []


def test_each_exception_is_needed() -> None:
    assert {allowed_by(path) for path, _, _ in places()} - {""} == ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        'HOURS = {"gcp": 8.0}',
        'if kind == "gcp": pass',
        'match kind:\n    case "gcp":\n        pass',
        'HELP = "the roles for aws, gcp or azure"',
        'text = f"--infra {x}, or gcp"',
        'SOURCES = ("providers/gcp/notice.py",)',
        'OPENERS = {"gs": 1}',
        'if url.startswith("gs://"): pass',
    ],
)
def test_a_name_is_seen(source: str) -> None:
    assert {word for _, word in named(source)} & {"gcp", "gs"}


@pytest.mark.parametrize(
    "source",
    [
        '"""Of aws, gcp and azure."""',
        'def f():\n    """For example spotctl init gcp."""',
        'KEY = "aws_access_key_id"',
        'GROUP = ".gcp-cache"',
        'ACTION = "s3:ListBucket"',
    ],
)
def test_prose_and_longer_words_are_none(source: str) -> None:
    assert list(named(source)) == []


def test_a_providers_folder_names_itself_and_whom_it_trusts() -> None:
    assert list(named('x = "azure", "az", "gcp"', "azure")) == []
    assert [word for _, word in named('x = "azure", "az"', "gcp")] == ["az"]
    assert [word for _, word in named('x = "azure", "az"', "stores")] == ["azure", "az"]
