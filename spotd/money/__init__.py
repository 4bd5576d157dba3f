"""What was paid for, and what it would have cost otherwise: pure, exact, in integers.

Money is in micro-USD, time in microseconds; hours of nodes and of GPUs are types of their own.
docs/cost.md has the method.
"""
