"""Bytes read through a mount are reported once, even when the machine's memory is full."""

from __future__ import annotations

from pathlib import Path

from trainer.agent.data.read_meter import REPORT_EVERY_S, ReadMeter

MIB = 1 << 20


def says(log: Path, mib: int) -> None:
    with log.open("a") as file:
        file.write(f"2026/11/25 10:00:00 NOTICE: {mib:9} MiB / {mib} MiB, 100%, 1 MiB/s, ETA 0s\n")


def test_what_is_told_while_memory_is_full_is_not_told_again(tmp_path: Path) -> None:
    """Otherwise the cost report would count them again each minute."""
    log, state = tmp_path / "m.log", tmp_path / "m.read"
    reading = ReadMeter(log, state)
    reading.begin()
    says(log, 4)
    full = tmp_path / "m.read.new"
    full.mkdir()  # where the state is written first
    assert reading.pending_bytes(0.0) == 4 * MIB
    reading.mark_reported(4 * MIB)
    assert reading.pending_bytes(REPORT_EVERY_S) == 0
    says(log, 5)
    assert reading.pending_bytes(2 * REPORT_EVERY_S) == MIB
    full.rmdir()
    reading.mark_reported(MIB)
    assert ReadMeter(log, state).pending_bytes(0.0) == 0, "and the next agent knows of all of it"
    says(log, 7)
    assert ReadMeter(log, state).pending_bytes(0.0) == 2 * MIB
