"""Test that lines and commands carry their version, and that adjacent versions are compatible."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.older import VERSION, unpack

# Lines as version 1 wrote them.
OLD_JOURNAL = b'{"journal":{"at_us":5,"data":{"wire":1},"generation":1,"kind":"hello","seq":1}}\n'
OLD_COMMAND = b'{"command":{"data":{},"generation":1,"name":"save"}}\n'


def test_what_the_version_before_wrote_is_read() -> None:
    entry = wire.parse_line(OLD_JOURNAL)
    assert entry == wire.JournalEntry(1, 5, 1, wire.HELLO, {"wire": 1}, wire=1)
    assert wire.parse_command(OLD_COMMAND) == wire.Command(wire.SAVE, 1, wire=1)


def test_what_we_write_says_its_version() -> None:
    entry = json.loads(wire.JournalEntry(1, 5, 1, wire.HELLO).to_line())
    command = json.loads(wire.Command(wire.SAVE, 1).to_line())
    assert entry["journal"]["wire"] == command["command"]["wire"] == wire.WIRE_VERSION


@pytest.mark.parametrize("ahead", [-2, 2])
def test_a_command_of_too_far_a_version_is_refused(ahead: int) -> None:
    line = wire.Command(wire.SAVE, 1, wire=wire.WIRE_VERSION + ahead).to_line()
    with pytest.raises(wire.WireError, match=f"this agent speaks {wire.WIRE_VERSION}"):
        wire.parse_command(line)


@pytest.mark.parametrize("ahead", [-1, 0, 1])
def test_a_command_of_a_version_next_to_ours_is_obeyed(ahead: int) -> None:
    version = wire.WIRE_VERSION + ahead
    assert wire.parse_command(wire.Command(wire.SAVE, 1, wire=version).to_line()).wire == version


READ_OURS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from spotd import wire
assert str(wire.WIRE_VERSION) == sys.argv[2], wire.__file__
for line in sys.stdin.buffer:
    parse = wire.parse_command if b"command" in line else wire.parse_line
    print(parse(line))
"""


def test_the_version_before_reads_what_we_write(tmp_path: Path) -> None:
    """Run the older version's code: it ignores fields that it does not know."""
    known = wire.COMMANDS - {
        wire.STRIKE
    }  # the older version refuses it, and the drill is cancelled
    lines = [wire.Command(name, 1).to_line() for name in sorted(known)]
    lines.append(wire.JournalEntry(1, 5, 1, wire.HELLO).to_line())
    done = subprocess.run(
        [sys.executable, "-I", "-c", READ_OURS, str(unpack(tmp_path)), str(VERSION)],
        input=b"".join(lines),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout.splitlines()) == len(lines)
