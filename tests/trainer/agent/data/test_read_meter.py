"""How much was read over a mount is told once, on a machine whose memory is full as well."""

from __future__ import annotations

from pathlib import Path

from trainer.agent.data.read_meter import TELL_EVERY_S, ReadMeter

MIB = 1 << 20


def says(log: Path, mib: int) -> None:
    with log.open("a") as file:
        file.write(f"2026/11/25 10:00:00 NOTICE: {mib:9} MiB / {mib} MiB, 100%, 1 MiB/s, ETA 0s\n")


def test_what_is_told_while_memory_is_full_is_not_told_again(tmp_path: Path) -> None:
    """Each minute it would be paid for once more, on the books."""
    log, state = tmp_path / "m.log", tmp_path / "m.read"
    reading = ReadMeter(log, state)
    reading.begin()
    says(log, 4)
    full = tmp_path / "m.read.new"
    full.mkdir()  # where the state is written first
    assert reading.news(0.0) == 4 * MIB
    reading.tell(4 * MIB)
    assert reading.news(TELL_EVERY_S) == 0
    says(log, 5)
    assert reading.news(2 * TELL_EVERY_S) == MIB
    full.rmdir()
    reading.tell(MIB)
    assert ReadMeter(log, state).news(0.0) == 0, "and the next agent knows of all of it"
    says(log, 7)
    assert ReadMeter(log, state).news(0.0) == 2 * MIB
