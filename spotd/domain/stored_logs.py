"""Where output lies in the deployment's store, and what is known about the end of a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass

from spotd.wire import LogEnd


@dataclass(frozen=True)
class StreamName:
    """One output file of one machine of a job. `stream` is "setup" or "rank<N>"."""

    job_id: str
    generation: int
    rank: int
    stream: str

    @property
    def _path(self) -> str:
        return f"logs/{self.job_id}/g{self.generation}/r{self.rank}/{self.stream}"

    @property
    def prefix(self) -> str:
        """Return the folder of the stream's pieces; each is named by its byte offset, 12 digits."""
        return f"{self._path}/"

    def piece_key(self, offset: int) -> str:
        """Return the key of a piece; keys sort by offset."""
        return f"{self.prefix}{offset:012d}"

    @property
    def end_key(self) -> str:
        """Return the key of the record of the stream's end."""
        return f"{self._path}.end"


def write_end(end: LogEnd) -> bytes:
    """Return the record of a stream's end."""
    return json.dumps({"offset": end.offset, "begin": end.begin, "end": end.end}).encode()


def read_end(name: StreamName, data: bytes) -> LogEnd:
    """Parse the record of a stream's end."""
    values = json.loads(data)
    return LogEnd(
        generation=name.generation,
        stream=name.stream,
        offset=int(values["offset"]),
        begin=int(values["begin"]),
        end=int(values["end"]),
    )
