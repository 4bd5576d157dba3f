"""Cost report of runs that spotd did not see: their line items are read from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import Field, ValidationError

from providers.section import Section
from spotd.base.errors import ExitCode, InputError, Problem, UserError
from spotd.base.validation import problems_of
from spotd.domain.units import US_PER_H
from spotd.money.compare import RunFacts
from spotd.money.hour_breakdown import Machine, Segment, Span, TimeUse
from spotd.money.report import Account, Claim, Item, Kind
from spotd.spec.quantities import Usd

_EXAMPLE = "docs/cost.md has an example"


class ComputeLine(Section):
    """Hours of machines at one price."""

    phase: str
    what: str = ""
    hours: float = Field(gt=0, le=1e6)
    gpus: int = Field(ge=0, le=1_000_000, description="GPUs of each machine")
    usd_per_hour: Usd = Field(description="Price of one machine in USD per hour")
    on_demand_usd_per_hour: Usd | None = None
    interruptions: int | None = Field(
        default=None, ge=0, le=1_000_000, description="How often they were taken away"
    )
    lost_hours: float | None = Field(
        default=None, ge=0, description="Of `hours`, those that were replayed or recovered in"
    )


class OtherLine(Section):
    """A cost that is not of machines."""

    kind: Kind
    phase: str
    what: str = ""
    usd: Usd


class ClaimedSection(Section):
    """The totals that somebody claims."""

    total_usd: Usd
    baseline_usd: Usd | None = None
    saving: float = Field(default=0.0, ge=0, lt=1)


class ExternalRunsFile(Section):
    name: str
    compute: list[ComputeLine] = Field(min_length=1)
    other: list[OtherLine] = Field(default=[])
    claimed: ClaimedSection | None = None
    elapsed_hours: float | None = Field(
        default=None, gt=0, le=1e6, description="From its beginning until its end"
    )


def read_case(path: Path) -> tuple[Account, Claim | None]:
    """Return the account of the file and the claim in it. Raises UserError."""
    case = _read(path)
    claimed = case.claimed
    claim = None
    if claimed:
        claim = Claim(claimed.total_usd, claimed.baseline_usd or 0, claimed.saving)
    return _account(case), claim


def read_facts(path: Path) -> RunFacts:
    """Return the facts beside the line items. Raises UserError.

    The number of interruptions is known only if every line has it.
    """
    case = _read(path)
    counts = [line.interruptions for line in case.compute]
    known = [count for count in counts if count is not None]
    return RunFacts(sum(known) if len(known) == len(counts) else None, case.elapsed_hours)


def _read(path: Path) -> ExternalRunsFile:
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UserError(message, _EXAMPLE, ExitCode.USAGE) from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise UserError(f"{path} is not valid TOML: {error}", _EXAMPLE, ExitCode.USAGE) from None
    try:
        case = ExternalRunsFile.model_validate(data)
    except ValidationError as error:
        problems = [problem for _, problem in problems_of(error, ExternalRunsFile)]
        raise InputError(f"{path} cannot be used:", problems, _EXAMPLE) from None
    excessive = [n for n, line in enumerate(case.compute) if (line.lost_hours or 0) > line.hours]
    if excessive:
        problem = Problem(
            f"compute[{excessive[0]}].lost_hours", "is more than its hours", "correct it"
        )
        raise InputError(f"{path} cannot be used:", [problem], _EXAMPLE)
    return case


def _account(case: ExternalRunsFile) -> Account:
    machines, spans, at_us = [], [], 0
    for number, line in enumerate(case.compute):
        end_us = at_us + round(line.hours * US_PER_H)
        segment = Segment(
            at_us,
            end_us,
            line.usd_per_hour,
            line.on_demand_usd_per_hour or 0,
            price_source="file",
        )
        details = {"phase": line.phase, "what": line.what}
        machines.append(Machine(str(number), 1, (segment,), line.gpus, details=details))
        spans.append(_spans(line, at_us, end_us))
        at_us = end_us
    extras = tuple(Item(line.kind, line.phase, line.what, 0.0, "", line.usd) for line in case.other)
    note = "the cheapest price on demand anywhere is not in the file"
    return Account(
        "", case.name, "", 1, tuple(machines), extras=extras, unknown=(note,), spans=tuple(spans)
    )


def _spans(line: ComputeLine, start_us: int, end_us: int) -> tuple[Span, ...]:
    if line.lost_hours is None:
        return ((start_us, end_us, TimeUse.UNTOLD),)
    useful_end_us = end_us - round(line.lost_hours * US_PER_H)
    return ((start_us, useful_end_us, TimeUse.USEFUL), (useful_end_us, end_us, TimeUse.REPLAYED))
