"""How machines and prices behaved, and estimates that follow from that.

Pure: no clock, no randomness, no I/O. Above the planner, which needs nothing of it.
"""
