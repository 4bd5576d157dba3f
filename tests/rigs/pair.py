"""Two control boxes: real daemons on one PostgreSQL, one local cloud, and its books.

Whoever writes what only a duty's holder may write is put on record by the database itself.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotd.demo.box import Box
from spotd.store.sql import open_store
from tests.rigs.cable import Cable
from tests.rigs.forked import ForkedBox
from tests.rigs.postgres import Postgres

# Every write of offers is a duty's, and names who then has that duty. Which box writes is known by
# the name of its sessions; a duty's holder by its process id.
WITNESS = """
CREATE TABLE witness (id serial, box text, holder text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO witness (box, holder)
    SELECT current_setting('application_name'), holder FROM duties
    WHERE name = 'offers:' || coalesce(NEW.provider, OLD.provider);
  RETURN NULL;
END $$;
CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON offers FOR EACH ROW EXECUTE FUNCTION see();
"""


class Twin(ForkedBox):
    """One of the two. `box` is its name; both have the cloud's box's store for checkpoints."""

    def __init__(self, folder: Path, box: str, cloud: Box, settings: str, cable: Cable) -> None:
        super().__init__(folder, settings=settings, python=cloud.python)
        self.box = box
        self.store = cloud.checkpoints_url
        self.cable = cable
        self.cloud_url, self.token_file = cloud.cloud_url, cloud.token_file
        self.pids: set[int] = set()

    @property
    def checkpoints_url(self) -> str:
        return self.store

    def start_daemon(self) -> None:
        super().start_daemon()
        assert self.daemon is not None
        self.pids.add(self.daemon.pid)

    def pause_daemon(self) -> None:
        """SIGSTOP: it stands still, wherever it is."""
        assert self.daemon is not None
        os.kill(self.daemon.pid, signal.SIGSTOP)

    def resume_daemon(self) -> None:
        assert self.daemon is not None
        os.kill(self.daemon.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.cable.mend()
        if self.daemon is not None and self.daemon.poll() is None:
            self.resume_daemon()
        super().stop()
        self.cable.close()


class Pair:
    """The twins `a` and `b`; `database` is the one that they share. With `address`, `a` reaches it
    there and not through its cable."""

    def __init__(
        self, folder: Path, server: Postgres, cloud: Box, timing: str, address: str = ""
    ) -> None:
        self.server = server
        self.cloud = cloud
        self.database = server.create()
        self.twins = []
        for box in ("a", "b"):
            cable = Cable(folder / f"pg-{box}", server.folder)
            where = f"host={address if address and box == 'a' else cable.folder}"
            url = f"postgresql://spotd@/{self.database}?{where}&application_name={box}"
            settings = f'[database]\nurl = "{url}"\n[deployment]\nstore = "file://{folder}/store"\n'
            self.twins.append(
                Twin(folder / box, box, cloud, f"{settings}[timing]\n{timing}", cable)
            )

    def start(self) -> None:
        """Both daemons; the first makes the database, and its key is the other's too."""
        first, second = self.twins
        first.start_daemon()
        self.server.execute(WITNESS, self.database)
        (second.folder / "state").mkdir(mode=0o700)
        shutil.copy2(first.folder / "state" / "spotd-key", second.folder / "state")
        second.start_daemon()

    def holders(self) -> dict[str, int]:
        """Duty -> process id of who holds it."""
        rows = self.server.execute("SELECT name, holder FROM duties", self.database)
        return {str(name): int(str(holder).split(":")[1]) for name, holder in rows if holder}

    def holds_all(self, twin: Twin) -> bool:
        """Whether it has every duty."""
        assert twin.daemon is not None
        return set(self.holders().values()) == {twin.daemon.pid}

    def intruders(self) -> list[tuple[str, str]]:
        """(box, holder) of writes that were not the holder's."""
        pids = {twin.box: twin.pids for twin in self.twins}
        seen = self.server.execute("SELECT DISTINCT box, holder FROM witness", self.database)
        rows = [(str(box), str(holder)) for box, holder in seen]
        return [(box, who) for box, who in rows if int(who.split(":")[1]) not in pids[box]]

    def writes_of(self, twin: Twin) -> int:
        """How many writes of that box were seen."""
        query = f"SELECT count(*) FROM witness WHERE box = '{twin.box}'"
        return int(str(self.server.execute(query, self.database)[0][0]))

    def doubles(self, job_id: str) -> list[str]:
        """What the cloud's books and ours say that must not be, about a job's machines."""
        rows = [row for row in self.cloud.meter() if f"-{job_id}-" in row["token"]]
        tokens = [str(row["token"]) for row in rows]
        store = open_store(
            self.server.url(self.database),
            now=lambda: 0,
            notify=lambda: None,
            deployment_factory=str,
        )
        try:
            nodes = store.job_nodes(job_id)
        finally:
            store.close()
        known = {node.token for node in nodes}
        generations = [node.generation for node in nodes]
        return [
            *(f"launched twice: {token}" for token in {*tokens} if tokens.count(token) > 1),
            *(f"nobody's: {token}" for token in tokens if token not in known),
            *(f"two machines in {g}" for g in {*generations} if generations.count(g) > 1),
        ]

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What goes wrong in the block comes with what both daemons and the database say."""
        try:
            yield
        except BaseException:
            query = "SELECT application_name, state, wait_event, query FROM pg_stat_activity"
            print(*self.server.execute(query, self.database), sep="\n")
            print("duties:", self.holders())
            for twin in self.twins:
                print(f"--- {twin.box} {sorted(twin.pids)}\n{twin.tail('daemon', 60)}")
            raise


def machines(cloud: Box, job_id: str) -> list[dict[str, Any]]:
    """The job's rows on the cloud's own meter."""
    return [row for row in cloud.meter() if f"-{job_id}-" in row["token"]]


@contextmanager
def running_pair(
    folder: Path, server: Postgres, cloud: Box, timing: str, address: str = ""
) -> Iterator[Pair]:
    """Both at work for the length of the block."""
    pair = Pair(folder, server, cloud, timing, address)
    try:
        pair.start()
        yield pair
    finally:
        for twin in pair.twins:
            twin.stop()
