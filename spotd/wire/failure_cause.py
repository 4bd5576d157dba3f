"""Find the cause of a failure in the last output of a program.

Pure, standard library only: the machine's agent applies it to the end of a log, the control box to
the shorter tail that older agents send.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

TAIL_LINES = 20
MAX_CAUSE = 300  # characters
_MAX_LINE = 4096  # characters of a line that are searched
# Lines of ordinary output after which a line is not the cause any more: an exception or a crash; a
# complaint, of which programs print many and go on; what cleans up after an exception.
_NEAR = 20
_CLOSE = 2
_CLEANUP = 5
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Control characters, and the marks that turn the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.ASCII)


# Prefixes by which launchers mark the rank of a line.
_RANK_PREFIX = re.compile(
    r"(?:\[rank(?P<torch>\d+)\]:(?! ?\[[EWIF])"  # torch; not the log lines of its C++ part
    r"|\[default(?P<tee>\d+)\]:"  # torchrun --tee
    r"|\((?:[\w.:-]+ )?(?:pid|rank)=(?P<ray>\d+)(?:, ip=[^)]*)?\)) ?"  # Ray, DeepSpeed
)
# Other prefixes (pdsh, srun -l, mpirun, compose, timestamps) are learned from the tracebacks.
_MAX_PREFIX = 80  # characters
_MAX_PREFIXES = 128
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_GROUP_MARGIN = re.compile(r"\s+[|+] ?")  # of an exception group's tracebacks
_TRACEBACK = re.compile(r"(?:Original |Exception Group )?Traceback \(most recent call last\):")
_FRAME = re.compile(r'\s|$|> File "')  # the last as loguru marks it
_CHAINED = re.compile(r"During handling of the above|The above exception was the direct cause")
_SECOND_HAND = _any_of(
    r"Exception ignored",  # in a finaliser
    r"Error in atexit|Exception in atexit",
    r"--- Logging error ---",
    r"Error in sys\.excepthook",
)
_IN_THREAD = re.compile(r"Exception in thread")
_SUB_EXCEPTIONS = re.compile(r"\(\d+ sub-exceptions?\)$")
_INVALID = re.compile(r"\b\d+ validation errors? for \S+$")  # of pydantic: field and reason follow
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
# Of a process that a launcher saw end by a signal: torchrun's report, DeepSpeed's log.
_SIGNALLED = re.compile(
    r"Signal (\d+) \(SIG\w+\) received by PID \d+|exits with return code = -(\d+)$"
)

# Lines by which a process says itself that it ends. The last one counts.
_CRASH = _any_of(
    r"Watchdog caught collective operation timeout",  # NCCL's, which aborts
    r"^terminate called|^\s*what\(\):",  # C++
    r"Assertion .{0,300} failed",  # assert() of C
    r"Check failed: ",  # glog, TensorFlow
    r"^(?:free|malloc|realloc|munmap_chunk)\(\): |^double free or corruption",  # glibc
    r"^\*\*\* stack smashing",
    r"Fatal Python error: (?!Aborted$)",
    r"^panic: ",  # Go
    r"panicked at",  # Rust
    r'^Exception in thread "main" ',  # Java
    r"\bCUDA error: ",
    r"^Caught signal \d+",  # UCX
    r"oom[-_]kill|Out of memory: Killed process",  # the kernel, Slurm
)
# As a shell, or Python, reports a signal, of which the exit code's meaning says more.
_BARE_SIGNAL = re.compile(
    r"^Fatal Python error: Aborted$|"
    r"^(?:\S+: )?(?:line \d+: +\d+ )?(?:Killed|Segmentation fault|Bus error|Aborted"
    r"|Illegal instruction|Floating point exception|Trace/breakpoint trap)"
    r"(?: \(core dumped\))?(?:\s{2,}.*)?$"
)
# Lines of a command that fails; the program that runs it may go on.
_COMPLAINT = _any_of(
    r"NCCL (?:WARN|error)|ncclSystemError",
    r"\bcommand not found$|: not found$|: bad interpreter: ",  # shells
    r": syntax error\b|: unbound variable$",
    r": (?:Permission denied|cannot execute|No such file or directory|Is a directory)$",
    r"No space left on device",
    r"^fatal: ",  # git
    r"^Error response from daemon: |^docker: Error",
    r"^curl: \(\d+\) ",
    r"^E: [A-Z]",  # apt
    r"^ERROR: (?:Could not|No matching|Failed|Cannot|LoadError)",  # pip, Julia
    r"^CMake Error",
    r"^[A-Z]\w*(?:NotFound|NotFoundError|Failure): ",
)
# Lines that speak of an error in general; they count where nothing above is found.
_ERROR = _any_of(
    r"\berror(?:\[\w+\])?: |^Error: |^ERROR[: ]",
    r"^Error in [^:]*: |^Error in .* :(?: |$)",  # R
    r"\[(?:ERROR|FATAL|CRITICAL)\]|(?:^|[\d\]|-] )(?:ERROR|FATAL|CRITICAL)\b",  # loggers
    r"^(?:[A-Z]\w*)?(?:Error|Exception): ",
    r"^(?:[a-z_]\w*\.)+[A-Z]\w*(?:Error|Exception)(?:: |$)",  # Java
    r"^npm (?:ERR!|error) \S",
    r"^[EF]\d{4} ",  # glog
)
# Lines that say only that something before them failed.
_NO_REASON = _any_of(
    r"^make(?:\[\d+\])?: \*\*\* .*Error \d+$",
    r"^exit status \d+$",  # go run
    r"^Execution halted$",  # R
)
# Lines that programs, runtimes and launchers write after the cause: not ordinary output.
_AFTERMATH = _any_of(
    r"\s",  # frames of a stack, more of a message
    r"[-=~#*+|}\])]+$",
    r"frame #\d+|goroutine \d+ |created by |[\w./*]+\(|Node\.js v|note: ",  # of a crash
    r"Calls: |In addition: |Execution halted",  # R
    r"wandb: |\[notice\]",
    r"\[rank\d+\]:|[EWIF]\d{4} |srun: |slurmstepd: |mpirun|make(?:\[\d+\])?: \*\*\*",  # launchers
    r"\[.{0,40}\] \[\w+\] \[launch\.py",  # DeepSpeed
    _TRACEBACK.pattern,
)

_SUDDEN = (137, 139, -9, -11)  # exit codes of a process that could not say a word
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
    15: "SIGTERM: asked to end",
    24: "SIGXCPU: out of CPU time",
    25: "SIGXFSZ: file too large",
}


@dataclass(frozen=True)
class Cause:
    """One line that says why a program failed.

    `recognised` is False where nothing in the output is known as a cause: then `line` is the last
    line that is not empty nor about a finaliser or log call, or "" if there was no output.
    """

    line: str
    recognised: bool


class _Line(NamedTuple):
    """A line without the prefix that a launcher marks its rank with."""

    rank: int | str | None
    text: str


_EMPTY = _Line(None, "")


@dataclass(frozen=True)
class _Raised:
    """An exception that a traceback ends with."""

    at: int  # the number of its line
    begins: int  # and of its traceback's first line
    line: str
    rank: int | str | None
    second_hand: bool = False  # it did not end the program: raised in a finaliser, a log call
    in_thread: bool = False  # it may not have ended it


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
    shown = tidy_lines(text)
    lines = _without_prefixes(shown)
    raised = list(_exceptions(lines))
    meaning = exit_meaning(code) if code is not None else ""
    line = _recognised(lines, raised, code)
    if meaning and code not in (126, 127) and (not line or _BARE_SIGNAL.match(line)):
        return Cause(meaning, recognised=True)
    if line:
        return Cause(_printable(line), recognised=True)
    last = _last_line(shown, raised)
    if not last and meaning:
        return Cause(meaning, recognised=True)
    return Cause(_printable(last), recognised=False)


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


def _printable(line: str) -> str:
    return _UNPRINTABLE.sub("", line.replace("\t", " ")).strip()[:MAX_CAUSE]


def _last_line(shown: Sequence[str], raised: Sequence[_Raised]) -> str:
    """Return the last line that says something of the program's end."""
    filled = {number: line.strip() for number, line in enumerate(shown) if line.strip()}
    aside = {n for one in raised if one.second_hand for n in range(one.begins - 1, one.at + 1)}
    own = [line for n, line in filled.items() if n not in aside and not _NO_REASON.search(line)]
    return (own or list(filled.values()) or [""])[-1]


def _shown(line: str) -> str:
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    if "\r" in line:
        # The last state of a progress bar; what it covers of an earlier, longer one is left out.
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return line.rstrip()


def _without_prefixes(shown: Sequence[str]) -> list[_Line]:
    """Return the lines with what marks their ranks taken off."""
    prefixes = _learned_prefixes(shown)
    alternatives = "|".join(prefixes)
    learned = re.compile(f"(?:{alternatives})") if prefixes else None
    lines = []
    for text in shown:
        line = _Line(None, text[:_MAX_LINE]) if text else _EMPTY
        if learned and (match := learned.match(line.text)):
            clock = _CLOCK.search(match[0])
            line = _Line(None if clock else match[0].strip(), line.text[match.end() :])
        if match := _RANK_PREFIX.match(line.text):
            rank = int(match["torch"] or match["tee"] or match["ray"])
            line = _Line(rank, line.text[match.end() :])
        lines.append(line)
    return lines


def _learned_prefixes(shown: Sequence[str]) -> list[str]:
    """Return patterns of what stands before a traceback's first line and its frames."""
    tried: dict[str, bool] = {}
    for number, line in enumerate(shown):
        if "Traceback" not in line or not (match := _TRACEBACK.search(line, 0, _MAX_PREFIX + 60)):
            continue
        before = line[: match.start()]
        if mark := _RANK_PREFIX.search(before):
            before = before[: mark.start()]
        if not before or _GROUP_MARGIN.match(before):
            continue
        prefix = re.escape(before)
        if _CLOCK.search(before):
            prefix = re.sub(r"\d+", r"\\d+", prefix)
        if prefix not in tried and len(tried) < _MAX_PREFIXES:
            frame = re.compile(prefix + r'.{0,20}  File "')
            tried[prefix] = any(map(frame.match, shown[number + 1 : number + 9]))
    return sorted((prefix for prefix, found in tried.items() if found), key=len, reverse=True)


def _recognised(lines: Sequence[_Line], raised: Sequence[_Raised], code: int | None) -> str:
    if report := _launcher_report(lines, raised):
        return report
    after = _ordinary_after(lines, raised)
    near = _near([one for one in raised if not one.second_hand and not one.in_thread], after)
    told = {one.at for one in raised}
    others = [n for n, line in enumerate(lines) if line.text and n not in told]
    last = [n for n in others if after[n] <= _CLOSE and code not in _SUDDEN]
    crash = _crash_at(lines, [n for n in others if after[n] <= _NEAR])
    complaint = _last_match(_COMPLAINT, lines, last)
    fatal = crash if complaint is None else complaint
    if crash is not None and complaint is not None and code not in (126, 127):
        fatal = complaint if after[crash] - after[complaint] > _CLEANUP else crash
    best = _ending_exception(near)
    if best is not None and (fatal is None or _outweighs(near, fatal, after, code)):
        return best.line
    if fatal is not None:
        return _whole(lines, fatal)
    error = _last_match(_ERROR, lines, last)
    return "" if error is None else _explained(_whole(lines, error))


def _outweighs(near: Sequence[_Raised], fatal: int, after: Sequence[int], code: int | None) -> bool:
    """Tell whether exceptions are the cause rather than the line numbered `fatal`.

    A line shortly after an exception comes of a clean-up, unless the code says that it is the end.
    """
    margin = 0 if code in (126, 127) else _CLEANUP
    return any(one.at > fatal or after[one.at] - after[fatal] < margin for one in near)


def _crash_at(lines: Sequence[_Line], numbers: Sequence[int]) -> int | None:
    """Return the number of the line in which a process names its own end."""
    crash = _last_match(_CRASH, lines, numbers)
    return _last_match(_BARE_SIGNAL, lines, numbers) if crash is None else crash


def _last_match(
    pattern: re.Pattern[str], lines: Sequence[_Line], numbers: Sequence[int]
) -> int | None:
    return next((n for n in reversed(numbers) if pattern.search(lines[n].text)), None)


def _ordinary_after(lines: Sequence[_Line], raised: Sequence[_Raised]) -> list[int]:
    """Return for each line the number of lines of ordinary output after it."""
    told = {one.at for one in raised}
    counts, count = [0] * len(lines), 0
    for number in range(len(lines) - 1, -1, -1):
        counts[number] = count
        text = lines[number].text
        count += bool(text) and number not in told and not _AFTERMATH.match(text)
    return counts


def _near(raised: Sequence[_Raised], after: Sequence[int]) -> list[_Raised]:
    """Return the exceptions near the end, or near one that is: ranks fail one after the other."""
    near, bound = list[_Raised](), 0
    for one in reversed(raised):
        if after[one.at] - bound > _NEAR:
            break
        near.append(one)
        bound = after[one.at]
    return near[::-1]


def _exceptions(lines: Sequence[_Line]) -> Iterator[_Raised]:
    """Yield the exceptions that the tracebacks end with, in the order of their output."""
    inside: dict[int | str | None, int] = {}  # rank -> where its traceback began
    before: dict[int | str | None, str] = {}  # rank -> its line before that
    last: dict[int | str | None, _Raised] = {}
    first: dict[int | str | None, _Raised | None] = {}  # rank -> the one that the next follows from
    script = ""
    if _begins_inside(lines):
        inside[lines[0].rank] = 0
    for number, marked in enumerate(lines):
        if not marked.text:
            continue
        rank, line = marked.rank, _inner(marked.text)
        if _TRACEBACK.search(line):
            inside[rank] = number
        elif rank in inside and not _FRAME.match(line):
            text, began = _whole(lines, number), inside.pop(rank)
            last[rank] = _raised(
                number, began, text, rank, before.pop(rank, ""), first.pop(rank, None)
            )
            yield last[rank]
        elif _SYNTAX.match(line):
            yield _Raised(number, number, f"{line}{script}", rank)
        elif _CHAINED.match(line):
            first[rank] = last.get(rank)
        elif line and rank not in inside:
            before[rank] = line
        if match := _SCRIPT_LINE.match(line):
            script = f" ({match['file']}, line {match['line']})"


def _begins_inside(lines: Sequence[_Line]) -> bool:
    """Tell whether the output begins within a traceback, as the end of a longer one may."""
    if not lines[0].text[:1].isspace():
        return False
    end = next((line.text for line in lines if not _FRAME.match(line.text)), "")
    return bool(_REPORTED.match(end)) and not _SYNTAX.match(end)


def _raised(
    at: int, began: int, line: str, rank: int | str | None, before: str, first: _Raised | None
) -> _Raised:
    """Return the exception of a traceback; one of a chain ends what its first one ends."""
    if first:
        return replace(first, at=at, line=line)
    second_hand, in_thread = bool(_SECOND_HAND.match(before)), bool(_IN_THREAD.match(before))
    return _Raised(at, began, line, rank, second_hand=second_hand, in_thread=in_thread)


def _inner(line: str) -> str:
    """Return a line of an exception group without its margin."""
    margin = _GROUP_MARGIN.match(line)
    return line[margin.end() :] if margin else line


def _whole(lines: Sequence[_Line], at: int) -> str:
    """Return the line, with the next ones where it breaks off."""
    head = _inner(lines[at].text).strip()
    texts = (_inner(line.text) for line in lines[at + 1 : at + 9] if line.rank == lines[at].rank)
    following = [text.strip() for text in texts if text.strip("-+=1 ")]
    grouped = bool(_SUB_EXCEPTIONS.search(head))
    parts = 2 if _INVALID.search(head) else int(head.endswith(":") or grouped)
    if following and following[0].startswith("Caused by: "):
        parts = 1
    for text in following[:parts]:
        if _TRACEBACK.search(text):
            break
        head = f"{head} {text}" if head.endswith(":") else f"{head}: {text}"
    return head


def _explained(line: str) -> str:
    """Return the line, with the meaning of the signal that it speaks of."""
    match = _SIGNALLED.search(line)
    meaning = exit_meaning(-int(match[1] or match[2])) if match else ""
    return f"{match[0]}: {meaning.partition(': ')[2]}" if match and meaning else line


def _ending_exception(raised: Sequence[_Raised]) -> _Raised | None:
    """Return the exception that ended the program.

    The last one of a single process. Of several ranks the first that does not only say that another
    rank is gone.
    """
    own = [one for one in raised if not _LAUNCHERS.match(one.line)] or raised
    ranks = {one.rank for one in own if one.rank is not None}
    if len(ranks) < 2:
        return own[-1] if own else None
    roots = [one for one in own if not _FOLLOWERS.search(one.line)] or own
    # Within that rank, the last of its chain.
    return [one for one in roots if one.rank == roots[0].rank][-1]


def _launcher_report(lines: Sequence[_Line], raised: Sequence[_Raised]) -> str:
    """Return the cause that torchrun's report points to; "" without a report."""
    starts = [number for number, line in enumerate(lines) if _ROOT_CAUSE.search(line.text)]
    if not starts:
        return ""
    block = [line.text.strip() for line in lines[starts[-1] + 1 : starts[-1] + 60]]
    end = next((number for number, line in enumerate(block) if line.startswith("====")), None)
    block = block[:end]
    rank = next((int(match[1]) for line in block if (match := _REPORT_RANK.match(line))), None)
    if any("Traceback (most" in line for line in block):  # written by its @record
        named = [line for line in block if _REPORTED.match(line)]
        if named:
            return named[-1]
    raised = [one for one in raised if one.at < starts[-1]]
    lines = lines[: starts[-1]]
    after = _ordinary_after(lines, raised)
    received = next((line for line in block if "received by PID" in line), "")
    if received:
        near = [n for n, line in enumerate(lines) if line.text and after[n] <= _NEAR]
        crash = [n for n in near if _CRASH.search(lines[n].text)]
        crash = [n for n in crash if not lines[n].text.startswith("terminate called")] or crash
        if "SIGABRT" in received and crash:  # NCCL's watchdog aborts, having said why
            return _whole(lines, crash[0])
        return f"rank {rank}: {_explained(received.partition(': ')[2])}"
    return _of_rank(_near(raised, after), rank)


def _of_rank(raised: Sequence[_Raised], rank: int | None) -> str:
    """Return the exception that ended the rank, or one that no rank is known of."""
    own = [one for one in raised if not _LAUNCHERS.match(one.line) and not one.second_hand]
    mine = [one for one in own if one.rank == rank] or [one for one in own if one.rank is None]
    roots = [one for one in mine if not one.in_thread and not _FOLLOWERS.search(one.line)] or mine
    if roots and roots[0].rank is None:
        return roots[0].line  # of ranks that write together, the first
    return roots[-1].line if roots else ""
