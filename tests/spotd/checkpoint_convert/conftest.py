"""These tests use the command line and its daemon."""

from __future__ import annotations

from tests.spotd.cli.conftest import folder, rig, spotctl

__all__ = ["folder", "rig", "spotctl"]
