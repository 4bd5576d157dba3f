"""Parser of a result file into an evaluation.

The file is a JSON object with the totals, or a row for each test case or request, as CSV or JSON.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotd.base.errors import ExitCode, InputError, Problem, UserError, suggest
from spotd.domain.evaluation import (
    MAX_NAME,
    MOST_CASES,
    MOST_FAILED,
    MOST_TTFT_S,
    Evaluation,
    EvaluationError,
    read_evaluation,
)
from spotd.history.intervals import quantile

_HELP = "docs/phases.md has an example of each form"
_COLUMNS = ("case", "passed", "tokens", "seconds", "ttft_s")
_TRUE, _FALSE = ("true", "pass", "passed", "yes", "1"), ("false", "fail", "failed", "no", "0")
_SHOWN = 10  # problems shown of one file
Numbered = tuple[int, Mapping[str, Any]]


def read_results(path: Path, suite: str = "") -> Evaluation:
    """Read a result file. Raises UserError.

    `suite` replaces the suite in the file; if neither is given, the file's name is used.
    """
    content = _read_text(path)
    try:
        if path.suffix.lower() == ".csv":
            return _summarize_rows(path, _csv_rows(path, content), suite or path.stem)
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            message = f"{path} is not valid JSON: {str(error)[:100]}"
            raise UserError(message, "name a CSV file as .csv", ExitCode.USAGE) from None
        if isinstance(data, list):
            return _summarize_rows(path, _json_rows(path, data), suite or path.stem)
        if not isinstance(data, dict):
            message = f"{path} has neither an object nor a list of rows"
            raise UserError(message, _HELP, ExitCode.USAGE)
        return read_evaluation({"suite": path.stem, **data, **({"suite": suite} if suite else {})})
    except EvaluationError as error:
        problem = Problem(error.field, error.text, error.fix)
        raise InputError(f"{path} cannot be used:", [problem], _HELP) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UserError(message, "name a CSV or JSON file", ExitCode.USAGE) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8", "save it as UTF-8", ExitCode.USAGE) from None


def _csv_rows(path: Path, text: str) -> list[Numbered]:
    try:
        reader = csv.DictReader(text.splitlines(), strict=True)
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UserError(f"{path} is not valid CSV: {error}", _HELP, ExitCode.USAGE) from None
    uneven_lines = [number for number, row in rows if None in row or None in row.values()]
    if uneven_lines:
        problem = Problem("", "it has not as many fields as the header", "", uneven_lines[0])
        raise InputError(f"{path} cannot be used:", [problem], _HELP)
    return [(n, {key: value for key, value in row.items() if value != ""}) for n, row in rows]


def _json_rows(path: Path, data: Sequence[object]) -> list[Numbered]:
    rows: list[Numbered] = []
    for number, row in enumerate(data, start=1):
        if not isinstance(row, dict):
            problem = Problem(
                f"row {number}", "it is not an object", "a row is like {case, passed}"
            )
            raise InputError(f"{path} cannot be used:", [problem], _HELP)
        rows.append((number, {key: value for key, value in row.items() if value is not None}))
    return rows


def _summarize_rows(path: Path, rows: Sequence[Numbered], suite: str) -> Evaluation:
    """Summarize the rows; the rate is all tokens over all seconds.

    Raises InputError with the problems of each row, and EvaluationError.
    """
    if not 0 < len(rows) <= MOST_CASES:
        raise EvaluationError("rows", f"there are {len(rows)}", f"1 to {MOST_CASES} rows")
    problems: list[Problem] = []
    line_by_case: dict[str, int] = {}
    verdicts: list[tuple[str, bool]] = []
    timed_tokens: list[tuple[float, float]] = []
    first_token_s: list[float] = []
    for number, row in rows:
        if len(problems) >= _SHOWN:
            break
        try:
            name = _case_name(row, number, line_by_case)
            if "passed" in row:
                verdicts.append((name, _parse_passed(row["passed"])))
            if "tokens" in row or "seconds" in row:
                timed_tokens.append(
                    (_positive_number(row, "tokens", 1e9), _positive_number(row, "seconds", 1e6))
                )
            if "ttft_s" in row:
                first_token_s.append(_positive_number(row, "ttft_s", MOST_TTFT_S))
        except EvaluationError as error:
            problems.append(Problem(error.field, error.text, error.fix, number))
    if verdicts and len(verdicts) != len(rows) and not problems:
        incomplete = next(number for number, row in rows if "passed" not in row)
        fix = "give it for every row, or for none"
        problems.append(Problem("passed", "it is missing, and others have it", fix, incomplete))
    if problems:
        raise InputError(f"{path} cannot be used:", problems, _HELP)
    failed = [name for name, passed in verdicts if not passed]
    seconds = sum(taken_s for _, taken_s in timed_tokens)
    values: dict[str, Any] = {
        "suite": suite,
        "cases": len(verdicts),
        "passed": len(verdicts) - len(failed),
        "failed": failed[:MOST_FAILED],
        "tokens_per_s": sum(tokens for tokens, _ in timed_tokens) / seconds if seconds else None,
        "ttft_s": quantile(first_token_s, 0.5),
        "ttft_p95_s": quantile(first_token_s, 0.95),
    }
    return read_evaluation(values)


def _case_name(row: Mapping[str, Any], number: int, line_by_case: dict[str, int]) -> str:
    for key in row:
        if key not in _COLUMNS:
            fix = "times are in seconds, as ttft_s" if str(key).endswith("_ms") else ""
            raise EvaluationError(str(key)[:40], "no such column", fix or suggest(key, _COLUMNS))
    name = str(row.get("case", number))[:MAX_NAME]
    if name in line_by_case:
        raise EvaluationError(
            "case", f"{name[:40]!r} is on line {line_by_case[name]}, too", "name it once"
        )
    line_by_case[name] = number
    return name


def _parse_passed(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise EvaluationError("passed", f"{str(value)[:40]!r} is not a verdict", "true or false")
    return text in _TRUE


def _positive_number(row: Mapping[str, Any], name: str, most: float) -> float:
    try:
        value = float(row[name]) if not isinstance(row[name], bool) else math.nan
    except KeyError:
        raise EvaluationError(name, "it is missing", "tokens and seconds go together") from None
    except (ValueError, TypeError, OverflowError):
        value = math.nan
    if not 0 < value <= most:
        fix = "in seconds: 250 ms are 0.25" if name != "tokens" else "tokens that were generated"
        message = f"{str(row[name])[:40]!r} is not above 0 and at most {most:g}"
        raise EvaluationError(name, message, fix)
    return value
