"""Job files: YAML with SkyPilot's task keys and a `spotd:` block, read into a `JobSpec`."""

from spotd.spec.document import SpecError, documents
from spotd.spec.load import CheckpointDefaults, Known, Parsed, load

__all__ = ["CheckpointDefaults", "Known", "Parsed", "SpecError", "documents", "load"]
