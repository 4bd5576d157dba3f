"""Fixtures of the command-line tests, for the tests of exports."""

from __future__ import annotations

from tests.spotd.cli.conftest import folder, rig, spotctl

__all__ = ["folder", "rig", "spotctl"]
