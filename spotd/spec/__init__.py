"""Job files: YAML with SkyPilot's task keys and a `spotd:` block, read into a `JobSpec`."""

from spotd.spec.document import SpecError, documents
from spotd.spec.load import CheckpointDefaults, KnownNames, ParsedJobFile, load

__all__ = ["CheckpointDefaults", "KnownNames", "ParsedJobFile", "SpecError", "documents", "load"]
