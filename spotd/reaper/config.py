"""The reaper's own small configuration."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from providers.base import Provider
from providers.section import Section
from spotd.alert_sinks.base import AlertRoute, AlertSink
from spotd.alert_sinks.command import CommandRoute
from spotd.alert_sinks.registry import AnyAlertRoute
from spotd.alert_sinks.slack import SlackRoute
from spotd.base.errors import InputError, Problem
from spotd.base.validation import problems_of
from spotd.config.provider_registry import build_provider

DEFAULT = Path("/etc/spotd/reaper.toml")
EXAMPLE = """\
    deployment = "the id that spotctl doctor shows"
    [providers.aws]
    kind = "local"
    url = "http://127.0.0.1:8700"
    personality = "aws"
    token_file = "/path/to/the/cloud/token"
    [page]
    slack_url_file = "/etc/spotd/reaper-slack-url"
"""


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a time; write a number")
    return value


class PageSection(Section):
    """Where the reaper's own pages go: everywhere that is given; the log has them in any case.

    `routes` takes the same tables as [alerts.routes] of spotd.toml.
    """

    slack_url_file: Path | None = None
    slack_url_credential: str | None = None
    slack_hosts: list[str] = Field(default=[], description="Besides Slack's own")
    command: list[str] = Field(default=[], description="Gets the text of a page on its stdin")
    routes: dict[str, AnyAlertRoute] = Field(default={})

    def sections(self) -> Iterator[tuple[str, AlertRoute]]:
        """Yield the key and the section of each sink; the short keys stand for one each."""
        if self.slack_url_file or self.slack_url_credential:
            key = "slack_url_file" if self.slack_url_file else "slack_url_credential"
            section = SlackRoute(
                kind="slack",
                url_file=self.slack_url_file,
                url_credential=self.slack_url_credential,
                allow_hosts=self.slack_hosts,
            )
            yield f"page.{key}", section
        if self.command:
            yield "page.command", CommandRoute(kind="command", command=self.command)
        yield from ((f"page.routes.{name}", route) for name, route in self.routes.items())


class ReaperFile(Section):
    """The whole file."""

    deployment: str = Field(min_length=1)
    providers: dict[str, dict[str, Any]] = Field(min_length=1)
    page: PageSection = PageSection()
    every_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    unattended_h: Annotated[float, BeforeValidator(_no_switch), Field(gt=0, le=720)] | None = None
    state_dir: Path | None = None


@dataclass(frozen=True)
class ReaperConfig:
    """The configuration in force."""

    file: ReaperFile
    providers: Mapping[str, Provider]
    sinks: Sequence[AlertSink]
    state_dir: Path | None

    @property
    def unattended_s(self) -> float | None:
        """Return the time that replaces the machines' tags; None to use the tags."""
        return None if self.file.unattended_h is None else self.file.unattended_h * 3600


def load(path: Path | None, environ: Mapping[str, str] | None = None) -> ReaperConfig:
    """Read and check everything before a cloud is called. Raises UserError."""
    environ = os.environ if environ is None else environ
    path = path or DEFAULT
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(path, Problem("", f"cannot be read: {error.strerror}")) from None
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is not a TOML error
        raise _wrong(path, Problem("", f"is not TOML: {error}")) from None
    try:
        file = ReaperFile.model_validate(data)
    except ValidationError as error:
        raise _wrong(path, *(problem for _, problem in problems_of(error, ReaperFile))) from None
    state = environ.get("STATE_DIRECTORY")
    return ReaperConfig(
        file=file,
        providers={name: _provider(path, file, name) for name in file.providers},
        sinks=tuple(_sinks(path, file.page, environ)),
        state_dir=file.state_dir or (Path(state) if state else None),
    )


def _wrong(path: Path, *problems: Problem) -> InputError:
    advice = f"correct {path}, or name another with --config; the smallest is\n{EXAMPLE}"
    return InputError(f"the configuration {path} cannot be used:", problems, advice)


def _provider(path: Path, file: ReaperFile, name: str) -> Provider:
    settings = {
        key: Path(value) if key.endswith("_file") and isinstance(value, str) else value
        for key, value in file.providers[name].items()
    }
    for key, given in settings.items():
        if problem_ := _wrong_kind(key, given):
            raise _wrong(path, Problem(f"providers.{name}.{key}", *problem_))
    kind = settings.pop("kind", None)
    if not isinstance(kind, str):
        problem = Problem(f"providers.{name}.kind", "is missing", 'add it, for example "local"')
        raise _wrong(path, problem)
    try:
        return build_provider(kind, name, file.deployment, settings)
    except (TypeError, ValueError) as error:
        text = str(error).rpartition("() ")[2]
        raise _wrong(path, Problem(f"providers.{name}", text)) from None


def _wrong_kind(key: str, given: object) -> tuple[str, str] | None:
    """Return what is wrong with a provider setting, and the fix.

    The settings of all clouds are texts, except times and lists.
    """
    if key.endswith("_s"):
        if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < 86_400:
            return None
        return "is not a time", "write seconds as a number above 0"
    if key.endswith("_file") and "\0" in str(given):
        return "is not a path", "write the path of a file"
    good = isinstance(given, str | Path | list | dict) and bool(given)
    return None if good else ("is not text", "write it in quotes")


def _sinks(path: Path, page: PageSection, environ: Mapping[str, str]) -> Iterator[AlertSink]:
    for where, section in page.sections():
        try:
            yield section.build(environ)
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            raise _wrong(path, Problem(where, text, fix)) from None
