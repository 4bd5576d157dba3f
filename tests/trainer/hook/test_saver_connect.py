"""Connecting to the agent's saver or to one of the program's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.trainer.saver.rig import Gate, Rig
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.saver_connect import SaverConnector


class Agent:
    """The program's connection to the agent, which records requests and warnings."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.warnings: list[str] = []
        self.link: Any = SimpleNamespace(request_saver=self.requests.append, send=self._send)

    def _send(self, kind: str, data: dict[str, str]) -> None:
        assert kind == "warning"
        self.warnings.append(data["text"])


def job(folder: Path) -> Job:
    return Job.from_env({"SPOTD_STORE_URL": (folder / "store").as_uri()})


def test_the_agents_is_asked_for_and_waited_for(tmp_path: Path) -> None:
    store, agent = Gate(SimpleNamespace(url="")), Agent()  # type: ignore[arg-type]
    path = tmp_path / "saver.sock"
    connector = SaverConnector(job(tmp_path), agent.link, {"SPOTD_SAVER": str(path)})
    connector.start()
    rig = Rig(path, store, 1, claim=False)
    connector.connect().close()
    assert agent.requests[0][1:] == ["-m", "trainer.saver", "--stay"]
    assert agent.warnings == []
    assert connector.pid == 0
    assert connector.close()
    rig.close()


def test_an_agent_of_before_it_had_savers_is_not_waited_for_for_long(tmp_path: Path) -> None:
    agent = Agent()
    environ = {"SPOTD_SAVER": str(tmp_path / "nobody.sock")}
    connector = SaverConnector(job(tmp_path), agent.link, environ, wait_s=0.05)
    connector.connect().close()
    assert "the node agent has no saver for us" in agent.warnings[0]
    first = connector.pid
    assert first
    connector.connect().close()
    assert connector.pid == first, "one is enough"
    assert connector.close()
