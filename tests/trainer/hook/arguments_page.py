"""The page docs/arguments.md, from the table of arguments and the tests that show it.

SPOTD_WRITE_GOLDEN=1 with `test_arguments.py` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.trainer.hook import argument_cases as cases
from tests.trainer.hook.trainer_versions import recorded, versions_by_argument
from trainer.hook.spotd_hook.arguments import TABLE, Argument, Effect, owners

_INTRODUCTION = """\
# Arguments of trainers

For each argument of transformers' and Lightning's trainers that has to do with saving, the best
model, limits, early stopping or resume: what becomes of it beside spotd's callbacks
([library](library.md)). The callbacks use the same table. Tests compare it with the classes of the
oldest and newest versions. They run each case undisturbed without spotd, and with it interrupted on
one machine and resumed on another; logs, evaluations, weights and files are equal then.

- **honoured**: it does what it does without spotd.
- **refused**: an error at the start names it, and says what to do.
- **without effect**: a line at the start names it, and says why.
- Arguments that have nothing to do with saving and resume are listed below each table.
"""


def render() -> str:
    """Return the page."""
    lines = [_INTRODUCTION]
    versions = versions_by_argument(recorded())
    shown = shown_by()
    for owner in owners():
        rows = [row for row in TABLE if row.owner == owner]
        lines += [f"## {owner}\n", *_table(rows, versions, shown)]
    lines += ["## Other callbacks of Lightning\n", "| callback | what becomes of it |\n|---|---|"]
    for names, text in cases.OTHER_CALLBACKS.items():
        lines.append(f"| {', '.join(f'`{name}`' for name in names.split())} | {text} |")
    return "\n".join(lines) + "\n"


def shown_by() -> dict[tuple[str, str], list[str]]:
    """Return for each argument, as (owner, name), the cases and tests that show it."""
    all_cases = (*cases.TRANSFORMERS, *cases.LIGHTNING)
    showing = [(f'"{one.name}"', one.shows) for one in all_cases]
    for tests in (cases.TRANSFORMERS_TESTS, cases.LIGHTNING_TESTS):
        showing += [(f"`{name}`", shows) for name, shows in tests.items()]
    found: dict[tuple[str, str], list[str]] = {}
    for text, shows in showing:
        for owner, names in shows.items():
            for name in names.split():
                found.setdefault((owner, name), []).append(text)
    return found


def _table(
    rows: list[Argument],
    versions: Mapping[tuple[str, str], list[str]],
    shown: Mapping[tuple[str, str], list[str]],
) -> Iterator[str]:
    related = [row for row in rows if row.effect is not Effect.UNRELATED]
    if related:
        yield "| argument | effect | what becomes of it | shown by |\n|---|---|---|---|"
    for row in related:
        key = row.owner, row.name
        by = "; ".join(shown.get(key, ()))
        if key in cases.NOT_SHOWN:
            by = f"not tested: it needs {cases.NOT_SHOWN[key]}"
        name = f"`{row.name}`{_only(versions[key])}"
        yield f"| {name} | {row.effect.value} | {row.text} | {by} |"
    others = [row for row in rows if row.effect is Effect.UNRELATED]
    if others:
        names = (f"`{row.name}`{_only(versions[row.owner, row.name])}" for row in others)
        yield f"\nNot concerned: {', '.join(names)}."
    yield ""


def _only(versions: list[str]) -> str:
    """Return a remark for an argument that only one of the two versions has."""
    if len(versions) > 1:
        return ""
    return f" ({versions[0].partition(' ')[2].rpartition('.')[0]} only)"
