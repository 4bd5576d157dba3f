"""Arguments of Lightning: a run that was interrupted keeps what one without spotd keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.trainer.hook.argument_cases import LIGHTNING, Case, parameters
from tests.trainer.hook.interrupted import Interruption, assert_same
from tests.trainer.hook.test_lightning import MODULES
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="pip install '.[examples]'")
FITTING = "tests/trainer/hook/fitting.py"


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


@pytest.mark.parametrize("case", parameters(LIGHTNING))
def test_what_a_run_keeps(tmp_path: Path, agent: AgentEnd, case: Case) -> None:
    arguments = (json.dumps(case.settings), *case.more)
    interruption = Interruption(case.left_at, case.notice, case.every)
    assert_same(tmp_path, agent, (FITTING, arguments, MODULES), interruption)
