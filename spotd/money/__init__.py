"""What was paid, and what it would have cost otherwise: pure, exact, in integers.

Money is in micro-USD, time in microseconds; node hours and GPU hours are types of their own.
docs/cost.md has the method.
"""
