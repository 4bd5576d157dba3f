"""How the cost of a program's output grows with it, in each part that it goes through: the mask of
the agent, the lines to the box, the daemon's parser, and the rendering of `spotctl logs`.

For each kind of output: CPU seconds for a part and for ten times as much, in pieces of 512 bytes,
and their ratio by byte. It is 1 where the cost is linear, and 10 where it is quadratic.

    python -m bench.output
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import time
from collections.abc import Callable, Iterator

from spotd.cli.log_text import Streams
from spotd.observe.stream import NodeStream
from spotd.wire import LogChunk
from trainer.agent.process.script_supervisor import SecretMask

PIECE_BYTES = 512
CHUNK_BYTES = 16 << 10  # as the follower sends them
SECRET = "hunter22" * 256
LONG = 64 << 10


def kinds(count: int) -> dict[str, bytes]:
    """Return output of about `count` bytes of each kind."""
    return {
        "no line end": b"x" * count,
        "binary": random.Random(1).randbytes(count),
        "a bar over a long line": b"x" * LONG + b"\r1" * ((count - LONG) // 2),
        "lines": b"step 1200 loss 2.5\n" * (count // 19),
    }


def pieces(data: bytes, count: int) -> Iterator[bytes]:
    return (data[start : start + count] for start in range(0, len(data), count))


def mask(data: bytes) -> None:
    masked = SecretMask([SECRET])
    for piece in pieces(data, PIECE_BYTES):
        masked.feed(piece)


def parse(data: bytes) -> None:
    """The lines to the box, as they arrive there."""
    stream = NodeStream(0)
    for offset, chunk in enumerate(pieces(data, CHUNK_BYTES)):
        line = LogChunk(1, "rank0", offset * CHUNK_BYTES, chunk.decode("latin-1")).to_line()
        for piece in pieces(line, PIECE_BYTES):
            stream.feed(piece)


def render(data: bytes) -> None:
    streams = Streams({}, show_rank=False, safe=True, render=True)
    place = {"generation": 1, "rank": 0, "stream": "rank0"}
    with io.TextIOWrapper(io.BytesIO()) as out, contextlib.redirect_stdout(out):
        for piece in pieces(data, PIECE_BYTES):
            streams.feed({**place, "text": piece.decode("latin-1")})
        streams.close()


PARTS: dict[str, Callable[[bytes], None]] = {"mask": mask, "parse": parse, "render": render}


def cpu_s(act: Callable[[bytes], None], data: bytes, rounds: int) -> float:
    """Return the least CPU time of several rounds."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        act(data)
        taken.append(time.process_time() - begun)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=10 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    large, small = kinds(given.bytes), kinds(given.bytes // 10)
    for kind, data in large.items():
        for name, act in PARTS.items():
            tenth_s = cpu_s(act, small[kind], given.rounds)
            whole_s = cpu_s(act, data, given.rounds)
            ratio = (whole_s / len(data)) / (tenth_s / len(small[kind]))
            row = {"output": kind, "part": name, "cpu_s": round(whole_s, 3)}
            print(json.dumps(row | {"ratio": round(ratio, 2)}))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
