"""What of a training a resume preserves: docs/resume.md, made from the tests that show it.

    python -m tests.behaviours          # write the page
    python -m tests.behaviours --check  # exit 1 if it is not what the tests give

A test names what it shows with `@pytest.mark.behaviour("momentum of SGD", way="Run")`. A
difference that a resume makes is shown by a test, too, marked with `holds=False, because="..."`: it
asserts the difference, and so fails when there is none any more.
"""

from __future__ import annotations

import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "resume.md"
WRITE = "python -m tests.behaviours"

# The ways in, in the order of the page, and what each is.
WAYS = {
    "Run": "a loop of your own with [`spotd_hook.Run`](library.md#a-loop-of-your-own)",
    "accelerate": "`spotd_hook.Run` with what `Accelerator.prepare` returns",
    "transformers": "[the callback for transformers](library.md#transformers-and-accelerate)",
    "Lightning": "[the callback for Lightning](library.md#lightning)",
    "directory mode": "[an unmodified program](any-script.md) that saves by itself",
    "spotd's trainer": "`trainer.train`, the training program of the demo",
    "the saver": "what stores and finds checkpoints for all of these but directory mode",
}
# What no test shows, and why.
NOT_TESTED = (
    ("GPU", "random generators of several GPUs, CUDA graphs, a resume on another kind of GPU"),
    (
        "optimizers with packed state",
        "bitsandbytes and torchao: their tensors are types of their own",
    ),
    ("TRL", "not part of the test environment; its trainers are transformers' Trainer"),
    ("torchtitan", "needs GPUs; its checkpoints are folders of torch.distributed.checkpoint"),
    ("DeepSpeed, Megatron", "as programs: only the layout of their folders is tested"),
    ("TensorBoard, W&B", "files and runs of loggers: those of a lost machine stay as they are"),
)


@dataclass(frozen=True)
class Behaviour:
    """One behaviour by one way in, as a test's marker names it. Raises ValueError."""

    text: str
    way: str
    holds: bool = True
    because: str = ""

    def __post_init__(self) -> None:
        if not self.text or "|" in self.text + self.because:
            raise ValueError(f"a behaviour is a text without |, not {self.text!r}")
        if self.way not in WAYS:
            raise ValueError(f"{self.text!r}: way={self.way!r} is none of {', '.join(WAYS)}")
        if self.holds == bool(self.because):
            raise ValueError(
                f"{self.text!r}: because=... belongs to holds=False, and to that alone"
            )


@dataclass(frozen=True)
class Shown:
    """A test that shows a behaviour. `test` is its id, below the repository."""

    test: str
    soak: bool = False


Rows = Mapping[Behaviour, list[Shown]]


class Collect:
    """Notes the behaviours of all collected tests, those that only `make soak` plays included."""

    def __init__(self) -> None:
        self.rows: dict[Behaviour, list[Shown]] = defaultdict(list)
        self.errors: list[str] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        soak = item.get_closest_marker("soak") is not None
        for mark in item.iter_markers("behaviour"):
            try:
                behaviour = Behaviour(*mark.args, **mark.kwargs)
            except (TypeError, ValueError) as error:
                self.errors.append(f"{item.nodeid}: {error}")
            else:
                self.rows[behaviour].append(Shown(item.nodeid, soak))


def collect(files: Iterable[Path] | None = None) -> Collect:
    """Collect the tests that carry the marker. Raises RuntimeError if one cannot be imported."""
    if files is None:
        tests = sorted((ROOT / "tests").rglob("test_*.py"))
        files = [path for path in tests if "mark.behaviour(" in path.read_text(encoding="utf-8")]
    found = Collect()
    arguments = ["--collect-only", "-qq", "--soak", "--no-header", "-p", "no:cacheprovider"]
    code = pytest.main([*arguments, *map(str, files)], plugins=[found])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect them (exit {code!r})")
    return found


def page(rows: Rows) -> str:
    """Return the page. Raises ValueError for a behaviour that is said to hold and not to hold."""
    by_name: dict[tuple[str, str], Behaviour] = {}
    for one in rows:
        other = by_name.setdefault((one.way, one.text), one)
        if other != one:
            raise ValueError(f"{one.text!r} by {one.way} is said to hold and not to hold")
    fails = [one for one in rows if not one.holds]
    lines = [
        "# What a resume preserves",
        "",
        _filled(
            f"Made by `{WRITE}` from the tests. Each row is a behaviour of a training program that "
            "is interrupted and continues on another machine, and links to the tests that compare "
            "it with a program that nothing happened to. Tests marked *soak* run in `make soak` "
            "and `make soak-e2e`, all others in CI. The behaviours were collected from the "
            "documentation and the tests of transformers, Lightning, accelerate, TRL, PEFT and "
            "torchtitan."
        ),
        "",
        _filled(
            f"**{len(rows)} behaviours: {len(rows) - len(fails)} hold, {len(fails)} do not.** The "
            "tests that show a difference fail when it is gone, so no row stays here by mistake."
        ),
        "",
        "## What does not hold",
        "",
        "| behaviour | way in | why, and what to do | shown by |",
        "|---|---|---|---|",
        *(
            f"| {one.text} | {one.way} | {one.because} | {_links(rows[one])} |"
            for one in _sorted(fails)
        ),
        "",
        "## Not tested",
        "",
        "| subject | what is not known |",
        "|---|---|",
        *(f"| {subject} | {unknown} |" for subject, unknown in NOT_TESTED),
    ]
    for way, meaning in WAYS.items():
        holding = [one for one in rows if one.way == way and one.holds]
        lines += ["", f"## {way[0].upper()}{way[1:]}", "", f"By {meaning}.", ""]
        lines += ["| behaviour | verified by |", "|---|---|"]
        lines += [f"| {one.text} | {_links(rows[one])} |" for one in _sorted(holding)]
    return "\n".join(lines) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 115, break_long_words=False, break_on_hyphens=False)


def _sorted(behaviours: Iterable[Behaviour]) -> list[Behaviour]:
    order = list(WAYS)
    return sorted(behaviours, key=lambda one: (order.index(one.way), one.text.lower()))


def _links(tests: list[Shown]) -> str:
    """Link to each test function once, with its one case if there is only one."""
    by_function: dict[str, list[Shown]] = defaultdict(list)
    for one in tests:
        by_function[one.test.split("[")[0]].append(one)
    links = []
    for function, cases in sorted(by_function.items()):
        path, _, name = function.partition("::")
        case = cases[0].test.removeprefix(function) if len(cases) == 1 else ""
        soak = " *(soak)*" if all(one.soak for one in cases) else ""
        links.append(f"[`{name}{case}`](../{path}){soak}".replace("|", "/"))
    return ", ".join(links)


def main(arguments: list[str]) -> int:
    found = collect()
    for error in found.errors:
        print(error, file=sys.stderr)
    text = page(found.rows)
    if arguments == ["--check"]:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not same:
            print(f"docs/resume.md is not what the tests give: run `{WRITE}`", file=sys.stderr)
        return int(bool(found.errors) or not same)
    PAGE.write_text(text, encoding="utf-8")
    return int(bool(found.errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
