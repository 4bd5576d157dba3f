"""Parse the YAML of a job file into plain data, with the line of every key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from spotd.base.errors import InputError, Problem
from spotd.base.validation import Path, key_text

MAX_TEXT_CHARS = 1 << 20
_MAX_NODES = 20_000  # with aliases expanded, so that a few lines cannot become gigabytes
_MAX_DEPTH = 40


class SpecError(InputError):
    """An invalid job file, with every problem that was found in it."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(
            "the job file cannot be used:", problems, "correct the lines named above and run again"
        )


class _Loader(yaml.SafeLoader):
    """A safe YAML loader that reads dates as text; `spotd.deadline` is parsed later."""


_Loader.yaml_implicit_resolvers = {
    first: [item for item in resolvers if item[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass
class Document:
    """One parsed job file.

    `lines` has the line of every key, `scalars` the text of every scalar value as written.
    """

    text: str
    data: dict[str, Any]
    root: MappingNode
    lines: dict[Path, int] = field(default_factory=dict)
    scalars: dict[Path, str] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """Return the line of the key at `path` or of its nearest block; 0 if neither exists."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines[path] if path else 0

    def without_values(self, key: str) -> str:
        """Return the text with every value below the top-level `key` replaced by null."""
        spans: set[tuple[int, int]] = set()
        for name, value in self.root.value:
            if name.value == key and isinstance(value, MappingNode):
                spans |= {(node.start_mark.index, node.end_mark.index) for node in _values(value)}
        text = self.text
        for start, end in sorted(spans, reverse=True):
            # A block scalar ends at the start of the next line: that line break stays.
            line_break = text[start:end].removeprefix(text[start:end].rstrip())
            text = text[:start] + "null" + line_break + text[end:]
        return text


def _values(node: Node) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        for _, value in node.value:
            yield from _values(value)
    elif isinstance(node, SequenceNode):
        for value in node.value:
            yield from _values(value)
    elif node.value:
        yield node


def parse(text: str) -> Document:
    """Parse one job file. Raises SpecError for invalid YAML, several jobs, or a duplicate key."""
    if len(text) > MAX_TEXT_CHARS:
        raise SpecError(Problem("", f"longer than {MAX_TEXT_CHARS} characters", "use workdir"))
    text = text.removeprefix("\ufeff")
    try:
        loader = _Loader(text)
        try:
            return _read(text, loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        column = f" (column {mark.column + 1})" if mark else ""
        raise SpecError(
            Problem("", f"not YAML: {error.problem}{column}", line=mark.line + 1 if mark else 0)
        ) from None
    except RecursionError:
        raise SpecError(Problem("", "not YAML for a job: too deep")) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(Problem("", f"not YAML: {error}")) from None


def split_documents(text: str) -> list[str]:
    """Split a file of several YAML documents, like a SkyPilot pipeline, into one text per job.

    Each text is padded with empty lines, so that line numbers in errors are those of the file. A
    first document that only names the pipeline is left out. A file with one job, or one that is not
    YAML, is returned unchanged.
    """
    content = text.removeprefix("\ufeff")
    try:
        roots = _root_nodes(_Loader(content)) if len(content) <= MAX_TEXT_CHARS else []
    except (yaml.YAMLError, ValueError, RecursionError):
        return [text]
    roots = roots[1:] if roots and _is_title(roots[0]) else roots
    if len(roots) < 2:
        return [text]
    starts = [root.start_mark for root in roots]
    # Cut at the start of the line: the indent there applies to the whole document.
    cuts = [*(mark.index - mark.column for mark in starts), len(content)]
    return [
        "\n" * mark.line + content[cut:end]
        for mark, (cut, end) in zip(starts, pairwise(cuts), strict=True)
    ]


def _root_nodes(loader: _Loader) -> list[Node]:
    roots: list[Node] = []
    while loader.check_node():
        root = loader.get_node()
        if root is not None and not _is_empty(root):
            roots.append(root)
    return roots


def _read(text: str, loader: _Loader) -> Document:
    roots = _root_nodes(loader)
    if not roots:
        raise SpecError(Problem("", "the file is empty", "a job needs at least 'run'"))
    name_of_pipeline = roots[0] if len(roots) == 2 and _is_title(roots[0]) else None
    if name_of_pipeline:
        roots = roots[1:]
    if len(roots) > 1:
        message = f"{len(roots)} documents, but one job is expected"
        raise SpecError(
            Problem("", message, "submit them with `spotctl run`, which runs them in order")
        )
    if not isinstance(root := roots[0], MappingNode):
        raise SpecError(Problem("", "not a block of keys", "write 'key: value' lines"))
    document = Document(text, {}, root)
    _index_node(root, (), document, [0])
    document.data = _construct(root, loader)
    if name_of_pipeline:
        document.data.setdefault("name", _construct(name_of_pipeline, loader)["name"])
    return document


def _construct(root: Node, loader: _Loader) -> Any:
    """Return the data of a node. Raises SpecError for a value that does not match its tag.

    PyYAML raises other errors than its own for those, for example for `!!int ""`.
    """
    try:
        return loader.construct_document(root)
    except (AttributeError, LookupError, TypeError) as error:
        message = f"not YAML: a value does not match its tag ({error})"
        raise SpecError(Problem("", message, "leave the tags (!!...) out")) from None


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _is_title(node: Node) -> bool:
    """Return whether the document only names a pipeline, as SkyPilot's first document does."""
    return isinstance(node, MappingNode) and [key.value for key, _ in node.value] == ["name"]


def _index_node(node: Node, path: Path, document: Document, count: list[int]) -> None:
    """Fill `lines` and `scalars`. Raises SpecError for duplicate keys and for too many nodes.

    `count[0]` is the number of nodes so far.
    """
    count[0] += 1
    line = node.start_mark.line + 1
    if count[0] > _MAX_NODES or len(path) > _MAX_DEPTH:
        raise SpecError(Problem(key_text(path[:4]), "too large or too deep", line=line))
    document.lines.setdefault(path, line)
    if isinstance(node, ScalarNode):
        document.scalars.setdefault(path, node.value)
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            _index_node(item, (*path, index), document, count)
    elif isinstance(node, MappingNode):
        _index_mapping(node, path, document, count)


def _index_mapping(node: MappingNode, path: Path, document: Document, count: list[int]) -> None:
    first_lines: dict[str, int] = {}
    merged: list[Node] = []
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, ScalarNode):
            raise SpecError(Problem(key_text(path), "a key must be plain text", line=line))
        if key.tag == "tag:yaml.org,2002:merge":
            merged += value.value if isinstance(value, SequenceNode) else [value]
            continue
        key.tag = "tag:yaml.org,2002:str"  # a name as it is written: NO is not False, 1.10 not 1.1
        if key.value in first_lines:
            message = f"duplicate key, first on line {first_lines[key.value]}"
            raise SpecError(Problem(key_text((*path, key.value)), message, "keep one", line))
        first_lines[key.value] = line
        document.lines[(*path, key.value)] = line
        _index_node(value, (*path, key.value), document, count)
    for value in merged:
        _index_node(value, path, document, count)
