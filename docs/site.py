"""Pages of the documentation site that are made from code, and links to files outside docs/.

A hook of mkdocs (mkdocs.yml). Commands, job file, configuration, API, events and metrics each get a
page from the table that the program itself uses. A link to a file of the repository leads to a copy
of that file in the site, and diagrams are drawn by a script of the site itself.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
MERMAID = "assets/javascripts/mermaid.min.js"  # in the site
_DRAWS = Path(sys.prefix) / "mermaid" / "mermaid.min.js"  # put there by `make`
_LINK = re.compile(r"(?<=\])\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
_CALLS = {"Event", "event"}  # what makes an event: its kind comes first


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the files that pages link to."""
    for name, generate in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=generate()))
    for page in [*files.documentation_pages()]:
        for path in _outside(page):
            source = str(ROOT / path)
            files.append(File.generated(config, _published(path), abs_src_path=source))
    if not _DRAWS.is_file():
        raise PluginError(f"{_DRAWS} is missing: `make docs` fetches it")
    files.append(File.generated(config, MERMAID, abs_src_path=str(_DRAWS)))
    return files


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Let a page with diagrams load what draws them, before the theme would fetch it elsewhere."""
    if '<pre class="mermaid">' not in output:
        return output
    path = posixpath.relpath(MERMAID, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</head>", f'<script src="{path}"></script></head>', 1)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links out of docs/ lead to the copies."""
    here = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        path = _repository_path(here, match[1])
        if path is None:
            return match[0]
        if not (ROOT / path).is_file():
            return f" (`{path}`)"
        return f"({posixpath.relpath(_published(path), here or '.')})"

    return _LINK.sub(replace, markdown)


def _outside(page: File) -> Iterator[str]:
    here = posixpath.dirname(page.src_uri)
    for match in _LINK.finditer(page.content_string):
        path = _repository_path(here, match[1])
        if path is not None and (ROOT / path).is_file():
            yield path


def _repository_path(here: str, target: str) -> str | None:
    """Return the path in the repository of a link that leaves docs/, or None."""
    path = posixpath.normpath(posixpath.join("docs", here, target))
    return None if path == "docs" or path.startswith(("docs/", "..")) else path


def _published(path: str) -> str:
    """Return where a file of the repository is in the site; Markdown is not made into a page."""
    return f"files/{path}.txt" if path.endswith(".md") else f"files/{path}"


# --- the pages


def commands() -> str:
    """Every command with its help, arguments and options."""
    from spotd.cli.app import app as spotctl
    from spotd.daemon.command import app as spotd

    lines = ["# Commands", "", "Made from the programs themselves.", ""]
    for name, app in (("spotctl", spotctl), ("spotd", spotd)):
        lines += _command(_click(app), name)
    return "\n".join(lines) + "\n"


def _click(app: Any) -> Any:
    import typer

    return typer.main.get_command(app)


def _command(command: Any, path: str) -> Iterator[str]:
    import typer

    if command.hidden:
        return
    yield f"{'##' if path.count(' ') < 1 else '###'} {path}\n"
    yield _text(command.help or "") + "\n"
    context = typer.Context(command, info_name=path)
    parameters = [item for item in command.params if not getattr(item, "hidden", False)]
    if parameters:
        yield "| argument | default | meaning |\n|---|---|---|"
        for item in parameters:
            names = ", ".join(f"`{name}`" for name in [*item.opts, *item.secondary_opts])
            value = getattr(item.default, "value", item.default)  # of an enum
            default = f"`{value}`" if value and not callable(value) else ""
            yield f"| {names} | {_cell(default)} | {_cell(getattr(item, 'help', '') or '')} |"
        yield ""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _command(command.get_command(context, name), f"{path} {name}")


def job_file() -> str:
    """Every key of a job file."""
    from spotd.spec.__main__ import schema

    text = "Made from the schema that checks job files (`schemas/job-v1.json`)."
    return f"# Job file\n\n{text}\n\n" + "\n".join(_model(schema())) + "\n"


def configuration() -> str:
    """Every key of the configuration."""
    from spotd.config.file import ConfigFile

    text = "Made from the model that reads `config.toml`. `spotd check` names all errors at once."
    return (
        f"# Configuration\n\n{text}\n\n" + "\n".join(_model(ConfigFile.model_json_schema())) + "\n"
    )


def _model(schema: Mapping[str, Any]) -> Iterator[str]:
    """One table a model: the top first, then each that it uses."""
    tables = {"Top level": schema, **schema.get("$defs", {})}
    for name, model in tables.items():
        if not model.get("properties"):
            continue
        yield f"## {name}\n"
        if name != "Top level" and model.get("description"):
            yield _text(model["description"]) + "\n"
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        for key, field in model["properties"].items():
            needed = "required" if key in model.get("required", ()) else _default(field)
            meaning = _cell(field.get("description", ""))
            yield f"| `{key}` | {_type(field, tables)} | {needed} | {meaning} |"
        yield ""


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    # The defaults of a section are in its own table.
    return "" if value in (None, "") or isinstance(value, dict | list) else f"`{_cell(str(value))}`"


def _type(field: Mapping[str, Any], models: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the type as words, with a link to the table of a model."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        model = models.get(name, {})
        return f"[{name}](#{name.lower()})" if model.get("properties") else _type(model, models)
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in field:
            kinds = (_type(item, models) for item in field[key] if item.get("type") != "null")
            return " or ".join(dict.fromkeys(kinds))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), models)}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"table of {_type(field['additionalProperties'], models)}"
    return str(field.get("type", field.get("const", "any")))


def api() -> str:
    """Every operation of the HTTP API, from its OpenAPI document."""
    from spotd.api.http.openapi import describe
    from spotd.api.http.route_table import ROUTES

    document = describe(ROUTES)
    lines = [
        "# API",
        "",
        "Made from the OpenAPI document that the daemon serves at `GET /v1/openapi.json`.",
        "",
    ]
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", "", _text(operation["summary"]), ""]
            content = operation.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {}).get("schema", {}).get("properties", {})
            rows = [(item["name"], item["in"], item["schema"]) for item in operation["parameters"]]
            rows += [(name, "body", schema) for name, schema in body.items()]
            if rows:
                lines += ["| field | in | type |", "|---|---|---|"]
                lines += [f"| `{name}` | {where} | {_type(kind)} |" for name, where, kind in rows]
                lines.append("")
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Every metric of the table."""
    from spotd.api.metrics.metric_table import METRICS

    lines = ["# Metrics", "", "[How to scrape and read them](../metrics.md).", ""]
    lines += ["| metric | kind | labels | since | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.since} | {_cell(m.text)} |"
        for m in METRICS
    ]
    return "\n".join(lines) + "\n"


def events() -> str:
    """Every kind of event that the code makes, with the modules that make it."""
    makers: dict[str, set[str]] = {}
    for folder in ("spotd", "trainer"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for kind in _event_kinds(path.read_text(encoding="utf-8")):
                makers.setdefault(kind, set()).add(path.relative_to(ROOT).as_posix())
    lines = ["# Events", "", "`spotctl events` and the API show them. Made from the code.", ""]
    lines += ["| kind | from |", "|---|---|"]
    lines += [
        f"| `{kind}` | {', '.join(f'`{path}`' for path in sorted(paths))} |"
        for kind, paths in sorted(makers.items())
    ]
    return "\n".join(lines) + "\n"


def _event_kinds(source: str) -> Iterator[str]:
    """Yield the literal kinds of the events that a module makes."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if getattr(node.func, "attr", getattr(node.func, "id", "")) not in _CALLS:
            continue
        kinds = [*node.args[:1], *(item.value for item in node.keywords if item.arg == "kind")]
        for value in kinds:
            branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            yield from (
                branch.value
                for branch in branches
                if isinstance(branch, ast.Constant) and isinstance(branch.value, str)
            )


def _text(text: str) -> str:
    """Help as Markdown: its indented examples as code, and nothing of it as HTML."""
    lines: list[str] = []
    for line in text.replace("\b", "").replace("\f", "").splitlines():
        if line.startswith("  "):
            lines += [""] if lines and not lines[-1].startswith(" ") else []
            lines.append(f"    {line.strip()}")
        else:
            lines.append(line.replace("<", "&lt;").replace("[", "\\["))
    return "\n".join(lines).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


PAGES: dict[str, Callable[[], str]] = {
    "cli": commands,
    "job-file": job_file,
    "configuration": configuration,
    "api": api,
    "events": events,
    "metrics": metrics,
}
