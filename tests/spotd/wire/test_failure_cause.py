"""The cause in the last output of programs: log ends as they are written, and what is found."""

from __future__ import annotations

import pytest

from spotd.wire.failure_cause import MAX_CAUSE, TAIL_LINES, exit_meaning, find_cause, last_lines

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
REPORT = """\
E1128 11:02:11.120000 4101 torch/distributed/elastic/multiprocessing/api.py:874] failed (code 1)
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-28_11:02:11
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4110)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_11:02:09
  host      : gpu-1
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 4111)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""
ENABLE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.15 GiB of which 1.1 GiB is free."
)
WATCHDOG = (
    "[rank3]:[E1128 11:30:00 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 "
    "milliseconds before timing out."
)
RESET = "torch.distributed.DistBackendError: NCCL error: remote process exited"


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


# name: (log end, exit code, cause)
ENDS: dict[str, tuple[str, int | None, str]] = {
    "an exception": (f"step 3\n{TRACE}ValueError: bad batch\n", 1, "ValueError: bad batch"),
    "out of GPU memory": (f"{TRACE}{OOM}\n", 1, OOM),
    "older out of GPU memory": (
        (
            f"{TRACE}RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n"
            "wandb: You can sync this run to the cloud by running: wandb sync wandb/run-1\n"
        ),
        1,
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB",
    ),
    "a missing module": (
        f"{TRACE}ModuleNotFoundError: No module named 'flash_attn'\n",
        1,
        "ModuleNotFoundError: No module named 'flash_attn'",
    ),
    "a chain: while it was handled": (
        (
            f"{TRACE}KeyError: 'loss'\n\nDuring handling of the above exception, another exception "
            f"occurred:\n\n{TRACE}RuntimeError: no metric\n"
        ),
        1,
        "RuntimeError: no metric",
    ),
    "a chain: direct cause": (
        (
            f"{TRACE}OSError: [Errno 28] No space left on device\n\nThe above exception was the "
            f"direct cause of the following exception:\n\n{TRACE}SafetensorError: I/O error\n"
        ),
        1,
        "SafetensorError: I/O error",
    ),
    "a worker of a DataLoader": (
        (
            f"{TRACE}ValueError: Caught ValueError in DataLoader worker process 2.\n"
            f'Original {TRACE}  File "d.py", line 4, in __getitem__\nValueError: empty sample 7\n'
        ),
        1,
        "ValueError: empty sample 7",
    ),
    "a message in many lines": (
        (
            f"{TRACE}RuntimeError: CUDA error: an illegal memory access was encountered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call.\n"
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        ),
        1,
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ),
    "a message that begins on the next line": (
        (
            f"{TRACE}torch.multiprocessing.spawn.ProcessRaisedException:\n\n"
            "Some weights are shared: lm_head\n"
        ),
        1,
        "torch.multiprocessing.spawn.ProcessRaisedException: Some weights are shared: lm_head",
    ),
    "an exception without a message": (f"{TRACE}AssertionError\n", 1, "AssertionError"),
    "an exception group": (
        (
            "  + Exception Group Traceback (most recent call last):\n"
            '  |   File "a.py", line 3, in f\n  | ExceptionGroup: unhandled (1 sub-exception)\n'
            "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
            '    |   File "a.py", line 1, in f\n    | TimeoutError: no shard\n    +------\n'
        ),
        1,
        "TimeoutError: no shard",
    ),
    "a finaliser after it": (
        (
            f"{TRACE}ValueError: bad lr\nException ignored in: <function Pool.__del__ at 0x7f>\n"
            f"{TRACE}ResourceWarning: unclosed pool\n"
        ),
        1,
        "ValueError: bad lr",
    ),
    "a log call that failed before it": (
        (
            f"--- Logging error ---\n{TRACE}TypeError: not all arguments converted\n"
            f"{TRACE}ValueError: no data\n"
        ),
        1,
        "ValueError: no data",
    ),
    "a syntax error": (
        '  File "/w/train.py", line 12\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n',
        1,
        "SyntaxError: invalid syntax (/w/train.py, line 12)",
    ),
    "a progress bar between": (
        (
            f"\r 10%|#    | 1/10\r 20%|##   | 2/10\r 30%|###  | 3/10\n{TRACE}"
            "ZeroDivisionError: division by zero\n\r 30%|###  | 3/10 [00:03<00:07]\n"
        ),
        1,
        "ZeroDivisionError: division by zero",
    ),
    "torchrun, by the rank that failed first": (
        of_rank(0, f"{TRACE}{RESET}")
        + of_rank(1, f"{TRACE}RuntimeError: expected scalar type Half")
        + REPORT.format(code=1, traceback=ENABLE),
        1,
        "RuntimeError: expected scalar type Half",
    ),
    "torchrun, without ranks": (
        f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: '/data/c4'\n"
        f"{TRACE}{RESET}\n" + REPORT.format(code=1, traceback=ENABLE),
        1,
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/c4'",
    ),
    "torchrun, one killed": (
        "step 100\n" + REPORT.format(code=-9, traceback="Signal 9 (SIGKILL) received by PID 4111"),
        1,
        "rank 1: Signal 9 (SIGKILL) received by PID 4111",
    ),
    "torchrun, with @record": (
        REPORT.format(
            code=1,
            traceback='Traceback (most recent call last):\n    File "t.py", line 3, in main\n'
            "      step()\n  RuntimeError: loss is nan",
        ),
        1,
        "RuntimeError: loss is nan",
    ),
    "torchrun, aborted by NCCL's watchdog": (
        f"{WATCHDOG}\n"
        + REPORT.format(code=-6, traceback="Signal 6 (SIGABRT) received by PID 4111"),
        1,
        WATCHDOG,
    ),
    "NCCL's watchdog": (
        (
            f"step 8\n{WATCHDOG}\n[rank3]:[E1128 ProcessGroupNCCL.cpp:630] To avoid data "
            "inconsistency, we are taking the entire process down.\n"
        ),
        134,
        WATCHDOG,
    ),
    "ranks without a report": (
        of_rank(2, f"{TRACE}IndexError: list index out of range") + of_rank(0, f"{TRACE}{RESET}"),
        1,
        "IndexError: list index out of range",
    ),
    "accelerate launch": (
        (
            f"{TRACE}KeyError: 'labels'\n{TRACE}subprocess.CalledProcessError: Command '['python', "
            "'train.py']' returned non-zero exit status 1.\n"
        ),
        1,
        "KeyError: 'labels'",
    ),
    "Ray": (
        (
            "(train pid=812, ip=10.0.0.2) Traceback (most recent call last):\n"
            '(train pid=812, ip=10.0.0.2)   File "t.py", line 2, in f\n'
            "(train pid=812, ip=10.0.0.2) ValueError: no GPU\n"
        ),
        1,
        "ValueError: no GPU",
    ),
    "killed": (
        "step 9\nrun.sh: line 3:  4242 Killed                  python train.py\n",
        137,
        "SIGKILL: killed, as the kernel does when memory runs out",
    ),
    "killed without a word": (
        "step 9\n",
        137,
        "SIGKILL: killed, as the kernel does when memory runs out",
    ),
    "a segmentation fault": (
        "run.sh: line 2:   77 Segmentation fault      (core dumped) ./train\n",
        139,
        "SIGSEGV: segmentation fault",
    ),
    "a segmentation fault that Python reports": (
        "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n",
        139,
        "Fatal Python error: Segmentation fault",
    ),
    "an exception of C++": (
        (
            "terminate called after throwing an instance of 'c10::Error'\n"
            "  what():  CUDA error: device-side assert triggered\n"
        ),
        134,
        "what():  CUDA error: device-side assert triggered",
    ),
    "a command that is not there": (
        "run.sh: line 1: torchrunn: command not found\n",
        127,
        "run.sh: line 1: torchrunn: command not found",
    ),
    "a command that may not run": (
        "run.sh: line 1: ./train.sh: Permission denied\n",
        126,
        "run.sh: line 1: ./train.sh: Permission denied",
    ),
    "a shell's syntax error": (
        "run.sh: line 4: syntax error near unexpected token `done'\nrun.sh: line 4: `done'\n",
        2,
        "run.sh: line 4: syntax error near unexpected token `done'",
    ),
    "a variable that is not set": (
        "run.sh: line 2: DATA_DIR: unbound variable\n",
        1,
        "run.sh: line 2: DATA_DIR: unbound variable",
    ),
    "arguments": (
        (
            "usage: train.py [-h] --data DATA\n"
            "train.py: error: the following arguments are required: --data\n"
        ),
        2,
        "train.py: error: the following arguments are required: --data",
    ),
    "pip": (
        (
            "ERROR: Could not find a version that satisfies the requirement torch==9.9 (from "
            "versions: 2.8.0)\nERROR: No matching distribution found for torch==9.9\n\n"
            "[notice] A new release of pip is available: 24.0 -> 25.0\n"
        ),
        1,
        "ERROR: No matching distribution found for torch==9.9",
    ),
    "apt": (
        "Reading package lists...\nE: Unable to locate package libfo\n",
        100,
        "E: Unable to locate package libfo",
    ),
    "git": (
        "Cloning into 'x'...\nfatal: repository 'https://example.com/x/' not found\n",
        128,
        "fatal: repository 'https://example.com/x/' not found",
    ),
    "curl": (
        "curl: (6) Could not resolve host: data.example.com\n",
        6,
        "curl: (6) Could not resolve host: data.example.com",
    ),
    "a Go program": (
        "panic: runtime error: index out of range [3]\n\ngoroutine 1 [running]:\n",
        2,
        "panic: runtime error: index out of range [3]",
    ),
    "a Rust program": (
        "thread 'main' panicked at src/main.rs:4:5: no tokenizer\nnote: see RUST_BACKTRACE\n",
        101,
        "thread 'main' panicked at src/main.rs:4:5: no tokenizer",
    ),
    "Java": (
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat A.main\n',
        1,
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
    ),
    "a compiler": (
        (
            'k.cu(31): error: identifier "x" is undefined\n1 error detected in the compilation.\n'
            "make: *** [Makefile:3: all] Error 2\n"
        ),
        2,
        'k.cu(31): error: identifier "x" is undefined',
    ),
    "colours": (f"{TRACE}\x1b[1;31mValueError\x1b[0m: \x1b[35mred\x1b[0m\n", 1, "ValueError: red"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_cause_is_found_in_the_last_output(name: str) -> None:
    text, code, cause = ENDS[name]
    found = find_cause(text, code)
    assert (found.line, found.recognised) == (cause[:MAX_CAUSE], True)


@pytest.mark.parametrize(
    ("text", "code", "last"),
    [
        ("loading\nI give up\n\n  \n", 3, "I give up"),
        ("a\r 50%|##\r100%|####\n", 1, "100%|####"),
        ("", 1, ""),
        ("loss 0.1 (no errors: 0)\n", 1, "loss 0.1 (no errors: 0)"),
    ],
)
def test_where_nothing_is_recognised_the_last_line_is_called_that(
    text: str, code: int, last: str
) -> None:
    found = find_cause(text, code)
    assert (found.line, found.recognised) == (last, False)


def test_a_caught_exception_is_not_the_cause_of_a_later_end() -> None:
    text = f"{TRACE}OSError: try again\nrun.sh: line 9: evaluate: command not found\n"
    assert find_cause(text, 127).line == "run.sh: line 9: evaluate: command not found"


def test_the_tail_is_what_a_terminal_shows() -> None:
    bar = "".join(f"\r{n}%" for n in range(100))
    text = f"begin\n{bar}\n\x1b[31mred\x1b[0m\nend\n"
    assert last_lines(text) == "begin\n99%\nred\nend\n"
    many = last_lines("".join(f"line {n}\n" for n in range(1000)))
    assert len(many.encode()) <= 2048
    assert len(many.splitlines()) > TAIL_LINES
    assert many.endswith("line 999\n")
    long = last_lines("".join(f"{n} {'é' * 5000}\n" for n in range(100)))
    assert [line.split()[0] for line in long.splitlines()] == [str(n) for n in range(80, 100)]
    assert len(long.encode()) <= 2048
    assert last_lines("") == ""


@pytest.mark.parametrize(
    ("code", "word"),
    [(126, "cannot be executed"), (127, "command not found"), (137, "memory"), (-9, "memory"),
     (139, "segmentation"), (1, ""), (255, "")],
)  # fmt: skip
def test_exit_codes_have_meanings(code: int, word: str) -> None:
    assert word in exit_meaning(code)
    assert bool(exit_meaning(code)) == bool(word)


def test_long_output_is_linear() -> None:
    found = find_cause("x" * (1 << 16) + "\n" + "\r".join("y" * 10 for _ in range(5000)), 1)
    assert not found.recognised
    assert len(found.line) <= MAX_CAUSE
