"""The cause in the last output of programs: log ends as they are written, and what is found."""

from __future__ import annotations

import pytest

from spotd.wire.failure_cause import MAX_CAUSE, TAIL_LINES, exit_meaning, find_cause, last_lines

CAUGHT = "Traceback (most recent call last):\n"
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


MEMORY = "killed, as the kernel does when memory runs out"
SIGKILL = f"SIGKILL: {MEMORY}"
ABORTED = "/tmp/a.sh: line 3: 10243 Aborted                 (core dumped) ./train\n"
STEPS = "".join(f"step {n} loss 0.1\n" for n in range(25))


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
    "a tail that begins in a traceback": (
        "    main()\nRuntimeError: no device\nSet A\nSet B\nSet C\nSet D\n",
        1,
        "RuntimeError: no device",
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
        f"rank 1: Signal 9 (SIGKILL) received by PID 4111: {MEMORY}",
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
    "C++, started by bash": (
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            f"  what():  cannot open weights.bin\n{ABORTED}"
        ),
        134,
        "what():  cannot open weights.bin",
    ),
    "C++ without what()": (
        f"terminate called after throwing an instance of 'int'\n{ABORTED}",
        134,
        "terminate called after throwing an instance of 'int'",
    ),
    "NCCL's watchdog, started by bash": (f"{WATCHDOG}\n{ABORTED}", 134, WATCHDOG),
    "the kernel's words before the shell's": (
        (
            "[  12.3] Out of memory: Killed process 4242 (python)\n"
            "a.sh: line 3:  4242 Killed                  python train.py\n"
        ),
        137,
        "[  12.3] Out of memory: Killed process 4242 (python)",
    ),
    "Python's words before the shell's": (
        (
            "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n"
            '  File "a.py", line 3 in f\n\nSegmentation fault (core dumped)\n'
        ),
        139,
        "Fatal Python error: Segmentation fault",
    ),
    "glibc": (f"free(): invalid pointer\n{ABORTED}", 134, "free(): invalid pointer"),
    "glibc, twice": (
        f"double free or corruption (out)\n{ABORTED}",
        134,
        "double free or corruption (out)",
    ),
    "glibc, of a stack": (
        f"*** stack smashing detected ***: terminated\n{ABORTED}",
        134,
        "*** stack smashing detected ***: terminated",
    ),
    "assert() of C": (
        f"train: main.cpp:7: int main(): Assertion `n > 0' failed.\n{ABORTED}",
        134,
        "train: main.cpp:7: int main(): Assertion `n > 0' failed.",
    ),
    "a check of TensorFlow": (
        f"2026-11-28: F tensorflow/core/util.cc:12] Check failed: x == y (1 vs. 2)\n{ABORTED}",
        134,
        "2026-11-28: F tensorflow/core/util.cc:12] Check failed: x == y (1 vs. 2)",
    ),
    "C++, of which Python's fault handler tells": (
        (
            "terminate called after throwing an instance of 'c10::Error'\n"
            "  what():  no device\n\nFatal Python error: Aborted\n\n"
            f"Thread 0x7f (most recent call first):\n  <no Python frame>\n{ABORTED}"
        ),
        134,
        "what():  no device",
    ),
    "torchrun, aborted by C++": (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  no device\n"
        + REPORT.format(code=-6, traceback="Signal 6 (SIGABRT) received by PID 4111"),
        1,
        "what():  no device",
    ),
    "a crash, then a finaliser": (
        (
            f"{TRACE}OSError: retry\n" + STEPS[:160] + f"panic: no data\n"
            f"Exception ignored in: <f>\n{TRACE}KeyError: 'a'\n"
        ),
        2,
        "panic: no data",
    ),
    "killed long after an exception that was caught": (
        f"{TRACE}ModuleNotFoundError: No module named 'matplotlib'\n{STEPS}",
        137,
        SIGKILL,
    ),
    "killed after out of GPU memory that was caught": (
        f"{TRACE}{OOM}\nretry\n{STEPS}",
        137,
        SIGKILL,
    ),
    "killed after a complaint": ("cat: /x: No such file or directory\nstep\n", 137, SIGKILL),
    "ranks that tell much after the first": (
        of_rank(2, f"{TRACE}IndexError: list index out of range")
        + "".join(of_rank(n, f"{TRACE}{RESET}\n" + "more\n" * 8) for n in (0, 1, 3, 4, 5, 6, 7)),
        1,
        "IndexError: list index out of range",
    ),
    "torchrun, after an exception that all ranks caught": (
        f"{TRACE}ImportError: no plots\n{STEPS}{TRACE}ValueError: bad batch\n"
        + REPORT.format(code=1, traceback=ENABLE),
        1,
        "ValueError: bad batch",
    ),
    "loguru": (
        (
            "10:00 | ERROR | __main__:main:3 - An error has been caught in function 'main'\n"
            'Traceback (most recent call last):\n\n> File "a.py", line 9, in <module>\n'
            "    main()\n    └ <function main at 0x7f>\n\nZeroDivisionError: division by zero\n"
        ),
        1,
        "ZeroDivisionError: division by zero",
    ),
    "a trap that cleans up": (
        f"{TRACE}ValueError: bad batch\nrm: cannot remove '/tmp/l': No such file or directory\n",
        1,
        "ValueError: bad batch",
    ),
    "a note": (
        f"{TRACE}RuntimeError: no shard\nhint: check /data: No such file or directory\n",
        1,
        "RuntimeError: no shard",
    ),
    "wandb after it": (
        f"{TRACE}ValueError: bad batch\nwandb: ERROR Failed to upload: No space left on device\n",
        1,
        "ValueError: bad batch",
    ),
    "a copy after the kill": (
        (
            "/tmp/a.sh: line 5: 12345 Killed                  python train.py\n"
            "Training failed, copying logs\ncp: cannot stat 'logs': No such file or directory\n"
        ),
        1,
        "/tmp/a.sh: line 5: 12345 Killed                  python train.py",
    ),
    "a panic of Rust in two lines": (
        "thread 'main' panicked at src/main.rs:2:5:\nno tokenizer\nnote: run with RUST_BACKTRACE\n",
        101,
        "thread 'main' panicked at src/main.rs:2:5: no tokenizer",
    ),
    "torch.compile": (
        (
            f"{TRACE}torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
            "RuntimeError: Cannot find a working triton installation.\n"
        ),
        1,
        (
            "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: "
            "RuntimeError: Cannot find a working triton installation."
        ),
    ),
    "a state dict": (
        (
            f"{TRACE}RuntimeError: Error(s) in loading state_dict for GPT:\n"
            "\tsize mismatch for wte.weight: copying a param\n"
        ),
        1,
        (
            "RuntimeError: Error(s) in loading state_dict for GPT: "
            "size mismatch for wte.weight: copying a param"
        ),
    ),
    "pydantic": (
        (
            f"{TRACE}pydantic_core._pydantic_core.ValidationError: 1 validation error for Config\n"
            "lr\n  Input should be a valid number [type=float_type]\n    For further information\n"
        ),
        1,
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Config: "
            "lr: Input should be a valid number [type=float_type]"
        ),
    ),
    "uv": (
        (
            "error: Failed to spawn: `train.py`\n"
            "  Caused by: No such file or directory (os error 2)\n"
        ),
        2,
        "error: Failed to spawn: `train.py`: Caused by: No such file or directory (os error 2)",
    ),
    "pip, of a package that it builds": (
        (
            "  error: subprocess-exited-with-error\n  ╰─> [6 lines of output]\n"
            '      Traceback (most recent call last):\n        File "<string>", line 2\n'
            "      ModuleNotFoundError: No module named 'torch'\n      [end of output]\n"
            "error: metadata-generation-failed\n\n╰─> flash-attn\nhint: See above for details.\n"
        ),
        1,
        "ModuleNotFoundError: No module named 'torch'",
    ),
    "a group of plain exceptions": (
        (
            "  + Exception Group Traceback (most recent call last):\n"
            '  |   File "a.py", line 3, in f\n  | ExceptionGroup: eg (2 sub-exceptions)\n'
            "  +-+---------------- 1 ----------------\n    | ValueError: a\n"
            "    +---------------- 2 ----------------\n    | TypeError: b\n    +------\n"
        ),
        1,
        "ExceptionGroup: eg (2 sub-exceptions): ValueError: a",
    ),
    "R": (
        "Error in eval(expr) : \n  object 'x' not found\nCalls: main\nExecution halted\n",
        1,
        "Error in eval(expr) : object 'x' not found",
    ),
    "R in one line": (
        "Error in torch::linear(3) : bad arg\nExecution halted\n",
        1,
        "Error in torch::linear(3) : bad arg",
    ),
    "Java without a thread": (
        "java.lang.IllegalStateException: no data\n\tat A.main(A.java:3)\n",
        1,
        "java.lang.IllegalStateException: no data",
    ),
    "DeepSpeed, one killed": (
        (
            "step 10\n[2026-11-28 10:00:01,100] [ERROR] [launch.py:322:sigkill_handler] "
            "['python', 'train.py'] exits with return code = -9\n"
        ),
        1,
        f"exits with return code = -9: {MEMORY}",
    ),
    "colours": (f"{TRACE}\x1b[1;31mValueError\x1b[0m: \x1b[35mred\x1b[0m\n", 1, "ValueError: red"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_cause_is_found_in_the_last_output(name: str) -> None:
    text, code, cause = ENDS[name]
    found = find_cause(text, code)
    assert (found.line, found.recognised) == (cause[:MAX_CAUSE], True)


@pytest.mark.parametrize(
    "prefix",
    [
        "10.0.0.1: ",
        "0: ",
        "train-1  | ",
        "[1,0]<stderr>:",
        "2026-11-28 10:00:{n:02} ",
        "2026-11-28T10:00:{n:02}.123Z [rank1]: ",
        "node-1: [rank0]: ",
    ],
)
def test_any_prefix_of_a_traceback_is_taken_off(prefix: str) -> None:
    lines = [*TRACE.splitlines(), "ValueError: bad", "see the docs"]
    text = "".join(f"{prefix.format(n=n)}{line}\n" for n, line in enumerate(lines, 57))
    assert find_cause(f"begin\n{text}ssh exited with exit code 1\n", 1).line == "ValueError: bad"


def test_ranks_are_told_apart_by_their_prefixes() -> None:
    first, second = (
        [f"{n}: {line}\n" for line in f"{TRACE}{error}".splitlines()]
        for n, error in enumerate((RESET, "IndexError: out of range"))
    )
    mixed = "".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert find_cause(mixed, 1).line == "IndexError: out of range"


@pytest.mark.parametrize(
    ("text", "code", "last"),
    [
        ("loading\nI give up\n\n  \n", 3, "I give up"),
        ("a\r 50%|##\r100%|####\n", 1, "100%|####"),
        ("", 1, ""),
        ("  indented\nstep 1\nstep 2\n", 1, "step 2"),
        ("loss 0.1 (no errors: 0)\n", 1, "loss 0.1 (no errors: 0)"),
        (f"{TRACE}OSError: try again\n{STEPS}No data, stop.\n", 1, "No data, stop."),
        (f"cat: /etc/foo: No such file or directory\n{STEPS}No data\n", 1, "No data"),
        (f"n:1:2 [0] NCCL WARN NET/IB : no device found\n{STEPS}No data\n", 1, "No data"),
        ("ERROR: no flash attention, falling back\na\nb\nNo data\n", 1, "No data"),
        (
            f"No data, stop.\nException ignored in: <stdout>\n{TRACE}BrokenPipeError: pipe\n",
            1,
            "No data, stop.",
        ),
        (
            (
                f"No data.\nException ignored in atexit callback: <f>\n{TRACE}KeyError: 'a'\n\n"
                "During handling of the above exception, another exception occurred:\n\n"
                f"{TRACE}RuntimeError: late\n"
            ),
            1,
            "No data.",
        ),
        (f"--- Logging error ---\n{TRACE}TypeError: not all\nNo data\n", 1, "No data"),
        (
            f"Exception in thread Thread-1 (run):\n{TRACE}ConnectionError: hub\n",
            1,
            "ConnectionError: hub",
        ),
        ("Killed 3 stale processes\nlr must be > 0\n", 1, "lr must be > 0"),
        ("Aborted the run by user config: failures\nbye\n", 1, "bye"),
        ("E: 0.1 loss\nno data\n", 1, "no data"),
        ("LR FATAL threshold 3\nno data\n", 1, "no data"),
        (
            "python train.py: bad lr\nmake: *** [Makefile:3: train] Error 1\n",
            2,
            "python train.py: bad lr",
        ),
        ("open config: no such file\nexit status 1\n", 1, "open config: no such file"),
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


def test_the_cause_has_no_control_characters_nor_bidi_marks() -> None:
    text = f"{TRACE}ValueError: a\tb\x85\x9bc\u202ed\u2066e\u200f\x07f\n"
    assert find_cause(text, 1).line == "ValueError: a bcdef"


@pytest.mark.parametrize(
    "unit",
    [
        "Assertion ",
        "error[",
        "Aa",
        "a.",
        "A: ",
        "- ",
        "Error in : ",
        "Killed  ",
        "\n",
        CAUGHT,
        f"{CAUGHT}E:\n\n\n\n",
        f"Exception ignored in\n{CAUGHT}A: b\n",
        f"{CAUGHT}E: e\n\nDuring handling of the above exception\n",
        "  + E (2 sub-exceptions)\n",
        "Root Cause (first observed failure):\n",
    ],
)
def test_hostile_output_takes_no_longer_than_its_length(unit: str) -> None:
    text = unit * ((1 << 19) // len(unit))  # its square would not end
    assert len(find_cause(text, 1).line) <= MAX_CAUSE
    assert len(find_cause(f"{text}\n{TRACE}ValueError: e\n", 1).line) <= MAX_CAUSE


def test_many_prefixes_take_no_longer_than_their_length() -> None:
    text = "".join(f'p{n}: {CAUGHT}p{n}:   File "a.py"\np{n}: E: e\n' for n in range(20000))
    assert len(find_cause(text, 1).line) <= MAX_CAUSE


def test_long_output_is_linear() -> None:
    found = find_cause("x" * (1 << 16) + "\n" + "\r".join("y" * 10 for _ in range(5000)), 1)
    assert not found.recognised
    assert len(found.line) <= MAX_CAUSE
