"""Ways to send alerts. The daemon and spot-reaper build theirs from the same registry."""
