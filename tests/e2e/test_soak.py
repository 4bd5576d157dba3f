"""The soak's book-keeping: it forgets no run, and takes none that went wrong for well."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.runs import Outcome
from tests.e2e.soak import Results


def test_it_goes_on_where_it_stopped_and_tries_again_what_went_wrong(tmp_path: Path) -> None:
    path = tmp_path / "out" / "soak.json"
    first = Results(path)
    assert not first.has("daemon", 1)
    first.add(Outcome("daemon", 1, 10.0, (), ("killed",)))
    first.add(Outcome("daemon", 2, 12.0, ("left running",), ("killed",)))
    second = Results(path)
    assert second.has("daemon", 1)
    assert not second.has("daemon", 2)
    assert [row["story"] for row in second.rows] == [[], ["killed"]], "kept where it is needed"
    second.add(Outcome("daemon", 2, 14.0, (), ()))
    assert Results(path).has("daemon", 2)
    assert Results(path).table().splitlines()[1].split() == [
        "daemon",
        "3",
        "2",
        "1",
        "12.0",
        "14.0",
    ]
