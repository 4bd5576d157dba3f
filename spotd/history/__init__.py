"""Statistics of past machines and prices, and estimates computed from them.

Pure: no clock, no randomness, no I/O. The planner does not import this package.
"""
