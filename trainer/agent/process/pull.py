"""`spot-node pull`: pull a container image to the machine.

A script supervisor runs it, so that it continues without an agent. It reads one file and writes
another. An image that the machine has is not pulled. A permanent refusal by the registry (no such
image, no permission) ends at once with the exit code REFUSED. Anything else is retried, and ends
with UNREACHED: another machine may succeed.
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
from trainer.agent.process.engines import (
    Engine,
    LocalImage,
    Run,
    choose_engine,
    has_gpus,
    image_names,
    parse_image_inspect,
    run_engine,
)

REFUSED = 65  # EX_DATAERR: an error in the job
UNREACHED = 69  # EX_UNAVAILABLE
RETRY_PAUSES_S = (2.0, 5.0, 15.0, 30.0, 60.0)
# Messages of registries and engines after which a retry is useless.
_PERMANENT = (
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
_TRANSIENT = ("toomanyrequests", "too many requests")  # the text sometimes contains "denied"


def main(path: str) -> int:
    """Pull an image and return the exit code; `path` names the request file {image, logins,
    result}."""
    request = json.loads(Path(path).read_bytes())
    gpus = has_gpus()
    engine, problem = choose_engine(gpus=gpus)
    if engine is None:
        for_gpus = " for its GPUs" if gpus else ""
        print(f"this machine has no container engine{for_gpus} ({problem})", flush=True)
        return UNREACHED
    code, text, local_image, pulled = pull_image(engine, request["image"], request["logins"])
    if text:
        print(text, flush=True)
    if local_image is not None:
        result = {"engine": engine.kind, "prefix": list(engine.prefix), "gpus": gpus}
        result |= {"image_id": local_image.image_id, "digest": local_image.digest, "pulled": pulled}
        write_private(Path(request["result"]), json.dumps(result).encode())
    return code


def pull_image(
    engine: Engine,
    image: str,
    logins: str,
    *,
    run: Run = run_engine,
    pull: Callable[[list[str]], tuple[int, str]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, str, LocalImage | None, bool]:
    """Return the exit code, a message, the image, and whether it was pulled."""
    local_image = _inspect(engine, image, run)
    if local_image is not None:
        return 0, f"{image} is on this machine", local_image, False
    last_line = ""
    for pause_s in (*RETRY_PAUSES_S, None):
        print(f"pulling {image} with {engine.kind}", flush=True)
        code, output = (pull or _pull)(engine.pull_argv(image, logins))
        if not code:
            local_image = _inspect(engine, image, run)
            if local_image is not None:
                return 0, "", local_image, True
            output = "pulled, but not found afterwards"
        last_line = output.strip().rpartition("\n")[2][:500]
        if is_permanent_error(output):
            text = f"image {image} does not exist, or needs a login ({last_line})"
            return REFUSED, text, None, False
        if pause_s is not None:
            print(f"{last_line}; trying again in {pause_s:.0f} s", flush=True)
            sleep(pause_s)
    tries = len(RETRY_PAUSES_S) + 1
    return (
        UNREACHED,
        f"image {image} cannot be pulled after {tries} attempts: {last_line}",
        None,
        False,
    )


def is_permanent_error(output: str) -> bool:
    """Whether a retry is useless after this output."""
    text = output.lower()
    return not any(word in text for word in _TRANSIENT) and any(word in text for word in _PERMANENT)


def _inspect(engine: Engine, image: str, run: Run) -> LocalImage | None:
    for name in image_names(image):
        answer = run(engine.inspect_argv(name))
        if not answer.returncode:
            return parse_image_inspect(answer.stdout)
    return None


def _pull(argv: list[str]) -> tuple[int, str]:
    """Run the pull. Its output is printed as it comes: it is the progress in the log."""
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
    """Read the result that `main` wrote. Raises OSError, ValueError."""
    result: dict[str, Any] = json.loads(path.read_bytes())
    return result
