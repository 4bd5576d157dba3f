"""`spot-node pull`: brings a container image to the machine. The agent's keeper runs it, so that it
goes on without an agent; it reads one file and leaves another.

An image that the machine has is not pulled. What a registry will never give (no such image, no
right to it) ends with the code REFUSED, after one try; anything else is tried again, and ends with
UNREACHED: another machine may have more luck.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.agent.base.paths import write_private
from trainer.agent.process.engines import Engine, LocalImage, Run, ask, choose, has_gpus, names_of
from trainer.agent.process.engines import parse_inspected as parse

REFUSED = 65  # EX_DATAERR: the job's own doing
UNREACHED = 69  # EX_UNAVAILABLE
PAUSES_S = (2.0, 5.0, 15.0, 30.0, 60.0)
# How registries, and the engines in their name, say that asking again is of no use.
_FOR_EVER = (
    "not found",
    "manifest unknown",
    "name unknown",
    "repository does not exist",
    "unauthorized",
    "authentication required",
    "access denied",
    "denied:",
    "no basic auth",
    "invalid reference",
    "no matching manifest",
    "no image found in",
    "requested access to",
    "incorrect username or password",
    "forbidden",
)
_PASSING = ("toomanyrequests", "too many requests")  # with "denied" in its text, at times


def main(path: str) -> int:
    """`path` names the order: {image, logins, result}."""
    order = json.loads(Path(path).read_bytes())
    gpus = has_gpus()
    engine, trouble = choose(gpus=gpus)
    if engine is None:
        for_gpus = " for its GPUs" if gpus else ""
        print(f"this machine has no container engine{for_gpus} ({trouble})", flush=True)
        return UNREACHED
    code, text, found, pulled = bring(engine, order["image"], order["logins"])
    if text:
        print(text, flush=True)
    if found is not None:
        result = {"engine": engine.kind, "prefix": list(engine.prefix), "gpus": gpus}
        result |= {"image_id": found.image_id, "digest": found.digest, "pulled": pulled}
        write_private(Path(order["result"]), json.dumps(result).encode())
    return code


def bring(
    engine: Engine,
    image: str,
    logins: str,
    *,
    run: Run = ask,
    pull: Callable[[list[str]], tuple[int, str]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, str, LocalImage | None, bool]:
    """Exit code, what to say, the image, and whether it was pulled."""
    found = _look(engine, image, run)
    if found is not None:
        return 0, f"{image} is on this machine", found, False
    said = ""
    for pause_s in (*PAUSES_S, None):
        print(f"pulling {image} with {engine.kind}", flush=True)
        code, output = (pull or _pull)(engine.pull_argv(image, logins))
        if not code:
            found = _look(engine, image, run)
            if found is not None:
                return 0, "", found, True
            output = "pulled, and not to be found"
        said = output.strip().rpartition("\n")[2][:500]
        if is_refusal(output):
            text = f"image {image} does not exist, or needs a login ({said})"
            return REFUSED, text, None, False
        if pause_s is not None:
            print(f"{said}; again in {pause_s:.0f} s", flush=True)
            sleep(pause_s)
    tries = len(PAUSES_S) + 1
    return UNREACHED, f"image {image} cannot be pulled, {tries} times: {said}", None, False


def is_refusal(output: str) -> bool:
    """Whether a registry's answer is its last word."""
    text = output.lower()
    return not any(word in text for word in _PASSING) and any(word in text for word in _FOR_EVER)


def _look(engine: Engine, image: str, run: Run) -> LocalImage | None:
    for name in names_of(image):
        answer = run(engine.inspect_argv(name))
        if not answer.returncode:
            return parse(answer.stdout)
    return None


def _pull(argv: list[str]) -> tuple[int, str]:
    """Its output is shown as it comes: it is the log's progress."""
    tail = ""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            tail = (tail + line)[-4000:]
    return process.returncode, tail


def read_result(path: Path) -> dict[str, Any]:
    """What `main` left. Raises OSError, ValueError."""
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found
