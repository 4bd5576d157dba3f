"""How a program comes to a saver: the agent's, or its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.trainer.saver.rig import Gate, Rig
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.saver_connect import SaverConnector


class Agent:
    """The program's line to it; hears what is wanted."""

    def __init__(self) -> None:
        self.wanted: list[list[str]] = []
        self.said: list[str] = []
        self.link: Any = SimpleNamespace(want_saver=self.wanted.append, send=self._send)

    def _send(self, kind: str, data: dict[str, str]) -> None:
        assert kind == "warning"
        self.said.append(data["text"])


def job(folder: Path) -> Job:
    return Job.from_env({"SPOTD_STORE_URL": (folder / "store").as_uri()})


def test_the_agents_is_asked_for_and_waited_for(tmp_path: Path) -> None:
    store, agent = Gate(SimpleNamespace(url="")), Agent()  # type: ignore[arg-type]
    path = tmp_path / "saver.sock"
    dial = SaverConnector(job(tmp_path), agent.link, {"SPOTD_SAVER": str(path)})
    dial.start()
    rig = Rig(path, store, 1, claim=False)
    dial.line().close()
    assert agent.wanted[0][1:] == ["-m", "trainer.saver", "--stay"]
    assert agent.said == []
    assert dial.pid == 0
    assert dial.close()
    rig.close()


def test_an_agent_of_before_it_had_savers_is_not_waited_for_for_long(tmp_path: Path) -> None:
    agent = Agent()
    environ = {"SPOTD_SAVER": str(tmp_path / "nobody.sock")}
    dial = SaverConnector(job(tmp_path), agent.link, environ, agent_s=0.05)
    dial.line().close()
    assert "the node agent has no saver for us" in agent.said[0]
    first = dial.pid
    assert first
    dial.line().close()
    assert dial.pid == first, "one is enough"
    assert dial.close()
