"""The life of a node: every pair of states, the way to the end, and the diagram."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from sqlalchemy import CheckConstraint

import spotd
from spotd.domain.states import TRANSITIONS, IllegalTransitionError, NodeState, check
from spotd.store import schema

L, B, R, D, T, G = NodeState
# Written out once more, by hand: a change of the table is a change of the contract.
LEGAL = {
    (L, B), (L, T), (L, G),
    (B, R), (B, D), (B, T), (B, G),
    (R, D), (R, T), (R, G),
    (D, R), (D, T), (D, G),
    (T, G),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), list(itertools.product(NodeState, NodeState)))
def test_every_pair(old: NodeState, new: NodeState) -> None:
    if (old, new) in LEGAL:
        check(old, new)
        return
    with pytest.raises(IllegalTransitionError) as caught:
        check(old, new)
    assert str(caught.value) == f"a node cannot go from {old.value} to {new.value}"


def test_every_state_has_a_row_and_a_way_to_gone() -> None:
    assert set(TRANSITIONS) == set(NodeState)
    for start in NodeState:
        reached, todo = set(), {start}
        while todo:
            state = todo.pop()
            reached.add(state)
            todo |= TRANSITIONS[state] - reached
        assert G in reached, f"{start.value} would cost money for ever"


def test_gone_is_the_end_and_terminating_has_no_way_back() -> None:
    assert TRANSITIONS[G] == set()
    assert TRANSITIONS[T] == {G}


def test_only_draining_goes_back() -> None:
    """A notice that is withdrawn is the one thing that can be taken back."""
    order = list(NodeState)
    back = [
        (o, n) for o, after in TRANSITIONS.items() for n in after if order.index(n) < order.index(o)
    ]
    assert back == [(D, R)]


def test_the_schema_allows_these_states_and_no_others() -> None:
    checks = [c for c in schema.nodes.constraints if isinstance(c, CheckConstraint)]
    (states,) = [str(c.sqltext) for c in checks if str(c.sqltext).startswith("state ")]
    assert set(re.findall(r"'(\w+)'", states)) == {state.value for state in NodeState}


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> launching"]
    for old in NodeState:
        lines += [
            f"    {old.value} --> {new.value}" for new in NodeState if new in TRANSITIONS[old]
        ]
    return "\n".join([*lines, "    gone --> [*]"])


EXPECTED = """\
stateDiagram-v2
    [*] --> launching
    launching --> booting
    launching --> terminating
    launching --> gone
    booting --> running
    booting --> draining
    booting --> terminating
    booting --> gone
    running --> draining
    running --> terminating
    running --> gone
    draining --> running
    draining --> terminating
    draining --> gone
    terminating --> gone
    gone --> [*]"""


def test_the_diagram_is_the_table() -> None:
    assert diagram() == EXPECTED


def test_the_architecture_page_shows_this_diagram() -> None:
    page = Path(spotd.__file__).parent.parent / "docs" / "architecture.md"
    assert diagram() in page.read_text()
