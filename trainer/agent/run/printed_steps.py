"""Find the numbers of steps in a program's output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from spotd import wire
from spotd.wire import (
    MAX_SERIES_KEY,
    REPEATED,
    PrintedSteps,
    StepSeries,
    began_anew,
    largest_series,
    main_series,
    printed_steps_data,
    unknown_series,
)
from trainer.agent.base.streams import LogReader
from trainer.agent.run.step_replay import Start, StepPace
from trainer.directory.resume_check import NOT_RESUMED

READ_EVERY_S = 1.0
MAX_READ_BYTES = 256 << 10  # at a time; of more output than that only the end is read
_MAX_KNOWN = 64  # series that are followed; more are ignored
_MAX_LINE_CHARS = 4096
_RESTARTED = 4  # a series that grew this often, and returns to its first number, is repeated

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORD = r"global[_ ]?step|steps?|iters?|iterations?|epochs?|batch|(?:num_)?updates?|round"
_GAP = r"[ \t]{0,32}"  # bounded, so that no text takes long
_TOTAL = rf"(?:{_GAP}(?:/|of){_GAP}(?P<total>\d{{1,15}}))?"
_NUMBERED = (
    rf"(?<![\w.])(?P<word>{_WORD})['\"]?{_GAP}(?:[:=#|]{_GAP})?(?:[\[(]{_GAP})?"
    rf"(?P<number>\d{{1,15}}(?:[,_]\d{{3}}){{0,5}}(?:\.\d{{1,15}})?)(?![\w%]|\.\d){_TOTAL}"
)
# A bar of tqdm, or of a library that prints like it: "12/240 [00:10<03:20".
_BAR = r"(?<![\w./])(?P<done>\d{1,15})/(?P<all>\d{1,15}) \[(?=\d+:\d\d)"
_PATTERN = re.compile(f"{_NUMBERED}|{_BAR}", re.IGNORECASE)


class PrintedStepsParser:
    """Receives a program's output in order, and follows the series of numbers in it. Sans I/O.

    A series that starts over while the program runs, such as the steps of each epoch, is no
    evidence, and is left out.
    """

    def __init__(self) -> None:
        self._series: dict[str, StepSeries] = {}
        self._history: dict[str, StepSeries] = {}
        self._first_after: dict[str, float] = {}
        self._rest = ""

    def mark_history(self) -> None:
        """Note that all numbers so far may be those of an earlier run."""
        self._history = dict(self._series)

    def forget_history(self) -> None:
        """Leave out the numbers up to the mark: they were those of an earlier run."""
        for key, history in self._history.items():
            now, first = self._series[key], self._first_after.get(key)
            del self._series[key]
            if first is not None and now.count != REPEATED:
                self._series[key] = StepSeries(first, now.last, now.count - history.count)

    def add(self, data: bytes) -> None:
        """Process more output; an incomplete last line is kept for the next call."""
        text = self._rest + data.decode(errors="replace")
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        self._rest = text[end:][-_MAX_LINE_CHARS:]
        self._scan(text[:end])

    def end(self) -> None:
        """Process the last line, which had no end."""
        self._scan(self._rest)
        self._rest = ""

    def skip(self) -> None:
        """Forget the incomplete line: the output after it is not read."""
        self._rest = ""

    @property
    def printed(self) -> PrintedSteps:
        """The series with the most numbers, and those that start over."""
        return largest_series(self._series)

    def _scan(self, text: str) -> None:
        for match in _PATTERN.finditer(_ESCAPES.sub("", text)):
            word, total = match["word"], match["total"] or match["all"]
            key = (word or "bar").lower() + (f"/{total}" if total else "")
            value = float((match["number"] or match["done"]).replace(",", "").replace("_", ""))
            self._note(key[:MAX_SERIES_KEY], value)

    def _note(self, key: str, value: float) -> None:
        known = self._series.get(key)
        if known is None or known.count == REPEATED:
            # A step 0 is printed by programs that are about to load a checkpoint, too.
            counts = value or key.startswith("epoch")
            if known is None and counts and len(self._series) < _MAX_KNOWN:
                self._series[key] = StepSeries(value, value, 1)
        elif value > known.last:
            self._series[key] = replace(known, last=value, count=known.count + 1)
            if key in self._history:
                self._first_after.setdefault(key, value)
        elif value <= known.first and known.count >= _RESTARTED:
            self._series[key] = replace(known, count=REPEATED)
        elif 0 < value < known.first:
            self._series[key] = StepSeries(value, value, 1)


class PrintedStepsWatch:
    """Reports the steps that a program prints, and once that it repeats those printed `before`.

    A program that prints its history has not begun anew; while that cannot be told, its steps are
    reported as unknown.

    `poll` is called in the agent's loop; `report` gets journal entries, at most one of the steps
    every `report_every_s` seconds.
    """

    def __init__(
        self,
        reader: LogReader,
        *,
        before: PrintedSteps,
        report: Callable[[str, Mapping[str, Any]], object],
        monotonic: Callable[[], float],
        report_every_s: float,
    ) -> None:
        self._reader, self._before = reader, before
        self._report, self._monotonic = report, monotonic
        self._report_every_s = report_every_s
        self._parser = PrintedStepsParser()
        self._offset = 0
        self._read_at_s = self._report_at_s = 0.0
        self._reported: PrintedSteps = {}
        self._main = main_series(before)
        self._pace = StepPace(before[self._main], READ_EVERY_S) if self._main else None
        self._start: Start | None = None  # of a program that prints the steps of an earlier run

    def poll(self) -> None:
        """Read new output, if a read is due."""
        now_s = self._monotonic()
        if now_s < self._read_at_s:
            return
        self._read_at_s = now_s + READ_EVERY_S
        self._read()
        self._check()
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + self._report_every_s
            self._report_steps()

    def end(self) -> None:
        """Read and report the last output of the program, which has ended."""
        self._read()
        self._parser.end()
        self._check()
        self._report_steps()

    def _read(self) -> None:
        end = self._reader.bounds()[1]
        if end - self._offset > MAX_READ_BYTES:
            self._parser.skip()
            self._offset = end - MAX_READ_BYTES
        while self._offset < end:
            offset, data = self._reader.read(self._offset, end - self._offset)
            if not data:
                break
            self._offset = offset + len(data)
            self._parser.add(data)

    def _report_steps(self) -> None:
        printed = self._parser.printed
        if self._start is None and began_anew(self._before, printed):
            printed = unknown_series(self._main)
        if printed != self._reported:
            self._reported = printed
            self._report(wire.PRINTED_STEPS, {"series": printed_steps_data(printed)})

    def _check(self) -> None:
        """Find out how a program began that prints steps as low as an earlier run did."""
        if self._pace is None or self._start is not None:
            return
        printed, was_past = self._parser.printed, self._pace.is_past
        start = self._pace.add(self._monotonic(), printed.get(self._main))
        if self._pace.is_past and not was_past:
            self._parser.mark_history()
        if start is None or not began_anew(self._before, printed):
            return
        self._start = start
        if start is Start.REPLAY:
            self._parser.forget_history()
        else:
            self._warn(printed)

    def _warn(self, printed: PrintedSteps) -> None:
        key = self._main
        word, first, last = key.partition("/")[0], printed[key].first, self._before[key].last
        text = (
            f"the program has started from the beginning: it prints {word} {first:g}, and an "
            f"earlier machine reached {last:g}"
        )
        data = {"text": text, "verdict": NOT_RESUMED, "about": {"first": first, "before": last}}
        self._report(wire.WARNING, data)
