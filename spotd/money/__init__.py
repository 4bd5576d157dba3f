"""Costs: paid, and for the same work on-demand. Pure, exact, in integers.

Money is in micro-USD, time in microseconds; node hours and GPU hours are types of their own.
docs/cost.md has the method.
"""
