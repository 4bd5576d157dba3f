"""Imported from a folder of the workdir, as a user's own module would be."""

STEPS = 150
STEP_S = 0.05
