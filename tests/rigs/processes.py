"""Looking at real processes from tests."""

from __future__ import annotations

from pathlib import Path


def carrying(variable: str, value: str = "") -> list[int]:
    """Live processes with `variable` (set to `value`, if given) in their environment."""
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        try:
            environ = (folder / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        state = state_of(pid)
        rows = environ.split(b"\0")
        matches = wanted in rows if value else any(row.startswith(wanted) for row in rows)
        if matches and state not in ("Z", "X", ""):
            found.append(pid)
    return found


def state_of(pid: int) -> str:
    """The state letter of /proc, "" when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text[text.rindex(")") + 2 :].split()[0]


def alive(pid: int) -> bool:
    """Whether the process runs, is stopped or sleeps; a zombie is dead."""
    return state_of(pid) not in ("", "Z", "X")


def below(root: int) -> list[int]:
    """Every process below `root`, whatever its state."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        parent = int(text[text.rindex(")") + 2 :].split()[1])
        children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    todo = [root]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += mine
    return found
