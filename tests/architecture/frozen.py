"""What users, scripts, databases and machines of another version hold us to, as text.

Moving and renaming code may not change any of it. `SPOTD_WRITE_GOLDEN=1 pytest
tests/architecture/test_frozen.py` takes over a change that is meant.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import typer
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

ROOT = Path(__file__).parents[2]
_PROSE = {"title", "description", "summary"}


def commands() -> str:
    """Every command of spotctl and spotd with its arguments and options; no help text."""
    from spotd.cli.app import app as spotctl
    from spotd.daemon.command import app as spotd

    programs = {"spotctl": spotctl, "spotd": spotd}
    trees = (_commands(typer.main.get_command(app), name) for name, app in programs.items())
    return "\n".join(line for tree in trees for line in tree) + "\n"


def _commands(command: Any, path: str) -> Iterator[str]:
    yield f"{path}{' (hidden)' if command.hidden else ''}"
    for parameter in command.params:
        yield f"    {_parameter(parameter)}"
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in sorted(command.list_commands(context)):
            yield from _commands(command.get_command(context, name), f"{path} {name}")


def _parameter(parameter: Any) -> str:
    names = " ".join([*parameter.opts, *parameter.secondary_opts])
    annotation = parameter.type_descriptor.annotation
    values = [item.value for item in annotation] if isinstance(annotation, EnumType) else None
    kind = values or getattr(annotation, "__name__", str(annotation))
    default = parameter.default
    default = default.value if isinstance(default, Enum) else default
    marks = {
        "required": parameter.required,
        "multiple": getattr(parameter, "multiple", False),
        "flag": getattr(parameter, "is_flag", False),
        f"env {parameter.envvar}": parameter.envvar,
        f"nargs {parameter.nargs}": parameter.nargs != 1,
    }
    shown = "" if callable(default) or default is None else f" = {default!r}"
    return " ".join([f"{names}: {kind}{shown}", *(mark for mark, is_so in marks.items() if is_so)])


def openapi() -> str:
    """The API's description without its prose."""
    from spotd.api.http import openapi as module
    from spotd.api.http.route_table import ROUTES

    return _json(module.describe(ROUTES))


def configuration() -> str:
    """Every key of the configuration, its type and its default."""
    from spotd.config.file import ConfigFile

    return _json(ConfigFile.model_json_schema())


def job_file() -> str:
    """Every key of a job file, its type and its default."""
    from spotd.spec.__main__ import schema

    return _json(schema())


def metrics() -> str:
    """Every metric with its kind and labels."""
    from spotd.api.metrics.metric_table import METRICS

    rows = (f"{m.name} {m.kind} {','.join(m.labels)} {m.since}" for m in METRICS)
    return "\n".join(sorted(rows)) + "\n"


def database() -> str:
    """The statements that make the schema, in both dialects."""
    from spotd.store import columns, schema

    lines = []
    for dialect in (sqlite.dialect(), postgresql.dialect()):
        for table in columns.metadata.sorted_tables:
            lines.append(str(CreateTable(table).compile(dialect=dialect)))
            indexes = sorted(table.indexes, key=lambda index: str(index.name))
            lines += [str(CreateIndex(index).compile(dialect=dialect)) for index in indexes]
    lines.append(repr(schema.REVISIONS))
    return re.sub(r"[ \t]+\n", "\n", "\n".join(lines)) + "\n"


def wire() -> str:
    """What the daemon and the node say to each other: kinds, codes, and the fields of each
    document by name, whatever its class is called."""
    import spotd.wire
    from spotd.wire.parts import fields_of, parts_of

    constants, documents, parts = [], set(), set()
    for info in pkgutil.iter_modules(spotd.wire.__path__, "spotd.wire."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, (str, int, float)):
                constants.append(repr(value))
            if dataclasses.is_dataclass(value) and value.__module__ == info.name:
                documents.add(value)
                parts |= set(parts_of(value).values())
    lines = {"; ".join(sorted(map(_field, fields_of(kind).values()))) for kind in documents - parts}
    return "\n".join([*sorted(constants), "", *sorted(lines)]) + "\n"


def _field(field: dataclasses.Field[Any]) -> str:
    default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
    return f"{field.name}{default}"


def hook() -> str:
    """What training programs import, with its signatures."""
    from trainer.hook.spotd_hook import Run, hf, lightning, report_results

    lines = [f"report_results{inspect.signature(report_results)}"]
    for cls in (Run, hf.Callback, lightning.Callback):
        where = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
        for name, member in sorted(vars(cls).items()):
            if name.startswith("_") and name != "__init__":
                continue
            signature = inspect.signature(member) if callable(member) else ""
            lines.append(f"{where}.{name}{signature}")
    return "\n".join(lines) + "\n"


def names() -> str:
    """Variables of the environment, kinds of events, and settings of providers."""
    text = "\n".join(
        path.read_text()
        for folder in ("spotd", "providers", "trainer")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )
    variables = set(re.findall(r"\b(?:SPOTD|SPOTCTL|SKYPILOT)_[A-Z][A-Z0-9_]*\b", text))
    return "\n".join(sorted(variables)) + "\n"


def _json(document: Any) -> str:
    return json.dumps(_without_prose(document), indent=1, sort_keys=True) + "\n"


def _without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _without_prose(v) for k, v in value.items() if not _is_prose(k, v)}
        return {k: v for k, v in kept.items() if k != "version"}
    return [_without_prose(item) for item in value] if isinstance(value, list) else value


def _is_prose(key: str, value: Any) -> bool:
    return key in _PROSE and isinstance(value, str)


ALL: dict[str, Callable[[], str]] = {
    "commands.txt": commands,
    "openapi.json": openapi,
    "configuration.json": configuration,
    "job-file.json": job_file,
    "metrics.txt": metrics,
    "database.sql": database,
    "wire.txt": wire,
    "hook.txt": hook,
    "names.txt": names,
}
