"""What nvidia-smi says about the GPUs while training runs: errors of memory, and who is missing.

The kernel's messages tell of a failure at once (see kernel.py), where they can be read. This slow
look finds what they do not tell, and says how busy the GPUs are. A field that the installed driver
does not know is left out of the next question. What nvidia-smi prints of a GPU that it lost, which
it goes on listing: a line of its own, and values in brackets that say so.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.agent.watch.kernel import Grade

EVERY_S = 30.0
ANSWER_S = 60.0  # of eight GPUs without persistence mode it takes half of that
CONFIRM_S = 5.0  # until a second look at what would end training
_INDEX, _BUS, _BUSY = "index", "pci.bus_id", "utilization.gpu"
_ECC = "ecc.errors.uncorrected.volatile.total"
_HOT = "clocks_throttle_reasons.hw_thermal_slowdown"
_BRAKED = "clocks_throttle_reasons.hw_power_brake_slowdown"
FIELDS = (_INDEX, _BUS, _BUSY, _ECC, _HOT, _BRAKED)
# Asked for by themselves: they are no fields of a GPU. GPUs before Ampere have no rows to remap.
ROWS = ("gpu_bus_id", "remapped_rows.pending", "remapped_rows.failure")
_COUNT = re.compile(r"[0-9]{1,18}")
_MOST_CHARS = 1000  # of a line: eight values, in words at the longest
_YES = ("Yes", "1")
_LOST = ("[GPU is lost]", "[GPU requires reset]")
_NO_HANDLE = re.compile(r"Unable to determine the device handle for (GPU[^\n]{0,80})")
_NO_FIELD = re.compile(r'Field "([^"\n]{1,80})" is not a valid field')


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi shows it; None is what it does not say. `busy`: a fraction."""

    index: str
    bus: str
    busy: float | None = None
    ecc: int | None = None  # memory errors that could not be corrected, since the driver was loaded
    remap_failed: bool = False
    remap_pending: bool = False
    slowed: str = ""  # why its hardware holds it back

    @property
    def name(self) -> str:
        return f"GPU {self.index} ({self.bus})" if self.bus else f"GPU {self.index}"


@dataclass(frozen=True)
class Look:
    """One answer: the GPUs that work, what is said of those that do not, and its first line where
    it is about none of them."""

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()
    words: str = ""


@dataclass(frozen=True)
class Finding:
    """Something wrong; see kernel.Grade for how bad."""

    grade: Grade
    text: str


def parse(output: str, fields: Sequence[str] = FIELDS, rows: str = "") -> Look:
    """What `--query-gpu=FIELDS --format=csv,noheader,nounits` printed, both streams together, and
    the same of `--query-remapped-rows=ROWS`."""
    remapped = {
        bus: (pending in _YES, failed in _YES) for bus, pending, failed in _rows(rows, len(ROWS))
    }
    gpus, lost = [], [f"nvidia-smi has no handle for {name}" for name in _NO_HANDLE.findall(output)]
    for row in _rows(output, len(fields)):
        said = dict(zip(fields, row, strict=True))
        why = next((value for value in said.values() if value in _LOST), None)
        if why is not None:
            lost.append(f"GPU {said.get(_INDEX, '?')}: nvidia-smi says {why.strip('[]')!r}")
        elif _COUNT.fullmatch(said.get(_INDEX, "")):
            gpus.append(_gpu(said, *remapped.get(said.get(_BUS, ""), (False, False))))
    words = "" if gpus or lost else output.strip().partition("\n")[0][:200]
    return Look(tuple(gpus), tuple(lost), words)


def _rows(output: str, width: int) -> list[list[str]]:
    """Lines of so many values; the others are messages. No value has a comma in it."""
    lines = (line.split(",") for line in output.splitlines() if len(line) <= _MOST_CHARS)
    return [[value.strip() for value in row] for row in lines if len(row) == width]


def _gpu(said: Mapping[str, str], pending: bool, failed: bool) -> Gpu:
    busy, ecc = said.get(_BUSY, ""), said.get(_ECC, "")
    slowed = {_HOT: "it is too hot", _BRAKED: "its power is braked"}
    return Gpu(
        index=said[_INDEX],
        bus=said.get(_BUS, "") if not said.get(_BUS, "").startswith("[") else "",
        busy=min(int(busy), 100) / 100 if _COUNT.fullmatch(busy) else None,
        ecc=int(ecc) if _COUNT.fullmatch(ecc) else None,
        remap_failed=failed,
        remap_pending=pending,
        slowed=next((why for name, why in slowed.items() if said.get(name) == "Active"), ""),
    )


@dataclass
class Watch:
    """What follows from one look after the other. Sans I/O. What a finding was said of, it is not
    said of again."""

    _count: int | None = None
    _ecc: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def forget_errors(self) -> None:
        """Memory errors so far were dealt with: by the kernel's message of the same, perhaps."""
        self._ecc.clear()

    def judge(self, look: Look) -> list[Finding]:
        """The worst first."""
        found = [Finding(Grade.FATAL, text) for text in look.lost]
        found += self._missing(look)
        for gpu in look.gpus:
            before = self._ecc.get(gpu.name)
            if gpu.ecc is not None:
                self._ecc[gpu.name] = gpu.ecc
            if gpu.remap_failed:
                text = f"{gpu.name} has no spare rows left for its broken memory"
                found.append(Finding(Grade.FATAL, text))
            elif before is not None and gpu.ecc is not None and gpu.ecc > before:
                text = f"{gpu.name} counts {gpu.ecc - before} new memory errors beyond correction"
                found.append(Finding(Grade.CONTAINED, text))
            found += self._noted(gpu)
        order = list(Grade)
        return sorted(found, key=lambda finding: order.index(finding.grade))

    def _missing(self, look: Look) -> list[Finding]:
        have = len(look.gpus)
        if self._count is None:
            self._count = have or None
            return []
        if have >= self._count or look.lost:
            self._told.discard("none")
            return []
        if have:
            return [Finding(Grade.FATAL, f"nvidia-smi shows {have} of {self._count} GPUs")]
        # It may be nvidia-smi alone that is broken, by an upgrade of the driver under what runs.
        if "none" in self._told:
            return []
        self._told.add("none")
        return [Finding(Grade.NOTED, f"nvidia-smi shows no GPU any more: {look.words}")]

    def _noted(self, gpu: Gpu) -> list[Finding]:
        said = {
            "pending": "has broken memory rows that only a reset replaces" * gpu.remap_pending,
            "slowed": f"is held back by its hardware: {gpu.slowed}" if gpu.slowed else "",
        }
        found = []
        for what, text in said.items():
            key = f"{gpu.name} {what}"
            if text and key not in self._told:
                found.append(Finding(Grade.NOTED, f"{gpu.name} {text}"))
            (self._told.add if text else self._told.discard)(key)
        return found


def ask(program: str, fields: Sequence[str]) -> tuple[Look, Sequence[str]]:
    """What nvidia-smi shows for these fields, and for which of them. Raises OSError where there is
    none, and TimeoutError where it does not answer."""
    form = "--format=csv,noheader,nounits"
    while True:
        output = _run([program, f"--query-gpu={','.join(fields)}", form])
        unknown = set(_NO_FIELD.findall(output)) & set(fields)
        if not unknown:
            rows = _run([program, f"--query-remapped-rows={','.join(ROWS)}", form])
            return parse(output, fields, rows), fields
        fields = [name for name in fields if name not in unknown]


def _run(argv: Sequence[str]) -> str:
    """A thread of its own reaps one that waits in the kernel for ever, which no kill ends."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        return process.communicate(timeout=ANSWER_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        threading.Thread(target=process.communicate, daemon=True).start()
        raise TimeoutError(f"nvidia-smi does not answer within {ANSWER_S:g} s") from None


def watch(
    program: str,
    ended: threading.Event,
    hear: Callable[[Look], bool],
    silent: Callable[[str], None],
    every_s: float = EVERY_S,
) -> None:
    """Look until `ended`; the body of a thread. `hear` says whether to look again soon. Ends where
    there is no nvidia-smi; `silent` is told, once in a row, when it does not answer."""
    fields: Sequence[str] = FIELDS
    told = soon = False
    while not ended.is_set():
        try:
            look, fields = ask(program, fields)
            told = False
            soon = hear(look)
        except TimeoutError as error:
            if not told:
                silent(str(error))
            told = True
        except OSError:
            return
        ended.wait(min(CONFIRM_S, every_s) if soon else every_s)
