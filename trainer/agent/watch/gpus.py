"""Watch the GPUs with nvidia-smi while training runs: memory errors, missing GPUs, utilisation.

The kernel's messages report a failure at once (see kernel.py), if they can be read. This slow check
finds what they do not report. A field that the installed driver does not know is left out of the
next query. For a lost GPU, which nvidia-smi still lists, it prints a separate line and bracketed
values.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.agent.watch.kernel import Grade

EVERY_S = 30.0
TIMEOUT_S = 60.0  # eight GPUs without persistence mode take half of that
CONFIRM_S = 5.0  # until a second query confirms a finding that would end training
_INDEX, _BUS, _BUSY = "index", "pci.bus_id", "utilization.gpu"
_ECC = "ecc.errors.uncorrected.volatile.total"
_HOT = "clocks_throttle_reasons.hw_thermal_slowdown"
_BRAKED = "clocks_throttle_reasons.hw_power_brake_slowdown"
FIELDS = (_INDEX, _BUS, _BUSY, _ECC, _HOT, _BRAKED)
# These need a separate query. GPUs before Ampere do not support row remapping.
ROW_FIELDS = ("gpu_bus_id", "remapped_rows.pending", "remapped_rows.failure")
_COUNT = re.compile(r"[0-9]{1,18}")
_MAX_LINE_CHARS = 1000  # a line has at most eight values
_YES = ("Yes", "1")
_LOST = ("[GPU is lost]", "[GPU requires reset]")
_NO_HANDLE = re.compile(r"Unable to determine the device handle for (GPU[^\n]{0,80})")
_NO_FIELD = re.compile(r'Field "([^"\n]{1,80})" is not a valid field')


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi shows it; None if unknown. `busy` is a fraction."""

    index: str
    bus: str
    busy: float | None = None
    ecc: int | None = None  # uncorrected memory errors since the driver was loaded
    remap_failed: bool = False
    remap_pending: bool = False
    slowed: str = ""  # why its hardware throttles it

    @property
    def name(self) -> str:
        return f"GPU {self.index} ({self.bus})" if self.bus else f"GPU {self.index}"


@dataclass(frozen=True)
class GpuReport:
    """One query's result: the working GPUs, messages about lost ones, and the first line if it has
    neither."""

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class Finding:
    """A problem; see kernel.Grade for its severity."""

    grade: Grade
    text: str


def parse(output: str, fields: Sequence[str] = FIELDS, rows: str = "") -> GpuReport:
    """Parse the output of `--query-gpu=FIELDS --format=csv,noheader,nounits` (stdout and stderr
    together), and that of `--query-remapped-rows=ROW_FIELDS`."""
    remapped = {
        bus: (pending in _YES, failed in _YES)
        for bus, pending, failed in _rows(rows, len(ROW_FIELDS))
    }
    gpus, lost = [], [f"nvidia-smi has no handle for {name}" for name in _NO_HANDLE.findall(output)]
    for row in _rows(output, len(fields)):
        values = dict(zip(fields, row, strict=True))
        reason = next((value for value in values.values() if value in _LOST), None)
        if reason is not None:
            lost.append(f"GPU {values.get(_INDEX, '?')}: nvidia-smi says {reason.strip('[]')!r}")
        elif _COUNT.fullmatch(values.get(_INDEX, "")):
            gpus.append(_gpu(values, *remapped.get(values.get(_BUS, ""), (False, False))))
    message = "" if gpus or lost else output.strip().partition("\n")[0][:200]
    return GpuReport(tuple(gpus), tuple(lost), message)


def _rows(output: str, width: int) -> list[list[str]]:
    """Return the lines with this number of values; other lines are messages. No value contains a
    comma."""
    lines = (line.split(",") for line in output.splitlines() if len(line) <= _MAX_LINE_CHARS)
    return [[value.strip() for value in row] for row in lines if len(row) == width]


def _gpu(values: Mapping[str, str], pending: bool, failed: bool) -> Gpu:
    busy, ecc = values.get(_BUSY, ""), values.get(_ECC, "")
    slowed = {_HOT: "it is too hot", _BRAKED: "its power is braked"}
    return Gpu(
        index=values[_INDEX],
        bus=values.get(_BUS, "") if not values.get(_BUS, "").startswith("[") else "",
        busy=min(int(busy), 100) / 100 if _COUNT.fullmatch(busy) else None,
        ecc=int(ecc) if _COUNT.fullmatch(ecc) else None,
        remap_failed=failed,
        remap_pending=pending,
        slowed=next(
            (reason for name, reason in slowed.items() if values.get(name) == "Active"), ""
        ),
    )


@dataclass
class GpuMonitor:
    """Derives findings from successive reports, each reported once. Sans I/O."""

    _count: int | None = None
    _ecc: dict[str, int] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)

    def forget_errors(self) -> None:
        """Forget the memory errors so far, which were handled, perhaps because of a kernel
        message."""
        self._ecc.clear()

    def judge(self, report: GpuReport) -> list[Finding]:
        """Return the findings, the worst first."""
        findings = [Finding(Grade.FATAL, text) for text in report.lost]
        findings += self._missing(report)
        for gpu in report.gpus:
            previous = self._ecc.get(gpu.name)
            if gpu.ecc is not None:
                self._ecc[gpu.name] = gpu.ecc
            if gpu.remap_failed:
                text = f"{gpu.name} has no spare rows left for its broken memory"
                findings.append(Finding(Grade.FATAL, text))
            elif previous is not None and gpu.ecc is not None and gpu.ecc > previous:
                text = f"{gpu.name} counts {gpu.ecc - previous} new memory errors beyond correction"
                findings.append(Finding(Grade.CONTAINED, text))
            findings += self._noteworthy(gpu)
        order = list(Grade)
        return sorted(findings, key=lambda finding: order.index(finding.grade))

    def _missing(self, report: GpuReport) -> list[Finding]:
        have = len(report.gpus)
        if self._count is None:
            self._count = have or None
            return []
        if have >= self._count or report.lost:
            self._reported.discard("none")
            return []
        if have:
            return [Finding(Grade.FATAL, f"nvidia-smi shows {have} of {self._count} GPUs")]
        # Perhaps only nvidia-smi is broken, by a driver upgrade while programs run.
        if "none" in self._reported:
            return []
        self._reported.add("none")
        return [Finding(Grade.NOTED, f"nvidia-smi no longer shows a GPU: {report.message}")]

    def _noteworthy(self, gpu: Gpu) -> list[Finding]:
        conditions = {
            "pending": "has broken memory rows that only a reset replaces" * gpu.remap_pending,
            "slowed": f"is held back by its hardware: {gpu.slowed}" if gpu.slowed else "",
        }
        findings = []
        for condition, text in conditions.items():
            key = f"{gpu.name} {condition}"
            if text and key not in self._reported:
                findings.append(Finding(Grade.NOTED, f"{gpu.name} {text}"))
            (self._reported.add if text else self._reported.discard)(key)
        return findings


def query(program: str, fields: Sequence[str]) -> tuple[GpuReport, Sequence[str]]:
    """Return the report and the fields that the driver knows.

    Raises OSError if there is no nvidia-smi, and TimeoutError if it does not answer.
    """
    output_format = "--format=csv,noheader,nounits"
    while True:
        output = _run([program, f"--query-gpu={','.join(fields)}", output_format])
        unknown = set(_NO_FIELD.findall(output)) & set(fields)
        if not unknown:
            rows = _run([program, f"--query-remapped-rows={','.join(ROW_FIELDS)}", output_format])
            return parse(output, fields, rows), fields
        fields = [name for name in fields if name not in unknown]


def _run(argv: Sequence[str]) -> str:
    """Run a command. If it hangs in the kernel, where no kill ends it, a thread reaps it later."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        threading.Thread(target=process.communicate, daemon=True).start()
        raise TimeoutError(f"nvidia-smi does not answer within {TIMEOUT_S:g} s") from None


def watch_gpus(
    program: str,
    ended: threading.Event,
    on_report: Callable[[GpuReport], bool],
    on_timeout: Callable[[str], None],
    every_s: float = EVERY_S,
) -> None:
    """Query until `ended` is set; the body of a thread. Ends if there is no nvidia-smi.

    `on_report` returns whether to query again soon. `on_timeout` is called once per series of
    timeouts.
    """
    fields: Sequence[str] = FIELDS
    timeout_reported = False
    confirm = False
    while not ended.is_set():
        try:
            report, fields = query(program, fields)
            timeout_reported = False
            confirm = on_report(report)
        except TimeoutError as error:
            if not timeout_reported:
                on_timeout(str(error))
            timeout_reported = True
        except OSError:
            return
        ended.wait(min(CONFIRM_S, every_s) if confirm else every_s)
