"""Comparing the checkpoints of two jobs from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.stores import open_store
from spotd.wire import Block, TensorLayout
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.saver.rig import CONFIG, fill
from trainer.hook.spotd_hook.engine import Engine
from trainer.hook.spotd_hook.saver_client import SaverClient
from trainer.reference.compare import main
from trainer.saver import streams
from trainer.saver.client_session import ClientSession
from trainer.saver.reader import CorruptError
from trainer.saver.service import SaverConfig, SaverService
from trainer.saver.socket_server import SocketServer
from trainer.saver.tensors import assemble, itemsize

PIECES = [
    {
        "name": f"t{n}",
        "dtype": "float32",
        "shape": [8, 2],
        "at": [0, 0],
        "block": [8, 2],
        "offset": 64 * n,
    }
    for n in range(5)
]


def save(folder: Path, job: str, step: int, flip_at: int = -1, chunk: int = 128) -> None:
    """Write a final checkpoint whose bytes depend only on `flip_at`."""

    def stage(memory: memoryview, _: object) -> None:
        fill(memory, 1)
        if flip_at >= 0:
            memory[flip_at] ^= 1

    folder.mkdir(exist_ok=True)
    path = folder / f"{job}.sock"
    config = SaverConfig(str(path), job, 1, "node", folder.as_uri(), keep=1)
    service = SaverService(
        config, lambda kind, data: None, open_store=lambda url, _: open_store(url)
    )
    server = SocketServer(path, lambda: ClientSession(service))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK_BYTES", chunk)
        engine = Engine(
            SaverClient(str(path)), job=job, generation=1, name="n", rank=0, ranks=[0], world_size=1
        )
        engine.open(PIECES, 320)
        assert engine.claim() is not None
        assert engine.save(step, stage, {"config": CONFIG}, trigger="test", final=True)
        assert engine.drain(LIMIT_S)
        engine.close()
        server.close()
        service.close()


@pytest.mark.parametrize(
    ("other", "code", "output"),
    [
        ({"step": 9}, 0, "equal, bit for bit"),
        ({"step": 9, "chunk": 1 << 20}, 0, "equal, bit for bit"),
        ({"step": 8}, 1, "step: 9 and 8"),
        ({"step": 9, "flip_at": 130}, 1, "t2: byte 2 of 64 differs"),
    ],
)
def test_compare(
    other: dict[str, int],
    code: int,
    output: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(tmp_path, "a", 9)
    save(tmp_path / "b", "b", **other)
    assert main(["compare", tmp_path.as_uri(), "a", (tmp_path / "b").as_uri(), "b"]) == code
    assert output in capsys.readouterr().out


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = tmp_path.as_uri()
    save(tmp_path, "a", 9)
    assert main(["compare", url, "a", url, "missing"]) == 2
    assert "check the id" in capsys.readouterr().err
    next(tmp_path.rglob("r00000-*")).write_bytes(b"")
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


def test_a_tensor_is_put_together_of_its_blocks() -> None:
    """Cut by columns over two ranks, and rows of one of them."""
    rows, columns = 4, 6
    data = bytes(range(rows * columns * 2))
    table = [data[12 * r : 12 * (r + 1)] for r in range(rows)]
    left = b"".join(row[:4] for row in table)  # columns 0 and 1, of two bytes each
    top = b"".join(row[4:] for row in table[:3])
    bottom = table[3][4:]
    blocks = (
        Block((0, 0), (4, 2), 0, 0),
        Block((0, 2), (3, 4), 1, 8),
        Block((3, 2), (1, 4), 1, 0),
    )
    tensor = TensorLayout("w", "bfloat16", (rows, columns), blocks)
    assert bytes(assemble(tensor, [left, bottom + top])) == data
    with pytest.raises(CorruptError, match="not all of it"):
        assemble(TensorLayout("w", "bfloat16", (rows, columns), blocks[:2]), [left, bottom + top])
    with pytest.raises(CorruptError, match="not where"):
        assemble(tensor, [left])
    number = TensorLayout("n", "int64", (), (Block((), (), 0, 8),))
    assert bytes(assemble(number, [bytes(range(16))])) == bytes(range(8, 16))


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 4), ("bfloat16", 2), ("bool", 1), ("float8_e4m3fn", 1), ("complex128", 16)],
)
def test_the_size_of_an_element(dtype: str, size: int) -> None:
    assert itemsize(dtype) == size


@pytest.mark.parametrize("dtype", ["", "float", "quint4x2", "int0x"])
def test_an_element_of_no_known_size(dtype: str) -> None:
    with pytest.raises(CorruptError, match="is not a type of tensors"):
        itemsize(dtype)
