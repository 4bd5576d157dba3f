"""Two final states side by side, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.stores import open_store
from tests.trainer.test_checkpoint import CONFIG, PIECES, fill
from trainer.checkpoint import Checkpointer
from trainer.compare import main
from trainer.fence import Fence
from trainer.shards import Layout


def save(folder: Path, job: str, step: int, flip_at: int = -1, shard_bytes: int = 128) -> None:
    """One final checkpoint whose bytes depend on nothing but `flip_at`."""

    def stage(arena: memoryview) -> None:
        fill(arena, 1)
        if flip_at >= 0:
            arena[flip_at] ^= 1

    fence = Fence(open_store(folder.as_uri()), job, 1, "node")
    fence.claim()
    checkpointer = Checkpointer(
        fence,
        Layout.of(PIECES, shard_bytes),
        world_size=1,
        keep=1,
        report=lambda kind, data: None,
    )
    checkpointer.save(step, stage, {"config": CONFIG}, trigger="test", final=True)
    assert checkpointer.drain(20)
    checkpointer.close()


@pytest.mark.parametrize(
    ("other", "code", "said"),
    [
        ({"step": 9}, 0, "equal, bit for bit"),
        ({"step": 9, "shard_bytes": 1 << 20}, 0, "equal, bit for bit"),
        ({"step": 8}, 1, "step: 9 and 8"),
        ({"step": 9, "flip_at": 130}, 1, "t2: byte 2 of 64 differs"),
    ],
)
def test_compare(
    other: dict[str, int],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(tmp_path, "a", 9)
    save(tmp_path / "b", "b", **other)
    assert main(["compare", tmp_path.as_uri(), "a", (tmp_path / "b").as_uri(), "b"]) == code
    assert said in capsys.readouterr().out


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = tmp_path.as_uri()
    save(tmp_path, "a", 9)
    assert main(["compare", url, "a", url, "missing"]) == 2
    assert "check the id" in capsys.readouterr().err
    next(tmp_path.rglob("shard-*")).write_bytes(b"")
    assert main(["compare", url, "a", url, "a"]) == 2
    assert "bytes instead of" in capsys.readouterr().err
    assert main(["show", url, "a"]) == 0
    assert "unusable" in capsys.readouterr().out
    assert main(["show", "ftp://x", "a"]) == 2


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, "a", 9)
    assert main(["show", tmp_path.as_uri(), "a"]) == 0
    out = capsys.readouterr().out
    assert "generation 1, final" in out
    assert "5 tensors, 320 bytes, verified" in out
