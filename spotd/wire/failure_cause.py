"""Find the cause of a failure in the last output of a program.

Pure, standard library only: the machine's agent applies it to the end of a log, the control box to
the shorter tail that older agents send.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TAIL_LINES = 20
MAX_CAUSE = 300  # characters
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

# Prefixes by which launchers mark the rank of a line: torch, torchrun --tee, Ray, DeepSpeed/pdsh.
_RANK_PREFIX = re.compile(
    r"(?:\[rank(?P<torch>\d+)\]:(?! ?\[[EWIF])|\[default(?P<tee>\d+)\]:|"
    r"\((?:[\w.:-]+ )?(?:pid|rank)=(?P<ray>\d+)(?:, ip=[^)]*)?\)) ?"
)
_GROUP_MARGIN = re.compile(r"\s+[|+] ?")  # of an exception group's tracebacks
_TRACEBACK = re.compile(r"(?:Original |Exception Group )?Traceback \(most recent call last\):")
_SECOND_HAND = re.compile(
    r"Exception ignored|Error in atexit|Exception in thread|Exception in atexit|"
    r"--- Logging error ---|Error in sys\.excepthook"
)
# A launcher's exception about a program that has failed already.
_LAUNCHERS = re.compile(
    r"(?:[\w.]+\.)?(?:ChildFailedError|CalledProcessError|ProcessExitedException|SignalException)\b"
)
# Of ranks that fail because another one is gone.
_FOLLOWERS = re.compile(
    r"DistBackendError|DistNetworkError|NCCL|Connection (?:reset|closed|refused)|Broken pipe|"
    r"connectFullMesh|Gloo|remote process (?:exited|closed)|KeyboardInterrupt|SignalException"
)
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):")
_REPORT_RANK = re.compile(r"rank\s+: (\d+)")
_REPORTED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b(?:: |$)")
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
_SCRIPT_LINE = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)')

# Lines that name the end of a program themselves. The last one in the output counts.
_FATAL = re.compile(
    r"Watchdog caught collective operation timeout|NCCL (?:WARN|error)|ncclSystemError"
    r"|^\s*what\(\):|Fatal Python error:|^panic: |panicked at|^fatal: |\bCUDA error: "
    r"|\bcommand not found$|: not found$|: syntax error\b|: unbound variable$"
    r"|: (?:Permission denied|cannot execute|No such file or directory|Is a directory)$"
    r"|: bad interpreter: "
    r"|^(?:\S+: )?(?:line \d+: +\d+ )?(?:Killed|Segmentation fault|Bus error|Aborted"
    r"|Illegal instruction|Floating point exception|Trace/breakpoint trap)\b"
    r"|^Caught signal \d+|oom-kill|Out of memory: Killed process|No space left on device"
    r"|^Exception in thread \"main\" |^Error response from daemon: |^docker: Error"
    r"|^curl: \(\d+\) |^E: |^ERROR: (?:Could not|No matching|Failed|Cannot|LoadError)"
    r"|^CMake Error|^(?:[A-Z]\w*)(?:NotFound|NotFoundError|Failure): "
)
# Lines that speak of an error, of programs that go on after some of them.
_ERROR = re.compile(
    r"\berror(?:\[\w+\])?: |^Error(?: in [^:]*)?: |^ERROR[: ]|\[(?:ERROR|FATAL|CRITICAL)\]"
    r"|\b(?:FATAL|CRITICAL)\b|^(?:[A-Z]\w*)?(?:Error|Exception): |^npm (?:ERR!|error) \S"
    r"|^[EF]\d{4} ",
    re.ASCII,
)
# As a shell reports a signal, of which the exit code's meaning says more.
_BARE_SIGNAL = re.compile(
    r"(?:\S+: )?(?:line \d+: +\d+ )?(?:Killed|Terminated|Aborted|Segmentation fault|Bus error)\b"
)

_SIGNALS = {
    1: "SIGHUP: hung up",
    2: "SIGINT: interrupted",
    4: "SIGILL: an instruction that this processor does not have",
    6: "SIGABRT: it aborted",
    7: "SIGBUS: bus error, often a full /dev/shm",
    8: "SIGFPE: arithmetic error",
    9: "SIGKILL: killed, as the kernel does when memory runs out",
    11: "SIGSEGV: segmentation fault",
    13: "SIGPIPE: it wrote to a closed pipe",
    15: "SIGTERM: told to end",
    24: "SIGXCPU: out of CPU time",
    25: "SIGXFSZ: file too large",
}


@dataclass(frozen=True)
class Cause:
    """One line that says why a program failed.

    `recognised` is False where nothing in the output is known as a cause: then `line` is the last
    line that is not empty, or "" if there was no output.
    """

    line: str
    recognised: bool


@dataclass(frozen=True)
class _Raised:
    """An exception that a traceback ends with."""

    at: int  # the number of its line
    line: str
    rank: int | None
    second_hand: bool  # it did not end the program: raised in a thread, a finaliser, a log call


def exit_meaning(code: int) -> str:
    """Return the meaning of a shell's exit code; "" where it has none."""
    if code == 126:
        return "the command cannot be executed"
    if code == 127:
        return "command not found"
    number = -code if code < 0 else code - 128
    return _SIGNALS.get(number, "")


def find_cause(text: str, code: int | None = None) -> Cause:
    """Return the cause in the output of a program that ended with `code`."""
    lines = tidy_lines(text)
    line = _recognised(lines)
    meaning = exit_meaning(code) if code is not None else ""
    if meaning and code not in (126, 127) and (not line or _BARE_SIGNAL.match(line)):
        return Cause(meaning, recognised=True)
    if not line:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if not last and meaning:
            return Cause(meaning, recognised=True)
        return Cause(_UNPRINTABLE.sub("", last)[:MAX_CAUSE], recognised=False)
    return Cause(_UNPRINTABLE.sub("", line).strip()[:MAX_CAUSE], recognised=True)


def last_lines(text: str, limit: int = 2048) -> str:
    """Return the last lines as a terminal shows them, in at most `limit` bytes.

    At least TAIL_LINES of them: where they are too long for that, each is cut.
    """
    lines = [line for line in tidy_lines(text) if line.strip()]
    if len("\n".join(lines[-TAIL_LINES:]).encode()) >= limit:
        most = limit // TAIL_LINES - 1
        cut = (line.encode()[:most].decode("utf-8", "ignore") for line in lines[-TAIL_LINES:])
        lines = list(cut)
    room, kept = limit - 1, list[str]()
    for line in reversed(lines):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    tail = "\n".join(reversed(kept))
    return f"{tail}\n" if tail and text.endswith("\n") else tail


def tidy_lines(text: str) -> list[str]:
    """Return lines as a terminal shows them: without escapes, carriage returns carried out."""
    return [_shown(line) for line in text.replace("\r\n", "\n").split("\n")]


def _shown(line: str) -> str:
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    if "\r" in line:
        # The last state of a progress bar; what it covers of an earlier, longer one is left out.
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return line.rstrip()


def _recognised(lines: Sequence[str]) -> str:
    if report := _launcher_report(lines):
        return report
    raised = list(_exceptions(lines))
    told = {one.at for one in raised}
    fatal = [n for n, line in enumerate(lines) if n not in told and _is_fatal(line)]
    best = _ending_exception(raised)
    if best is not None and not any(number > best.at for number in fatal):
        return best.line
    if fatal:
        return _unmarked(lines[fatal[-1]])[1]
    if best is not None:
        return best.line
    errors = [number for number, line in enumerate(lines) if _ERROR.search(_unmarked(line)[1])]
    return _unmarked(lines[errors[-1]])[1] if errors else ""


def _is_fatal(line: str) -> bool:
    return bool(_FATAL.search(_unmarked(line)[1]))


def _unmarked(line: str) -> tuple[int | None, str]:
    """Return the rank that a launcher marked the line with, and the line without the mark."""
    match = _RANK_PREFIX.match(line)
    if match is None:
        return None, line
    rank = match["torch"] or match["tee"] or match["ray"]
    return int(rank), line[match.end() :]


def _exceptions(lines: Sequence[str]) -> Iterator[_Raised]:
    """Yield the exceptions that the tracebacks end with, in the order of their output."""
    inside: dict[int | None, int] = {}  # rank -> where its traceback began
    before: dict[int | None, str] = {}  # rank -> its line before that
    script = ""
    for number, marked in enumerate(lines):
        rank, line = _unmarked(marked)
        margin = _GROUP_MARGIN.match(line)
        line = line[margin.end() :] if margin else line
        if _TRACEBACK.search(line):
            inside[rank] = number
        elif rank in inside and line[:1] not in ("", " ", "\t"):
            del inside[rank]
            text = _with_message(line, lines, number)
            yield _Raised(number, text, rank, bool(_SECOND_HAND.match(before.get(rank, ""))))
        elif _SYNTAX.match(line):
            yield _Raised(number, f"{line}{script}", rank, second_hand=False)
        if match := _SCRIPT_LINE.match(line):
            script = f" ({match['file']}, line {match['line']})"
        if rank not in inside:
            before[rank] = line


def _with_message(line: str, lines: Sequence[str], at: int) -> str:
    """Return the exception's line, with the next one where it has no text of its own."""
    name, _, message = line.partition(":")
    if message.strip() or ":" not in line:
        return line
    following = (_unmarked(text)[1].strip() for text in lines[at + 1 : at + 4])
    return f"{name}: {next((text for text in following if text.strip('- ')), '')}"


def _ending_exception(raised: Sequence[_Raised]) -> _Raised | None:
    """Return the exception that ended the program.

    The last one of a single process. Of several ranks the first that does not only say that another
    rank is gone.
    """
    first_hand = [one for one in raised if not one.second_hand] or list(raised)
    own = [one for one in first_hand if not _LAUNCHERS.match(one.line)] or first_hand
    ranks = {one.rank for one in own if one.rank is not None}
    if len(ranks) < 2:
        return own[-1] if own else None
    roots = [one for one in own if not _FOLLOWERS.search(one.line)] or own
    # Within that rank, the last of its chain.
    return [one for one in roots if one.rank == roots[0].rank][-1]


def _launcher_report(lines: Sequence[str]) -> str:
    """Return the cause that torchrun's report points to; "" without a report."""
    starts = [number for number, line in enumerate(lines) if _ROOT_CAUSE.search(line)]
    if not starts:
        return ""
    block = [line.strip() for line in lines[starts[-1] + 1 : starts[-1] + 60]]
    end = next((number for number, line in enumerate(block) if line.startswith("====")), None)
    block = block[:end]
    rank = next((int(match[1]) for line in block if (match := _REPORT_RANK.match(line))), None)
    raised = [one for one in _exceptions(lines[: starts[-1]]) if not _LAUNCHERS.match(one.line)]
    mine = [one for one in raised if one.rank == rank] or [
        one for one in raised if one.rank is None
    ]
    if any("Traceback (most" in line for line in block):  # written by its @record
        named = [line for line in block if _REPORTED.match(line)]
        if named:
            return named[-1]
    received = next((line for line in block if "received by PID" in line), "")
    if received:
        fatal = [line for line in lines[: starts[-1]] if _is_fatal(line)]
        if "SIGABRT" in received and fatal:  # NCCL's watchdog aborts, having said why
            return _unmarked(fatal[0])[1]
        return f"rank {rank}: {received.partition(': ')[2]}"
    roots = [one for one in mine if not one.second_hand and not _FOLLOWERS.search(one.line)] or mine
    if roots and roots[0].rank is None:
        return roots[0].line  # of ranks that write together, the first
    return roots[-1].line if roots else ""
