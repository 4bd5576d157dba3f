"""Read job files (YAML with SkyPilot's task keys and a `spotd:` block) into a `JobSpec`."""

from spotd.spec.document import SpecError, split_documents
from spotd.spec.load import CheckpointDefaults, KnownNames, ParsedJobFile, load

__all__ = [
    "CheckpointDefaults",
    "KnownNames",
    "ParsedJobFile",
    "SpecError",
    "load",
    "split_documents",
]
