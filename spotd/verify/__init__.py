"""Tests on a real cloud: a live proof with one small machine, and an interruption test of a job.

The interruption test submits a user's job, asks the cloud to interrupt its machine, and measures
the recovery. Everything else is done by the daemon as usual.
"""
